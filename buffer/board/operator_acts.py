"""What an operator may do to a board by another way than the commands: with the token, and only to what they saw."""

from dataclasses import replace

import msgspec

from ..errors import ConfigError
from .board_access import BoardAccess
from .stored_weights import check_published
from .version import VersionState


class Order(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a person wants done with a version, and what they saw of it when they said so."""

    speculator: str
    number: int
    was: VersionState  # its state then; the board refuses the order when it is in another one
    why: str


def promote_as_seen(access: BoardAccess, order: Order, token: str, by: str) -> int | None:
    """Make the version live if its weights are those that were published; return what is live then.

    Raises ConfigError while no token is set, OperatorRefused for another token, BoardConflict when the version is not
    in the state that the order names, and WeightsRefused. Blocks on the disk, or on the store of versions.
    """
    board = _with_token(access, token).board_for(by, f"promote {order.number}")
    check_published(board.read(), order.number, access.store)
    board.move(order.number, VersionState.LIVE, by, order.why, was=order.was)
    return board.read().live


def roll_back_as_seen(access: BoardAccess, order: Order, token: str, by: str) -> int | None:
    """End the version, live or canary; return what is live then. Raises as promote_as_seen does."""
    board = _with_token(access, token).board_for(by, f"rollback {order.number}")
    return board.roll_back(by, order.why, order.number, order.was).live


def record_unheard(access: BoardAccess, acts: int, by: str) -> None:
    """Put on record that so many acts were refused unheard after wrong tokens; nothing where no token is set.

    Raises BufferUnavailable.
    """
    access.auth.record_unheard(by, acts, "too many wrong tokens just before")


def _with_token(access: BoardAccess, token: str) -> BoardAccess:
    """Without a token on the board, everybody who reaches the page would be the operator."""
    if all(entry.refused for entry in access.auth.history()):
        raise ConfigError(
            f"operator token: got none set for {access.speculator}, expected one; set it with `paceline token set`, or "
            "use `paceline promote` and `paceline rollback`"
        )
    return replace(access, token=token)
