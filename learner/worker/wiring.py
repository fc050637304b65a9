"""Makes a learner and everything it works with from its settings. Importing this loads torch."""

from ...buffer.redis_board import RedisVersionBoard
from ...buffer.redis_client import connect
from ...buffer.redis_stream import RedisTraceBuffer
from ..config import LearnerConfig
from ..delivery.mlflow_registry import Registry
from ..delivery.pending_registrations import PendingRegistrations
from ..reproduce import Reproduced, reproduce
from ..round.loop import Learner
from .liveness import heartbeat_of


def open_registry(config: LearnerConfig) -> Registry:
    """The registry of a speculator; connects to MLflow only when it is first used."""
    artifacts = config.data_dir / "mlflow-artifacts"
    return Registry(
        config.tracking_uri, config.registered_model, _pending(config), artifacts, pages=config.mlflow_pages
    )


def open_learner(config: LearnerConfig) -> Learner:
    """Connect to Redis and return a learner that has not started a learning round yet. Raises BufferUnavailable."""
    client = connect(config.redis_url, config.redis_ca)
    buffer = RedisTraceBuffer(client, config.buffer)
    board = RedisVersionBoard(client, config.buffer)
    return Learner(config, buffer, board, open_registry(config), heartbeat_of(config))


def reproduce_draft(config: LearnerConfig, number: int) -> Reproduced:
    """Connect to Redis and fit draft `number` again; `reproduce` says what it needs and raises."""
    with connect(config.redis_url, config.redis_ca) as client:
        buffer, board = RedisTraceBuffer(client, config.buffer), RedisVersionBoard(client, config.buffer)
        return reproduce(config, buffer, board, _pending(config), number)


def _pending(config: LearnerConfig) -> PendingRegistrations:
    return PendingRegistrations(config.checkpoints_dir / "pending_registrations")
