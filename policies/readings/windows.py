"""A window of time over the histories of all members: what was counted in it, and by whom."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from ...buffer.board.counters import Counters, LearnerCounters
from .tables import PARTS, Table, Tables, buffer_of, difference, part_of, steps_of, tables_of, total

#: Histories should reach so much further back than the window: one entry before it says what the window begins from.
#: Of the older part of a history one entry a minute is kept.
BEFORE_S = 65.0
#: The window in so many equal spans of time, for intervals of what is counted by steps.
BLOCKS = 20


@dataclass(frozen=True, slots=True)
class Counted:
    """What one member counted of one part of Counters in the window."""

    tables: Tables
    began_at: float  # unix seconds of the entry that it is counted from
    at: float  # of the last entry
    seconds: float  # counted over, restarts left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What members counted between two times; made by `windowed`."""

    since_s: float
    until_s: float
    #: Part of Counters (PARTS) -> member -> what it counted. Members that do not count the part are absent.
    counted: Mapping[str, Mapping[str, Counted]]
    #: Learner -> what it saw of the buffer, over its own restarts; all of them see the same buffer.
    buffer: Mapping[str, Counted] = field(default_factory=dict)
    #: The last counters of each learner that came in the window, and when.
    learners: Mapping[str, tuple[float, LearnerCounters]] = field(default_factory=dict)
    #: Over BLOCKS spans of time in their order: the decode steps of all members.
    step_blocks: Sequence[Table] = ()
    #: Decode steps of all members since their boots, and when the last plain one was seen; None where none was.
    steps_since_boot: Table = field(default_factory=dict)
    plain_at: float | None = None

    def table(self, part: str, name: str) -> Table | None:
        """One table summed over the members that count it; None where no member does."""
        members = self.counted.get(part)
        return total(each.tables for each in members.values()).get(name, {}) if members else None

    def at(self, part: str) -> float | None:
        """Unix seconds of the newest evidence of a part; None without any."""
        return max((each.at for each in self.counted.get(part, {}).values()), default=None)

    def elapsed_s(self, part: str) -> float:
        """From the first entry that a part is counted from to its last, whichever member's these are."""
        members = self.counted.get(part, {}).values()
        return max((m.at for m in members), default=0.0) - min((m.began_at for m in members), default=0.0)

    def member_seconds(self, part: str) -> float:
        """Seconds counted over, added up over the members."""
        return sum(each.seconds for each in self.counted.get(part, {}).values())


