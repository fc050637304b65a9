"""Says of a silent member that it has ended for good, where it could not say so itself."""

from .base import VersionBoard
from .counters import COUNTERS, ENDED
from .errors import ConfigError

#: Of the beat in its name: nobody is to count it among the living.
_TTL_S = 0.001


def say_ended(board: VersionBoard, member: str) -> None:
    """Have the board say that `member` has ended; what else its last status said stays.

    ConfigError when it is alive or was not seen within LAST_STATUS_S. Raises as the board's calls do.
    """
    members = board.members()
    if member not in members:
        known = ", ".join(sorted(members)) or "a member, and none was seen"
        raise ConfigError(f"member: got {member}, expected one of {known}")
    if members[member].is_alive:
        raise ConfigError(f"member {member}: got one that is alive, expected a silent one; stop it first")
    last = {name: value for name, value in members[member].status.items() if name != COUNTERS}
    board.beat(member, {**last, ENDED: True}, _TTL_S)
