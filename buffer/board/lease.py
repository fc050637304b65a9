"""Leases, and the thread that renews one while a body runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import LeaseLost

#: Renewals per time to live: two may fail before the lease ends.
_RENEWALS = 3


@dataclass(frozen=True, slots=True)
class Lease:
    """What VersionBoard.lease yields; true when the name was free and this body got it."""

    granted: bool
    ask: Callable[[], bool]  # asks the board

    def __bool__(self) -> bool:
        return self.granted

    def is_held(self) -> bool:
        """Ask the board whether this body still holds the lease; once lost it never comes back.

        Call before every step that only one holder may take. May raise BufferUnavailable: then the answer is unknown.
        """
        return self.granted and self.ask()


@contextmanager
def renewed(renew: Callable[[], object], ttl_s: float) -> Iterator[None]:
    """Call `renew` three times per `ttl_s` in a thread while the body runs; no call outlasts the context.

    The first call comes a third of `ttl_s` after the start. An exception of `renew` ends the renewing, not the body.
    """
    done = threading.Event()

    def run() -> None:
        while not done.wait(ttl_s / _RENEWALS):
            renew()

    thread = threading.Thread(target=run, name="paceline-renew", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def require(lease: Lease, why: str) -> None:
    """Raise LeaseLost unless the lease of a learning round is still held; `why` says what was not done."""
    if not lease.is_held():
        raise LeaseLost(
            f"lease of the round: got lost, expected held ({why} from here on); this process was suspended, or Redis "
            "was away, for longer than PACELINE_ROUND_LEASE_S"
        )
