"""The drafts that a rollback can reach without a disk."""

from collections.abc import Iterator

from .staging import StagedDraft

#: Drafts kept in host memory, the live one included.
KEPT_DRAFTS = 2


class KeptDrafts:
    """The drafts that drafted last, by version number; the same on every rank. For the scheduler thread."""

    def __init__(self) -> None:
        self._drafts: dict[int, StagedDraft] = {}  # oldest first

    def __iter__(self) -> Iterator[int]:
        """Version numbers, the oldest first."""
        return iter(self._drafts)

    def __getitem__(self, number: int) -> StagedDraft:
        return self._drafts[number]

    def find(self, number: int, sha256: str) -> StagedDraft | None:
        """The draft of this version, if it is kept; any thread. An empty digest, of either, is that of any file.

        A board that lost its data gives numbers again: the same number is the same weights only by their digest.
        """
        kept = self._drafts.get(number)
        return kept if kept is not None and ("" in {kept.sha256, sha256} or kept.sha256 == sha256) else None

    def keep(self, number: int, draft: StagedDraft) -> None:
        """Keep what drafts from now on, and let the oldest go."""
        self._drafts.pop(number, None)
        self._drafts[number] = draft
        while len(self._drafts) > KEPT_DRAFTS:
            del self._drafts[next(iter(self._drafts))]
