"""Accept length over time: what was served between entries of the members' histories, summed into equal stretches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ...buffer.board.counters import Counters
from .ratio_sums import RatioSums
from .tables import CellSums, Table, cells_of, difference, total

NOTHING = CellSums(*[0] * len(CellSums._fields))


@dataclass(frozen=True, slots=True)
class AcceptStretch:
    """One stretch of time, ended at unix second `at`."""

    at: float
    by_label: Mapping[str, CellSums] = field(default_factory=dict)
    draft: int | None = None  # that the newest entry in it names

    @property
    def sums(self) -> CellSums:
        """All labels together."""
        added = total({"": {"": sums}} for sums in self.by_label.values())
        return added[""][""] if added else NOTHING

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the accept length, over the requests that ended; None where they are too few."""
        return RatioSums.of_row(self.sums[2:]).interval


def length_of(sums: CellSums) -> float | None:
    """Tokens per verify round, of running requests too; None without rounds."""
    return 1.0 + sums.accepted / sums.rounds if sums.rounds else None


def accept_series(
    histories: Iterable[Sequence[Counters]], until_s: float, width_s: float, stretches: int
) -> list[AcceptStretch]:
    """The `stretches` stretches of `width_s` seconds before `until_s`, oldest first; histories are oldest first too.

    What was served between two entries of one boot counts where the later one lies. A stretch without entries that
    lies between such two has what was served then as well, for older entries are kept a minute apart; so stretches are
    not to be added up. A restarted member begins at nothing: what it served before its first entry counts there.
    """
    start_s = until_s - width_s * stretches
    found: list[list[Table]] = [[] for _ in range(stretches)]
    lent: list[list[Table]] = [[] for _ in range(stretches)]
    drafts: list[int | None] = [None] * stretches
    for earlier, later in (pair for history in histories for pair in pairwise(history)):
        first, last = (_index(entry.at, start_s, width_s) for entry in (earlier, later))
        if 0 <= last < stretches and later.served is not None:
            served = _between(earlier, later)
            found[last].append(served)
            drafts[last] = drafts[last] if later.draft is None else later.draft
            for index in range(max(0, first + 1), last):
                lent[index].append(served)
                drafts[index] = later.draft if drafts[index] is None else drafts[index]
    return [
        AcceptStretch(start_s + (index + 1) * width_s, _by_label(found[index] or lent[index]), drafts[index])
        for index in range(stretches)
    ]


def _index(at: float, start_s: float, width_s: float) -> int:
    """Of the stretch that `at` lies in; an end belongs to the stretch that it ends."""
    return -int((start_s - at) // width_s) - 1


def _between(earlier: Counters, later: Counters) -> Table:
    """Cells that `later` has more than `earlier`, where that is of the same boot."""
    before = {"": cells_of(earlier.served)} if earlier.boot == later.boot else {}
    return difference({"": cells_of(later.served)}, before)[""]


def _by_label(cells: Sequence[Table]) -> dict[str, CellSums]:
    """Added up by label, those that served a round."""
    added = total({"": {key.label: sums}} for table in cells for key, sums in table.items() if sums.rounds)
    return dict(added.get("", {}))
