"""A Redis whose append-only file is in memory: a killed process is not a machine without power.

On a busy disk Redis may answer after half a second, and servers serve on meanwhile: what a test counts of what they
serve would depend on the disk.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.rig.services import Service, redis_service

_MEMORY = Path("/dev/shm")


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory, gone afterwards; on the disk where there is no such place."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@contextmanager
def redis_in_memory(port: int) -> Iterator[Service]:
    """`redis_service` in such a folder, running."""
    with memory_folder() as folder, redis_service(folder, port) as redis:
        yield redis
