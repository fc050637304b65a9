"""How many traces a round takes behind one that failed, so that a trace no round survives is soon alone."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ..buffer.errors import BufferUnavailable, LeaseLost
from ..buffer.lease import Lease
from .disk import write_text

_log = logging.getLogger(__name__)

#: What ends a round whatever it claimed: it accuses no trace, and must cost none a delivery.
NO_TRACES_FAULT = (BufferUnavailable, LeaseLost)


class ClaimLimiter:
    """All it may, until traces fail a round; then a quarter of them, until they were learnt or are gone.

    Five tries lead from 400 traces to one: as many as the buffer hands out a trace (base.MAX_DELIVERIES) before it
    takes that one for poison. Its neighbours live. What a round has taken stands in the file `attempt`, one for each
    consumer, until it ended well, so that a round which took its process with it is not forgotten.
    """

    def __init__(self, most: int, attempt: Path) -> None:
        self._most = most
        self._attempt = attempt
        self._suspects: frozenset[str] = frozenset()
        self._taken: frozenset[str] = frozenset()
        self._owed: frozenset[str] = frozenset()  # a delivery each
        self.max_claim = most

    @property
    def has_suspects(self) -> bool:
        """Whether a round failed and what it claimed is neither learnt nor gone yet."""
        return bool(self._suspects)

    def recall(self) -> None:
        """Suspect what the process before this one died with, unless this one has suspects of its own already."""
        if self._suspects or not self._attempt.exists():
            return
        try:
            left = frozenset(map(str, json.loads(self._attempt.read_text(encoding="utf-8"))))
        except (ValueError, TypeError) as error:
            _log.warning("%s: got %s, expected a list of entry ids; it is taken for empty", self._attempt, error)
            return
        if left:
            self._suspect(left)

    def begin(self) -> None:
        """Write before anything is claimed: on a disk that takes no more a claim would cost its traces a delivery.

        OSError then.
        """
        self._write(self._suspects)

    def take(self, entry_ids: Iterable[str]) -> None:
        """Note what a round claims; suspects are claimed before all others, so that without them they are gone.

        OSError when the disk takes no more.
        """
        self._taken = frozenset(entry_ids)
        if self._suspects.isdisjoint(self._taken):
            self._suspects = frozenset()
        self._write(self._taken)

    def fail(self, failure: BaseException, lease: Lease) -> None:
        """Note that the round failed. One that had claimed nothing accuses nothing.

        Nor does NO_TRACES_FAULT, nor anything that came of a lost lease: another learner may have been at the same
        files.
        """
        if isinstance(failure, NO_TRACES_FAULT) or not _is_held(lease):
            self._owed |= self._taken
            with suppress(OSError):  # the failure itself says more
                self._settle()
        elif self._taken:
            self._suspect(self._taken)

    def repay(self, forgive: Callable[[Sequence[str]], object]) -> None:
        """Have the buffer forgive what was claimed by rounds that NO_TRACES_FAULT ended; owed until it has."""
        if self._owed:
            forgive(sorted(self._owed))
            self._owed = frozenset()

    def succeed(self) -> None:
        """Note that the round ended well. OSError as for `take`."""
        self._suspects -= self._taken
        self._settle()

    def _settle(self) -> None:
        """Let the file say who is suspected still."""
        self._taken = frozenset()
        if self._suspects:
            self._write(self._suspects)
        else:
            self.max_claim = self._most
            self._attempt.unlink(missing_ok=True)

    def _suspect(self, entry_ids: frozenset[str]) -> None:
        self._suspects, self._taken = entry_ids, frozenset()
        self.max_claim = max(1, len(entry_ids) // 4)

    def _write(self, entry_ids: frozenset[str]) -> None:
        write_text(self._attempt, json.dumps(sorted(entry_ids)))


def _is_held(lease: Lease) -> bool:
    try:
        return lease.is_held()
    except BufferUnavailable:
        return False
