"""Shrinks the claim after a learning round that failed, to isolate a trace that no learning round survives."""

import itertools
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ...buffer.board.lease import Lease
from ...buffer.errors import BufferUnavailable, DeviceOutOfMemory, LeaseLost, StoreUnavailable
from ...buffer.stream.trace_buffer import MAX_DELIVERIES
from ..disk import write_text

_log = logging.getLogger(__name__)

#: Failures that no trace can cause: they accuse none, and must cost none a delivery.
NO_TRACES_FAULT = (BufferUnavailable, DeviceOutOfMemory, LeaseLost, StoreUnavailable)


class ClaimLimiter:
    """Allows `max_claim` traces; after a failure a part of the failed claim, until those were learned or are gone.

    The part is a quarter, or less where that is needed for the last of base.MAX_DELIVERIES attempts to claim one trace:
    after so many deliveries the buffer makes it a dead letter. Its neighbours are learned. What a learning round has
    claimed, and into how many parts, is in the file `attempt` (one per consumer) until the round ended well, so a
    learning round that killed its process is known to the next one.
    """

    def __init__(self, max_claim: int, attempt: Path) -> None:
        self._max_claim = max_claim
        self._divisor = 1
        self._attempt = attempt
        self._suspects: frozenset[str] = frozenset()
        self._claimed: frozenset[str] = frozenset()
        self._owed: frozenset[str] = frozenset()  # entries whose last delivery the buffer should not count
        self.claim_limit = max_claim  # traces the next claim may take

    @property
    def has_suspects(self) -> bool:
        """Return whether a learning round failed and what it claimed is neither learned nor gone yet."""
        return bool(self._suspects)

    def load_attempt(self) -> None:
        """Suspect what the process before this one died with, unless this one has suspects of its own already."""
        if self._suspects or not self._attempt.exists():
            return
        try:
            found = json.loads(self._attempt.read_text(encoding="utf-8"))
            left = frozenset(map(str, found["claimed"]))
            self._divisor = max(int(found["parts"]), 1)
        except (ValueError, TypeError, KeyError) as error:
            _log.warning(
                "%s: got %r, expected entry ids as `claimed`, and `parts`; no trace is suspected", self._attempt, error
            )
            return
        if left:
            self._suspect(left)

    def prepare(self) -> None:
        """Write the attempt before anything is claimed: on a full disk the claim would cost its traces a delivery.

        OSError on a full disk.
        """
        self._write(self._suspects)

    def record_claim(self, entry_ids: Iterable[str]) -> None:
        """Record what a learning round claims. Suspects come first in a claim: one without them means they are gone.

        OSError on a full disk.
        """
        self._claimed = frozenset(entry_ids)
        if self._suspects.isdisjoint(self._claimed):
            self._suspects = frozenset()
            self._divisor = _divisor(len(self._claimed))
        self._write(self._claimed)

    def record_failure(self, failure: BaseException, lease: Lease) -> None:
        """Suspect what the failed learning round had claimed.

        Not after NO_TRACES_FAULT, nor when the lease was lost: another learner may have worked on the same files.
        """
        if isinstance(failure, NO_TRACES_FAULT) or not _is_held(lease):
            self._owed |= self._claimed
            with suppress(OSError):  # the failure itself says more
                self._settle()
        elif self._claimed:
            self._suspect(self._claimed)

    def forgive_owed(self, forgive: Callable[[Sequence[str]], object]) -> None:
        """Let the buffer forgive the claims of learning rounds that failed through no trace's fault."""
        if self._owed:
            forgive(sorted(self._owed))
            self._owed = frozenset()

    def record_success(self) -> None:
        """Acquit what the learning round had claimed. OSError on a full disk."""
        self._suspects -= self._claimed
        self._settle()

    def _settle(self) -> None:
        """Leave in the file those who are still suspected."""
        self._claimed = frozenset()
        if self._suspects:
            self._write(self._suspects)
        else:
            self.claim_limit = self._max_claim
            self._attempt.unlink(missing_ok=True)

    def _suspect(self, entry_ids: frozenset[str]) -> None:
        self._suspects = entry_ids
        self._claimed = frozenset()
        self.claim_limit = max(1, len(entry_ids) // self._divisor)

    def _write(self, entry_ids: frozenset[str]) -> None:
        write_text(self._attempt, json.dumps({"claimed": sorted(entry_ids), "parts": self._divisor}))


def _divisor(traces: int) -> int:
    """The smallest whole number from 4 on that leads from so many to one in MAX_DELIVERIES attempts."""
    return next(d for d in itertools.count(4) if traces // d ** (MAX_DELIVERIES - 1) <= 1)


def _is_held(lease: Lease) -> bool:
    try:
        return lease.is_held()
    except BufferUnavailable:
        return False
