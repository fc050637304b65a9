"""What every draft served in all that is known: the last counters of each boot that still name it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...buffer.counters import OLDER_DRAFTS, Counters
from .ratio_sums import RatioSums


@dataclass(frozen=True, slots=True)
class ServedDraft:
    """Sums over the requests of one draft that ended."""

    by_label: Mapping[str, RatioSums] = field(default_factory=dict)
    positions: Sequence[tuple[int, int]] = ()  # rounds that reached it and that accepted it; of running requests too

    @property
    def total(self) -> RatioSums:
        """All labels together."""
        return sum(self.by_label.values(), RatioSums())

    @property
    def requests(self) -> dict[str, int]:
        """By label, how many ended."""
        return {label: sums.requests for label, sums in self.by_label.items()}

    def __add__(self, other: "ServedDraft") -> "ServedDraft":
        labels = {*self.by_label, *other.by_label}
        none = RatioSums()
        by_label = {label: self.by_label.get(label, none) + other.by_label.get(label, none) for label in labels}
        return ServedDraft(by_label, _added(self.positions, other.positions))


def served_drafts(histories: Iterable[Sequence[Counters]]) -> dict[int, ServedDraft]:
    """By draft; one history for each member, oldest entry first.

    A member tells its newest drafts apart alone, so an older draft has what the last entry that names it says.
    """
    found: dict[int, ServedDraft] = {}
    for history in histories:
        for (_, draft), served in _last_by_boot(history).items():
            found[draft] = found.get(draft, ServedDraft()) + served
    return found


def served_totals(histories: Iterable[Sequence[Counters]]) -> dict[int, RatioSums]:
    """By draft, the sums over all its requests that ended."""
    return {draft: served.total for draft, served in served_drafts(histories).items()}


def _last_by_boot(history: Sequence[Counters]) -> dict[tuple[str, int], ServedDraft]:
    last = {(entry.boot, draft): entry for entry in history for draft in _named(entry)}
    return {(boot, draft): _of(entry, draft) for (boot, draft), entry in last.items()}


def _named(entry: Counters) -> set[int]:
    return {cell.draft for cell in entry.served.cells if cell.draft != OLDER_DRAFTS} if entry.served else set()


def _of(entry: Counters, draft: int) -> ServedDraft:
    by_label: dict[str, RatioSums] = {}
    for cell in entry.served.cells if entry.served else ():
        if cell.draft == draft:
            by_label[cell.label] = by_label.get(cell.label, RatioSums()) + RatioSums(*cell.ended)
    rows = entry.served.positions if entry.served else []
    positions = [pair for row in rows if row.draft == draft for pair in zip(row.tried, row.stood, strict=False)]
    return ServedDraft(by_label, positions)


def _added(ours: Sequence[tuple[int, int]], theirs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    size = max(len(ours), len(theirs))
    one, other = ([*pairs, *[(0, 0)] * (size - len(pairs))] for pairs in (ours, theirs))
    return [(a + c, b + d) for (a, b), (c, d) in zip(one, other, strict=True)]
