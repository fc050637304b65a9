"""What an operator may do to a board by another way than the commands: with the token, and only what they saw."""

from dataclasses import replace

from .board_access import BoardAccess
from .errors import ConfigError
from .version import VersionState
from .weights_file import check_weights


def promote(access: BoardAccess, token: str, by: str, number: int, was: VersionState, why: str) -> int | None:
    """Make `number` live if it is `was`, and its weights are those that were published; return what is live then.

    Raises ConfigError while no token is set, OperatorRefused for another token, BoardConflict when the version is not
    `was`, and WeightsRefused. Blocks on the disk.
    """
    board = _with_token(access, token).board_for(by, f"promote {number}")
    check_weights(board.read(), number)
    board.move(number, VersionState.LIVE, by, why, was=was)
    return board.read().live


def roll_back(access: BoardAccess, token: str, by: str, number: int, was: VersionState, why: str) -> int | None:
    """End `number`, live or canary, if it is `was`; return what is live then. Raises as promote does."""
    board = _with_token(access, token).board_for(by, f"rollback {number}")
    return board.roll_back(by, why, number, was).live


def _with_token(access: BoardAccess, token: str) -> BoardAccess:
    """Without a token on the board, everybody who reaches the page would be the operator."""
    if all(entry.refused for entry in access.auth.history()):
        raise ConfigError(
            f"operator token: got none set for {access.speculator}, expected one; set it with `paceline token set`, or "
            "use `paceline promote` and `paceline rollback`"
        )
    return replace(access, token=token)
