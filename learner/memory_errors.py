"""A device without memory for a learning round, in the terms of who can do something about it."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..buffer.errors import DeviceOutOfMemory
from .config import LearnerConfig
from .training.device_memory import is_out_of_memory


@contextmanager
def memory_errors_named(config: LearnerConfig) -> Iterator[None]:
    """Turn what torch raises when it cannot allocate into DeviceOutOfMemory, which names the settings."""
    try:
        yield
    except RuntimeError as failure:
        if not is_out_of_memory(failure):
            raise
        said = "; ".join([*getattr(failure, "__notes__", []), str(failure).partition("\n")[0]])
        raise DeviceOutOfMemory(
            f"device {config.device}: out of memory ({said}); the traces stay pending. Lower PACELINE_BATCH_TOKENS, "
            f"now {config.batch_tokens}{_recomputing(config)}; where one trace alone does not fit, lower "
            "PACELINE_DRAFT_STEPS or, on the servers, PACELINE_TRACE_TOKENS, or give the learner a device with more "
            "memory"
        ) from failure


def _recomputing(config: LearnerConfig) -> str:
    now = config.recompute_tokens
    return f", and PACELINE_RECOMPUTE_TOKENS, now {now}: the device holds the target too" if now else ""
