"""How tests wait for another process or thread."""

import threading
import time
from collections.abc import Callable


def until(holds: Callable[[], object], what: str, limit_s: float = 240.0) -> None:
    """Wait for a condition; fail, saying what was waited for, after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < deadline_s, f"waited {limit_s} s in vain: {what}"
        pause.wait(0.02)
