"""The contract of a board's part that is about members: their names, statuses and histories."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .member_history import History
from .member_status import MemberStatus

#: How long a board remembers a member's last status: a server may be down for days before it is started again.
LAST_STATUS_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeen:
    """A member as the board last heard of it."""

    said: MemberStatus  # its last status
    last_seen_at: float  # unix seconds of its last beat, by the board's clock: compare with VersionBoard.now
    is_alive: bool  # whether its heartbeat has not expired


class MemberBoard(Protocol):
    """Heartbeats of a speculator's members, and what of them outlives a heartbeat."""

    def claim(self, member: str, boot: str, ttl_s: float) -> float | None:
        """Let the process `boot` alone have the name `member` until `ttl_s` seconds after its last claim; None.

        Where another process has it, nothing changes, and this is when that beat last, unix seconds by the board's
        clock; 0 where it did not beat yet.
        """
        ...

    def leave(self, member: str, boot: str) -> bool:
        """Forget the member wholly, since its process `boot` goes on under another name.

        False, and no change, where the last status is of another process (its `boot`), which took the name.
        """
        ...

    def beat(self, member: str, status: MemberStatus, ttl_s: float) -> None:
        """Publish a member's status; its heartbeat expires `ttl_s` seconds after its last beat.

        Counters in it are kept in the member's history too, unless a beat of the last few seconds is
        there already.
        """
        ...

    def heartbeats(self) -> Mapping[str, MemberStatus]:
        """Member -> last status, of the members whose heartbeat has not expired; `unreadable` where it is spoilt."""
        ...

    def last_status(self, member: str) -> MemberStatus:
        """A member's last status, its heartbeat expired or not, for LAST_STATUS_S; without it nothing is known."""
        ...

    def members(self) -> Mapping[str, MemberSeen]:
        """Every member that beat within the last LAST_STATUS_S, the silent ones too."""
        ...

    def history(self, member: str, since_s: float = 0.0) -> History:
        """A member's counters of at or after unix second `since_s`, oldest first; empty for one that sends none.

        At most one entry per HISTORY_EVERY_S of the last HISTORY_FINE_S, and one a minute of those of HISTORY_S.
        """
        ...

    def now(self) -> float:
        """Unix seconds by the clock that dates members and histories; on Redis its own."""
        ...
