"""How many traces a round takes behind one that failed, so that a trace no round survives is soon alone."""

import json
from collections.abc import Iterable
from pathlib import Path

from .disk import write_text


class Caution:
    """All it may, until a round fails; then a quarter of what failed, until what failed was learnt or is gone.

    Five tries lead from 400 traces to one: as many as the buffer hands out a trace (base.MAX_DELIVERIES) before it
    takes that one for poison. Its neighbours live. What a round has taken stands in the file `attempt` until it ended
    well, so that a round which took its process with it is not forgotten.
    """

    def __init__(self, most: int, attempt: Path) -> None:
        self._most = most
        self._attempt = attempt
        self._suspects: frozenset[str] = frozenset()
        self._taken: frozenset[str] = frozenset()
        self.max_claim = most

    @property
    def has_suspects(self) -> bool:
        """Whether a round failed and what it claimed is neither learnt nor gone yet."""
        return bool(self._suspects)

    def recall(self) -> None:
        """Suspect what a learner died with, or left in a round that failed. For the lease's holder alone."""
        if self._attempt.exists():
            self._suspect(frozenset(json.loads(self._attempt.read_text(encoding="utf-8"))))

    def take(self, entry_ids: Iterable[str]) -> None:
        """Note what a round claimed; suspects are claimed before all others, so that without them they are gone.

        OSError when the disk takes no more.
        """
        self._taken = frozenset(entry_ids)
        if self._suspects.isdisjoint(self._taken):
            self._suspects = frozenset()
        self._write(self._taken)

    def fail(self) -> None:
        """Note that the round failed. One that had claimed nothing accuses nothing."""
        if self._taken:
            self._suspect(self._taken)

    def succeed(self) -> None:
        """Note that the round ended well. OSError as for `take`."""
        self._suspects -= self._taken
        self._taken = frozenset()
        if not self._suspects:
            self.max_claim = self._most
        self._write(self._suspects)

    def _suspect(self, entry_ids: frozenset[str]) -> None:
        self._suspects, self._taken = entry_ids, frozenset()
        self.max_claim = max(1, len(entry_ids) // 4)

    def _write(self, entry_ids: frozenset[str]) -> None:
        if entry_ids:
            write_text(self._attempt, json.dumps(sorted(entry_ids)))
        else:
            self._attempt.unlink(missing_ok=True)
