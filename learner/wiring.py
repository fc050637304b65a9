"""Makes a learner and everything it works with from its settings. Importing this loads torch."""

from ..buffer.redis_board import RedisVersionBoard
from ..buffer.redis_client import connect
from ..buffer.redis_stream import RedisTraceBuffer
from .config import LearnerConfig
from .delivery.mlflow_registry import Registry
from .delivery.pending_registrations import PendingRegistrations
from .liveness import heartbeat_of
from .loop import Learner


def open_registry(config: LearnerConfig) -> Registry:
    """The registry of a speculator; connects to MLflow only when it is first used."""
    pending = PendingRegistrations(config.checkpoints_dir / "pending_registrations")
    return Registry(config.tracking_uri, f"paceline-{config.speculator}", pending, config.data_dir / "mlflow-artifacts")


def open_learner(config: LearnerConfig) -> Learner:
    """Connect to Redis and return a learner that has not started a learning round yet. Raises BufferUnavailable."""
    client = connect(config.redis_url, config.redis_ca)
    buffer = RedisTraceBuffer(client, config.buffer)
    board = RedisVersionBoard(client, config.buffer)
    return Learner(config, buffer, board, open_registry(config), heartbeat_of(config))
