"""A closed terminal and a polite kill end the demo as Ctrl-C does: by an exception that unwinds it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit(128 + number) in the body; afterwards they do what they did before.

    A signal that is ignored stays ignored (nohup). Raises ValueError outside the main thread.
    """
    numbers = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, _end) for number in numbers}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
