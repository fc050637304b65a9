"""How many traces a round takes behind one that failed, so that a trace no round survives is soon alone."""

from collections.abc import Iterable


class Caution:
    """All it may, until a round fails; then a quarter of what failed, until what failed was learnt or is gone.

    Five tries lead from 400 traces to one: as many as the buffer hands out a trace (base.MAX_DELIVERIES) before it
    takes that one for poison. Its neighbours live.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._suspects: frozenset[str] = frozenset()
        self._taken: frozenset[str] = frozenset()
        self.max_claim = most

    @property
    def has_suspects(self) -> bool:
        """Whether a round failed and what it claimed is neither learnt nor gone yet."""
        return bool(self._suspects)

    def take(self, entry_ids: Iterable[str]) -> None:
        """Note what a round claimed; suspects are claimed before all others, so that without them they are gone."""
        self._taken = frozenset(entry_ids)
        if self._suspects.isdisjoint(self._taken):
            self._suspects = frozenset()

    def fail(self) -> None:
        """Note that the round failed. One that had claimed nothing accuses nothing."""
        if self._taken:
            self.max_claim = max(1, len(self._taken) // 4)
            self._suspects, self._taken = self._taken, frozenset()

    def succeed(self) -> None:
        """Note that the round ended well."""
        self._suspects -= self._taken
        self._taken = frozenset()
        if not self._suspects:
            self.max_claim = self._most
