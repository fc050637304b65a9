"""Accept length over time: what was served between entries of the members' histories, summed into equal stretches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ...buffer.counters import Counters
from .ratio_sums import RatioSums


@dataclass(frozen=True, slots=True)
class ServedSums:
    """What was served in some time: rounds and accepted drafts as they happened, and the requests that ended."""

    rounds: int = 0
    accepted: int = 0
    ended: RatioSums = field(default_factory=RatioSums)

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify round, of running requests too; None without rounds."""
        return 1.0 + self.accepted / self.rounds if self.rounds else None

    def __add__(self, other: "ServedSums") -> "ServedSums":
        return ServedSums(self.rounds + other.rounds, self.accepted + other.accepted, self.ended + other.ended)

    def __sub__(self, other: "ServedSums") -> "ServedSums":
        return ServedSums(self.rounds - other.rounds, self.accepted - other.accepted, self.ended - other.ended)


NOTHING = ServedSums()


@dataclass(frozen=True, slots=True)
class AcceptStretch:
    """One stretch of time, `width_s` long and ended at unix second `at`."""

    at: float
    by_label: Mapping[str, ServedSums] = field(default_factory=dict)
    draft: int | None = None  # that the newest entry in it names

    @property
    def total(self) -> ServedSums:
        """All labels together."""
        return sum(self.by_label.values(), NOTHING)


def accept_series(
    histories: Iterable[Sequence[Counters]], until_s: float, width_s: float, stretches: int
) -> list[AcceptStretch]:
    """The `stretches` stretches before `until_s`, oldest first; one history for each member, oldest entry first.

    What was served between two entries of one boot counts where the later one lies. A stretch without entries that
    lies between such two has what was served then as well, for older entries are kept a minute apart; so the stretches
    do not add up. A restart of a member begins at nothing; what it served before its first entry counts there.
    """
    start_s = until_s - width_s * stretches
    found: list[dict[str, ServedSums]] = [{} for _ in range(stretches)]
    lent: list[dict[str, ServedSums]] = [{} for _ in range(stretches)]
    drafts: list[int | None] = [None] * stretches
    for earlier, later in (pair for history in histories for pair in pairwise(history)):
        first, last = (_index(entry.at, start_s, width_s) for entry in (earlier, later))
        if not 0 <= last < stretches:
            continue
        served = _between(earlier, later)
        _add(found[last], served)
        drafts[last] = later.draft if later.draft is not None else drafts[last]
        for index in range(max(0, first + 1), last):
            _add(lent[index], served)
            drafts[index] = later.draft if drafts[index] is None else drafts[index]
    return [
        AcceptStretch(start_s + (index + 1) * width_s, found[index] or lent[index], drafts[index])
        for index in range(stretches)
    ]


def _index(at: float, start_s: float, width_s: float) -> int:
    """Of the stretch that `at` lies in; an end belongs to the stretch that it ends."""
    return -int((start_s - at) // width_s) - 1


def _between(earlier: Counters, later: Counters) -> dict[str, ServedSums]:
    """By label, what `later` has more than `earlier`; drafts together, since older ones are pooled as new ones come."""
    before = _by_label(earlier) if earlier.boot == later.boot else {}
    grown = {label: sums - before.get(label, NOTHING) for label, sums in _by_label(later).items()}
    # A label that was named and is pooled with the others now shrinks to nothing; rounds are never taken back.
    return {label: sums for label, sums in grown.items() if sums.rounds > 0 and sums.accepted >= 0}


def _by_label(entry: Counters) -> dict[str, ServedSums]:
    found: dict[str, ServedSums] = {}
    for label, sums in _cells(entry):
        found[label] = found.get(label, NOTHING) + sums
    return found


def _cells(entry: Counters) -> Iterator[tuple[str, ServedSums]]:
    for cell in entry.served.cells if entry.served else ():
        yield cell.label, ServedSums(cell.rounds, cell.accepted, RatioSums(*cell.ended))


def _add(into: dict[str, ServedSums], served: Mapping[str, ServedSums]) -> None:
    for label, sums in served.items():
        into[label] = into.get(label, NOTHING) + sums
