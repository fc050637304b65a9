"""What the last swap did, and whether the loop loses anything: answers from the statuses of replicas."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..buffer.board.member_board import MemberSeen
from ..buffer.finding import Finding, Level
from .cells import ago, length
from .headline import nobody_learns, nobody_serves
from .served import WINDOW_S, Served
from .snapshot import REPLICA, Snapshot, has_ended

#: Share of the captured traces whose loss is more than an accident.
LOST_SHARE = 0.01
#: Reasons to drop a trace that held nothing: an answer of one token has no verify round.
HARMLESS = frozenset(("no_rounds",))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapSeen:
    """One swap as a replica reported it."""

    replica: str
    number: int
    before: int | None
    commit_ms: float
    running: int | None  # requests in flight; None: not known
    at: float


def last_swap(seen: Snapshot, lengths: Mapping[int, float | None]) -> Finding:
    """The newest swap of any replica; `lengths` holds the accept length that each draft served."""
    swap = max(swaps(seen), key=lambda one: one.at, default=None)
    away = nobody_serves(seen)
    if swap is None:
        text = away or "none since the servers started"
        return Finding("last swap", Level.UNKNOWN if away else Level.NOTE, text)
    before, after = (None if number is None else lengths.get(number) for number in (swap.before, swap.number))
    known = {None: "who waited is unknown", 0: "nobody waited", 1: "1 request waited"}
    waited = known.get(swap.running, f"{swap.running} requests waited")
    text = (
        f"{'unknown' if swap.before is None else swap.before} -> {swap.number}, {swap.commit_ms:.1f} ms, {waited}, "
        f"accept length {length(before)} -> {length(after)}, {ago(seen.at - swap.at)} ago on {swap.replica}"
    )
    return Finding("last swap", Level.UNKNOWN if away else Level.OK, f"{away}; {text}" if away else text)


def swaps(seen: Snapshot) -> Iterator[SwapSeen]:
    """Every swap that a replica reports, by replica, oldest first."""
    for member, one in sorted(seen.members.items()):
        before: int | None = None
        for swap in one.said.swaps:
            before = before if swap.before is None else swap.before
            yield SwapSeen(
                replica=member,
                number=swap.number,
                before=before,
                commit_ms=swap.commit_ms,
                running=swap.running,
                at=swap.at,
            )
            before = swap.number


def loop(seen: Snapshot, served: Served) -> Finding:
    """Where the captured traces of all replicas went, as they last said, and whether anybody learns from them."""
    replicas = {name: one for name, one in seen.members.items() if name.startswith(REPLICA) and not has_ended(one)}
    away = nobody_serves(seen)
    if not replicas:
        return Finding("loop", Level.UNKNOWN, away)
    books = _books(replicas.values())
    trouble = [*_trouble(replicas), *_losses(served)]
    unlearnt = nobody_learns(seen)
    text = "; ".join(filter(None, (*trouble, unlearnt, books.sentence())))
    if away:
        return Finding("loop", Level.UNKNOWN, f"{away}; then: {text}")
    level = Level.WRONG if trouble else books.level()
    return Finding("loop", Level.NOTE if unlearnt and level is Level.OK else level, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """captured == delivered + dropped + open + queued, when they are right."""

    captured: int
    delivered: int
    dropped: Mapping[str, int]
    open: int
    queued: int

    @property
    def missing(self) -> int:
        """Captured traces that are in no other count."""
        return self.captured - self.delivered - sum(self.dropped.values()) - self.open - self.queued

    @property
    def lost(self) -> int:
        """Traces that were dropped though they held something to learn from."""
        return sum(count for reason, count in self.dropped.items() if reason not in HARMLESS)

    def level(self) -> Level:
        """WRONG when they do not add up."""
        if self.missing:
            return Level.WRONG
        return Level.NOTE if self.lost else Level.OK

    def sentence(self) -> str:
        """All counts, and what was dropped by reason."""
        parts = f"{self.delivered} delivered + {sum(self.dropped.values())} dropped + {self.open} open"
        parts = f"{parts} + {self.queued} queued"
        if self.missing:
            return f"{self.captured} captured are not {parts}: {self.missing} unaccounted for"
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items()) if count)
        lost = f"{self.lost} lost" if self.lost else "nothing lost"
        return f"{self.captured} captured = {parts}: {lost}{f' (dropped by {reasons})' if reasons else ''}"


def _books(replicas: Iterable[MemberSeen]) -> Books:
    """Add up what the replicas said; those that said nothing, or nothing readable, are not in it."""
    statuses = [one.said for one in replicas]
    dropped: Counter[str] = Counter()
    for status in statuses:
        dropped.update(status.account.dropped)
    return Books(
        captured=sum(status.account.captured for status in statuses),
        delivered=sum(status.account.delivered for status in statuses),
        dropped=dropped,
        open=sum(status.open or 0 for status in statuses),
        queued=sum(status.queued or 0 for status in statuses),
    )


def _losses(served: Served) -> Iterator[str]:
    """More than LOST_SHARE of what was captured lately; what was lost before that is in the books."""
    lost = sum(one.value or 0.0 for reason, one in served.dropped.items() if reason not in HARMLESS)
    captured = served.captured.value or 0.0
    if lost > captured * LOST_SHARE:
        yield f"{lost:.0f} of {captured:.0f} traces were lost in the last {ago(WINDOW_S)}"


def _trouble(replicas: Mapping[str, MemberSeen]) -> Iterator[str]:
    for name, one in sorted(replicas.items()):
        if one.said.unreadable:
            yield f"{name} is not counted: {one.said.unreadable}"
        if one.said.capture == "off":
            yield f"{name} captures nothing: {one.said.capture_reason or 'no reason given'}"
        if one.said.buffer_error:
            yield f"{name} cannot deliver: {one.said.buffer_error}"
