"""Alarms of a speculator, those that its members report and those that only a reader can raise."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from ..buffer.board.member_status import MemberStatus
from ..buffer.board.version import VersionState
from ..buffer.plain_text import utc_time
from ..policies.guard import Alarm
from ..policies.readings.reader_alarms import (
    drafts_apart,
    learner_left,
    learner_stalled,
    member_silent,
    name_taken,
)
from ..policies.verdict_words import alarm_sentence
from .cells import cell
from .snapshot import REPLICA, Snapshot, has_ended

#: Who raises the alarms that no member can raise.
READER = "(reader)"
#: What a version has become whose last change says that replicas were to draft with another one.
_DRAFTED = frozenset((VersionState.LIVE, VersionState.RETIRED, VersionState.ROLLED_BACK))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmLine:
    """One alarm as a member last reported it, or as a reader found it."""

    member: str
    name: str
    figures: Mapping[str, float | str]  # what it was raised on
    action: str  # what was done about it, or should be
    version: int | None = None  # the one that drafted; None where the alarm is not about a version
    at: float | None = None  # unix seconds; None: it is active

    @property
    def detail(self) -> str:
        """One sentence with the figures."""
        return alarm_sentence(self.name, self.figures)

    def as_json(self) -> dict[str, object]:
        """As JSON values."""
        named = {"member": self.member, "alarm": self.name, "active": self.at is None, "at": self.at}
        return {**named, "version": self.version, "action": self.action, "detail": self.detail}


def standing_and_recent(seen: Snapshot) -> list[AlarmLine]:
    """Those of the readers first, then by member. What a silent member reported as active ended when it fell silent."""
    reported = [line for member, one in sorted(seen.members.items()) for line in _reported(member, one.said)]
    present = seen.present()
    return [
        *_of_reader(seen),
        *(line if line.at is not None or line.member in present else _past(line, seen) for line in reported),
    ]


def alarms_table(lines: Sequence[AlarmLine]) -> Table:
    """One row per alarm, active ones in red."""
    table = Table(title="alarms", title_justify="left", expand=False)
    for heading in ("member", "alarm", "version", "since", "action", "detail"):
        table.add_column(heading, overflow="fold")
    for line in lines:
        version = "" if line.version is None else str(line.version)
        since = "active" if line.at is None else utc_time(line.at)
        cells = (line.member, line.name, version, since, line.action, line.detail)
        table.add_row(*map(cell, cells), style="red" if line.at is None else None)
    return table


def _of_reader(seen: Snapshot) -> Iterator[AlarmLine]:
    for member, one in sorted(seen.members.items()):
        if has_ended(one):
            continue
        if left := one.said.left:
            yield from _raised(member, learner_left(left, seen.unseen_s(member)))
        else:
            yield from _raised(member, member_silent(seen.unseen_s(member), is_alive=one.is_alive))
    present = seen.present()
    for member, one in present.items():
        if stalled := one.said.stalled:
            yield from _raised(member, learner_stalled(stalled))
        wanted = one.said.wanted
        if wanted in present:
            setting = "PACELINE_REPLICA" if member.startswith(REPLICA) else "PACELINE_LEARNER"
            yield from _raised(member, name_taken(wanted, present[wanted].said.process.host, setting))
    yield from _raised(READER, _apart(seen))


def _raised(member: str, alarm: Alarm | None) -> Iterator[AlarmLine]:
    if alarm is not None:
        yield AlarmLine(member=member, name=alarm.name.value, figures=alarm.figures, action=alarm.action.value)


def _apart(seen: Snapshot) -> Alarm | None:
    state = seen.state
    moved_at = max((row.changed_at for row in state.rows.values() if row.state in _DRAFTED), default=-math.inf)
    return drafts_apart(seen.drafting(), state.live, for_s=seen.at - moved_at, is_canary=state.canary is not None)


def _past(line: AlarmLine, seen: Snapshot) -> AlarmLine:
    at = seen.members[line.member].last_seen_at
    return AlarmLine(
        member=line.member, name=line.name, figures=line.figures, action=line.action, version=line.version, at=at
    )


def _reported(member: str, said: MemberStatus) -> Iterator[AlarmLine]:
    for alarm in (*said.standing_alarms, *said.alarms):
        yield AlarmLine(
            member=member,
            name=alarm.name,
            figures=alarm.figures,
            action=alarm.action,
            version=alarm.version,
            at=alarm.at,
        )
