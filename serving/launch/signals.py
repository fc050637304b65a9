"""Signal handlers that are installed for a while, and then replaced by those before them."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def borrowed_signals(numbers: Iterable[int], answer: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """`answer` gets these signals in the body; afterwards the handlers before it are back.

    A signal that is ignored stays ignored (nohup). Raises ValueError outside the main thread.
    """
    taken = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, answer) for number in taken}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
