"""SIGTERM and SIGHUP end a program as Ctrl-C does: by an exception that unwinds it."""

import signal
from contextlib import AbstractContextManager
from types import FrameType
from typing import Final

from ..serving.launch.signals import borrowed_signals

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


def ending_signals() -> AbstractContextManager[None]:
    """SIGTERM and SIGHUP raise SystemExit(128 + number) in the body; see borrowed_signals for those ignored."""
    return borrowed_signals(_ENDING, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
