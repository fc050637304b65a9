"""Leases, and the thread that keeps a claim of life fresh while a body runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .errors import LeaseLost

#: Renewals per time to live: two may be lost before the claim ends.
_RENEWALS = 3


@dataclass(frozen=True, slots=True)
class Lease:
    """What VersionBoard.lease yields; true when the name was free and is held by this body."""

    granted: bool
    ask: Callable[[], bool]  # asks the board

    def __bool__(self) -> bool:
        return self.granted

    def is_held(self) -> bool:
        """Ask the board whether the lease is still this body's; once lost it never comes back.

        Call before every step that only one holder may take. May raise BufferUnavailable: then nobody knows.
        """
        return self.granted and self.ask()


@contextmanager
def renewed(renew: Callable[[], object], ttl_s: float) -> Iterator[None]:
    """Call `renew` three times per `ttl_s` in a thread while the body runs; none is under way behind it.

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
    """LeaseLost unless the lease of a round is held still; `why` says what was not done."""
    if not lease.is_held():
        raise LeaseLost(
            f"lease of the round: got lost, expected held ({why} from here on); was this process suspended, or Redis "
            "away, for longer than PACELINE_ROUND_LEASE_S?"
        )
