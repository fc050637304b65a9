"""Says of a member that it has ended on purpose: by its own last beat, or for one that could not say so itself."""

from .base import ENDED, VersionBoard
from .counters import COUNTERS
from .errors import ConfigError

#: Of that beat: nobody is to count it among the living.
_TTL_S = 0.001


def last_beat(board: VersionBoard, member: str) -> None:
    """Have the board say that `member` ends; what else its status said stays. Raises as the board's calls do."""
    last = {name: value for name, value in board.last_status(member).items() if name != COUNTERS}
    board.beat(member, {**last, ENDED: True}, _TTL_S)


def say_ended(board: VersionBoard, member: str) -> None:
    """The same for a silent member, by somebody else. ConfigError when it is alive or was never seen."""
    members = board.members()
    if member not in members:
        raise ConfigError(
            f"member: got {member}, expected one of {', '.join(sorted(members)) or 'those that beat: none did'}"
        )
    if members[member].is_alive:
        raise ConfigError(f"member {member}: got one that is alive, expected a silent one; stop it first")
    last_beat(board, member)
