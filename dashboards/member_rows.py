"""One row per member of the last seven days: whether it is there, what runs there, and how far off its clock is."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from rich.table import Table

from ..buffer.board.member_board import MemberSeen
from ..buffer.board.member_status import MemberStatus, WorkSaid
from ..policies.readings.definitions import Reading
from ..policies.verdict_words import lead
from .cells import ago, cell
from .snapshot import Snapshot, has_ended

#: A member whose clock is further off than this shows wrong ages and may expire traces too soon.
CLOCK_LIMIT_S = 2.0


class Presence(StrEnum):
    """Whether a member is there."""

    ALIVE = "alive"
    SILENT = "silent"
    ENDED = "ended"  # it said so
    LEFT = "left"  # it said so, and that it did by itself


_STYLES = {Presence.ALIVE: None, Presence.SILENT: "red", Presence.ENDED: "dim", Presence.LEFT: "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """One member; what it does not say is None, or empty."""

    member: str
    presence: Presence
    unseen_s: float
    draft: int | None
    paceline: str
    sglang: str
    host: str
    clock_ahead_s: float | None  # of Redis' clock, when it beat last
    doing: str

    def as_json(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self)


def member_rows(
    seen: Snapshot, silent: frozenset[str], lengths: Mapping[str, Reading] = MappingProxyType({})
) -> list[MemberRow]:
    """All members by name; `silent` holds those for which the alarm of that name is raised.

    `lengths` holds the accept length of members that serve.
    """
    rows = [_row(name, one, seen, is_silent=name in silent) for name, one in sorted(seen.members.items())]
    return [replace(row, doing=_serving(row.doing, lengths.get(row.member))) for row in rows]


def members_table(rows: Sequence[MemberRow]) -> Table:
    """A table of `rows`, silent members in red."""
    table = Table(title="members of the last 7 days", title_justify="left", expand=False)
    for heading in ("member", "state", "last seen", "draft", "paceline", "sglang", "host", "clock", "doing"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        draft = "" if row.draft is None else str(row.draft)
        seen = f"{ago(row.unseen_s)} ago"
        versions = row.paceline or "unknown", row.sglang
        cells = (row.member, row.presence.value, seen, draft, *versions, row.host, _clock(row), row.doing)
        table.add_row(*map(cell, cells), style=_STYLES[row.presence])
    return table


def clock_ahead_s(one: MemberSeen) -> float | None:
    """How far the member's clock was ahead of Redis' when it beat last, the way of the beat included."""
    at = one.said.at
    return None if at is None else at - one.last_seen_at


def _row(name: str, one: MemberSeen, seen: Snapshot, *, is_silent: bool) -> MemberRow:
    is_there = Presence.SILENT if is_silent else Presence.ALIVE
    presence = Presence.ENDED if has_ended(one) else Presence.LEFT if one.said.left else is_there
    process = one.said.process
    doing = one.said.unreadable or _doing(one.said)
    return MemberRow(
        member=name,
        presence=presence,
        unseen_s=seen.unseen_s(name),
        draft=seen.drafts_with(name),
        paceline=process.paceline,
        sglang=process.sglang,
        host=process.host,
        clock_ahead_s=clock_ahead_s(one),
        doing=f"at last: {doing}" if doing and presence is not Presence.ALIVE else doing,
    )


def _serving(doing: str, length: Reading | None) -> str:
    if length is None or length.value is None:
        return doing
    return ", ".join(filter(None, (doing, f"accept length {length.value:.2f}")))


def _doing(said: MemberStatus) -> str:
    if said.capture:
        why = said.capture_reason or said.buffer_error
        text = f"capture {said.capture}" + (f": {why}" if why else "")
        return text if said.has_draft else f"{text}, drafts without a model"
    trouble = said.left or said.stalled or said.fault
    why = trouble or _work(said.work) or lead(said.why)
    return f"{said.kind}: {why}" if said.kind and why else said.kind or why


def _work(work: WorkSaid | None) -> str:
    """How far a learner is in its learning round; empty between two."""
    if work is None or work.phase == "idle":
        return ""
    parts = [f"{work.phase} for {ago(work.phase_s)}"]
    if work.block is not None and work.blocks is not None:
        parts.append(f"block {work.block} of {work.blocks}")
    if work.step is not None and work.steps is not None:
        parts.append(f"step {work.step} of {work.steps}")
    return ", ".join(parts)


def _clock(row: MemberRow) -> str:
    ahead = row.clock_ahead_s
    if ahead is None:
        return "unknown"
    return "agrees" if abs(ahead) < CLOCK_LIMIT_S else f"{abs(ahead):.0f} s {'ahead' if ahead > 0 else 'late'}"
