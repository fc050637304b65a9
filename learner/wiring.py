"""A learner with everything it works on, made from its settings. Importing this loads torch."""

from ..buffer.redis_board import RedisVersionBoard
from ..buffer.redis_client import connect
from ..buffer.redis_stream import RedisTraceBuffer
from .config import LearnerConfig
from .delivery.mlflow_registry import Registry
from .loop import Learner


def open_registry(config: LearnerConfig) -> Registry:
    """The MLflow door of a speculator; reaches for MLflow only when it is first used."""
    outbox = config.checkpoints_dir / "unregistered"
    return Registry(config.tracking_uri, f"paceline-{config.speculator}", outbox, config.data_dir / "mlflow-artifacts")


def open_learner(config: LearnerConfig) -> Learner:
    """Connect to Redis and return a learner that has not started a round yet. Raises BufferUnavailable."""
    client = connect(config.redis_url, config.redis_ca)
    buffer = RedisTraceBuffer(client, config.buffer)
    return Learner(config, buffer, RedisVersionBoard(client, config.buffer), open_registry(config))
