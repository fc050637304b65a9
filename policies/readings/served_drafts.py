"""What every draft has served, from members' counters: accept length with its interval, and acceptance by position.

The one place that adds it up: MLflow and the command line show the same figures because both ask here.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from itertools import zip_longest

from ...buffer.board.counters import OLDER_DRAFTS, Counters, DraftPositions
from .definitions import Reading
from .ratio_sums import RatioSums
from .tables import PlaceSums


@dataclass(frozen=True, slots=True)
class ServedDraft:
    """What one draft served, over all servers and their restarts, as far as the board's history reaches."""

    sums: RatioSums = field(default_factory=RatioSums)  # of the requests that ended, or that another draft went on with
    tried: tuple[int, ...] = ()  # rounds by position: how often it was reached
    stood: tuple[int, ...] = ()  # and how often it was accepted then
    at: float | None = None  # unix seconds of the newest evidence
    _: KW_ONLY
    by_output: tuple[PlaceSums, ...] = ()  # rounds by where they began, in buckets of OUTPUT_STARTS
    by_context: tuple[PlaceSums, ...] = ()  # and of CONTEXT_STARTS

    def __add__(self, other: "ServedDraft") -> "ServedDraft":
        times = [at for at in (self.at, other.at) if at is not None]
        positions = _added(self.tried, other.tried), _added(self.stood, other.stood)
        return ServedDraft(
            self.sums + other.sums,
            *positions,
            max(times, default=None),
            by_output=_pooled(self.by_output, other.by_output),
            by_context=_pooled(self.by_context, other.by_context),
        )

    @property
    def accept_length(self) -> Reading:
        """Its accept length; unknown where no request has ended."""
        length = self.sums.accept_length
        (low, high) = self.sums.interval or (None, None)
        why = "" if length is not None else "no request that it drafted for has ended"
        return Reading(
            name="accept_length",
            value=length,
            count=self.sums.requests,
            at=self.at,
            low=low,
            high=high,
            why_unknown=why,
        )

    @property
    def by_position(self) -> list[float | None]:
        """Share of the rounds that reached a position in which it was accepted; None where none reached it."""
        return [stood / tried if tried else None for tried, stood in zip(self.tried, self.stood, strict=True)]


def served_drafts(counters: Iterable[Counters]) -> dict[int, ServedDraft]:
    """Draft -> what it served; `counters` are histories of any members, in any order.

    A draft that a server no longer tells apart (counters.py: MAX_DRAFTS) keeps the last figures that it had. A
    restarted server is another boot, whose figures are added.
    """
    # Counters only grow: of each boot, the newest entry that names a draft holds all that it served with it.
    boots: dict[str, dict[int, ServedDraft]] = defaultdict(dict)
    for entry in sorted(counters, key=lambda entry: entry.at, reverse=True):
        known = boots[entry.boot]
        if entry.served is None:
            continue
        named = {cell.draft for cell in entry.served.cells} | {each.draft for each in entry.served.positions}
        if named - known.keys():
            boots[entry.boot] = _of_entry(entry) | known
    found: dict[int, ServedDraft] = {}
    for newest in boots.values():
        for number, served in newest.items():
            found[number] = found.get(number, ServedDraft()) + served
    return found


def _of_entry(entry: Counters) -> dict[int, ServedDraft]:
    if entry.served is None:
        return {}
    found: dict[int, ServedDraft] = {}
    for cell in entry.served.cells:
        found[cell.draft] = found.get(cell.draft, ServedDraft()) + ServedDraft(
            RatioSums.of_row(cell.ended), at=entry.at
        )
    for position in entry.served.positions:
        found[position.draft] = found.get(position.draft, ServedDraft()) + _of_row(position, entry.at)
    found.pop(OLDER_DRAFTS, None)
    return found


def _of_row(row: DraftPositions, at: float) -> ServedDraft:
    return ServedDraft(
        RatioSums(),
        tuple(row.tried),
        tuple(row.stood),
        at,
        by_output=tuple(map(PlaceSums, row.output_rounds, row.output_accepted)),
        by_context=tuple(map(PlaceSums, row.context_rounds, row.context_accepted)),
    )


def _pooled(left: tuple[PlaceSums, ...], right: tuple[PlaceSums, ...]) -> tuple[PlaceSums, ...]:
    pairs = zip_longest(left, right, fillvalue=PlaceSums())
    return tuple(PlaceSums(a.rounds + b.rounds, a.accepted + b.accepted) for a, b in pairs)


def _added(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    longest = max(len(left), len(right))
    padded = ((*counts, *[0] * (longest - len(counts))) for counts in (left, right))
    return tuple(a + b for a, b in zip(*padded, strict=True))
