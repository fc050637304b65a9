"""Says of a silent member that it has ended for good, where it could not say so itself."""

import msgspec

from ..errors import ConfigError
from .member_board import MemberSeen
from .member_status import MemberStatus
from .version_board import VersionBoard

#: Of the beat in its name: nobody is to count it among the living.
_TTL_S = 0.001


def say_ended(board: VersionBoard, member: str) -> None:
    """Have the board say that `member` has ended; what else its last status said stays, and when it came.

    Changes nothing where it is said already. ConfigError when it is alive or was not seen within LAST_STATUS_S. Raises
    as the board's calls do.
    """
    members = board.members()
    if member not in members:
        known = f"one of {', '.join(sorted(members))}" if members else "a member of this speculator; none was ever seen"
        raise ConfigError(f"member: got {member}, expected {known}")
    if members[member].is_alive:
        raise ConfigError(f"member {member}: got one that is alive, expected a silent one; stop it first")
    last = members[member]
    if not last.said.ended:
        said = msgspec.structs.replace(
            last.said, counters=None, unreadable="", ended=True, beat_last_at=last.last_seen_at
        )
        board.beat(member, said, _TTL_S)


def member_seen(said: MemberStatus, beaten_at: float, *, is_alive: bool) -> MemberSeen:
    """The member whose last status this is, which came at `beaten_at`; what say_ended wrote is as old as its beat."""
    own = said.beat_last_at
    return MemberSeen(said=said, last_seen_at=beaten_at if own is None else own, is_alive=is_alive)