def windowed(histories: Mapping[str, Sequence[Counters]], since_s: float, until_s: float) -> Window:
    """What the members counted between two unix times; `histories` by member, each oldest first.

    A member is counted from its last entry at or before `since_s`; from 0 where it started later; and from its first
    entry where neither is known: so let histories begin BEFORE_S earlier. Members without an entry are
    nowhere in it.
    """
    until = {name: [each for each in history if each.at <= until_s] for name, history in histories.items()}
    counted: dict[str, dict[str, Counted]] = {part: {} for part in PARTS}
    for name, history in until.items():
        for part in PARTS:
            found = _counted(history, part, since_s)
            if found is not None:
                counted[part][name] = found
    buffer = {name: each for name, history in until.items() if (each := _buffer_counted(history, since_s))}
    learners = {name: last for name, history in until.items() if (last := _last_learner(history, since_s))}
    plain_at = max(filter(None, map(_plain_at, until.values())), default=None)
    so_far = total(_steps_since_boot(history) for history in until.values()).get("steps", {})
    blocks = _step_blocks(until, since_s, until_s)
    return Window(
        since_s=since_s,
        until_s=until_s,
        counted=counted,
        buffer=buffer,
        learners=learners,
        step_blocks=blocks,
        steps_since_boot=so_far,
        plain_at=plain_at,
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """What a boot counted from one entry to another."""

    tables: Tables
    began_at: float
    at: float


def _counted(history: Sequence[Counters], part: str, since_s: float) -> Counted | None:
    spans = list(_spans(history, part, since_s))
    if not spans:
        return None
    seconds = sum(span.at - span.began_at for span in spans)
    if seconds <= 0.0:  # one entry alone says nothing of what came before it
        return None
    return Counted(total(span.tables for span in spans), spans[0].began_at, spans[-1].at, seconds)


def _spans(history: Sequence[Counters], part: str, since_s: float) -> Iterator[_Span]:
    """One span per boot that has an entry after `since_s`."""
    ended_at: float | None = None  # when the boot before was last heard of
    for _, boot in groupby(history, lambda each: each.boot):
        entries = [each for each in boot if part_of(each, part) is not None]
        if entries and entries[-1].at > since_s:
            yield _span(entries, part, since_s, ended_at)
        ended_at = entries[-1].at if entries else ended_at


def _span(entries: Sequence[Counters], part: str, since_s: float, ended_at: float | None) -> _Span:
    """Count the entries of one boot, step by step, since a cell that is pooled with others loses its name."""
    before = [each for each in entries if each.at <= since_s][-1:]
    inside = [each for each in entries if each.at > since_s]
    started_at = _started_at(inside[0], since_s, ended_at)
    if not before and started_at is None:
        before = inside[:1]
        inside = inside[1:]
    counted = [tables_of(part_of(each, part)) for each in _where_names_change([*before, *inside], part)]
    from_zero = [] if before else counted[:1]
    steps = [*from_zero, *(difference(later, earlier) for earlier, later in pairwise(counted))]
    began_at = before[0].at if before else started_at or since_s
    return _Span(total(steps), began_at, entries[-1].at)


def _started_at(first: Counters, since_s: float, ended_at: float | None) -> float | None:
    """When a boot began to count, where that was in the window; None where it is not known."""
    if first.started_at is not None:
        return min(first.started_at, first.at) if first.started_at >= since_s else None
    return max(since_s, ended_at) if ended_at is not None else None


def _where_names_change(entries: Sequence[Counters], part: str) -> list[Counters]:
    """The first and the last entry, and those around a change of the cells that are told apart."""
    if part != "served":
        return [entries[0], *entries[1:][-1:]]
    names = [_names(each) for each in entries]
    changes = {place for place in range(1, len(entries)) if names[place] != names[place - 1]}
    kept = sorted({0, len(entries) - 1, *changes, *(place - 1 for place in changes)})
    return [entries[place] for place in kept]


def _names(counters: Counters) -> set[tuple[int, str, str]]:
    cells = counters.served.cells if counters.served else []
    return {(cell.draft, cell.label, cell.kind) for cell in cells}


def _buffer_counted(history: Sequence[Counters], since_s: float) -> Counted | None:
    seen = [(each.at, each.learner) for each in history if each.learner is not None]
    inside = [*[row for row in seen if row[0] <= since_s][-1:], *(row for row in seen if row[0] > since_s)]
    if len(inside) < 2 or inside[-1][0] <= since_s:
        return None
    (began_at, first) = inside[0]
    (at, last) = inside[-1]
    return Counted(difference(buffer_of(last), buffer_of(first)), began_at, at, at - began_at)


def _last_learner(history: Sequence[Counters], since_s: float) -> tuple[float, LearnerCounters] | None:
    found = [(each.at, each.learner) for each in history if each.learner is not None and each.at > since_s]
    return found[-1] if found else None


def _plain_at(history: Sequence[Counters]) -> float | None:
    """When plain decoding was last seen to go on; that of the first entry where all of it came before."""
    counts = [(each.at, _plain_steps(each)) for each in history if each.scheduler is not None]
    if not counts or not counts[-1][1]:
        return None
    grown = [later[0] for earlier, later in pairwise(counts) if later[1] > earlier[1]]
    return grown[-1] if grown else counts[0][0]


def _plain_steps(counters: Counters) -> int:
    cells = counters.scheduler.steps if counters.scheduler else []
    return sum(cell.steps for cell in cells if cell.draft_steps == 0)


def _steps_since_boot(history: Sequence[Counters]) -> Tables:
    """Decode steps since the last boot of one member."""
    parts = [each.scheduler for each in history if each.scheduler is not None]
    return {"steps": steps_of(parts[-1])} if parts else {}


def _step_blocks(histories: Mapping[str, Sequence[Counters]], since_s: float, until_s: float) -> list[Table]:
    """Decode steps of all members by equal spans of time; a step counts where the entry that reports it lies."""
    blocks: list[list[Tables]] = [[] for _ in range(BLOCKS)]
    for history in histories.values():
        last = {_block(each.at, since_s, until_s): each for each in history if each.scheduler is not None}
        for earlier, later in pairwise(last.values()):
            if earlier.boot == later.boot and earlier.scheduler is not None and later.scheduler is not None:
                steps = difference({"": steps_of(later.scheduler)}, {"": steps_of(earlier.scheduler)})
                blocks[_block(later.at, since_s, until_s)].append(steps)
    return [total(block).get("", {}) for block in blocks]


def _block(at: float, since_s: float, until_s: float) -> int:
    """Place of the span that `at` lies in; -1 for what came before the window."""
    return -1 if at <= since_s else min(int((at - since_s) / (until_s - since_s) * BLOCKS), BLOCKS - 1)
