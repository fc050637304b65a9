"""VersionBoard: the contract of what learners, replicas and operators write about versions, and read of each other.

The product runs on Redis (redis_board.py). Every call may raise BufferUnavailable; none retries by itself.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from .lease import Lease
from .member_board import MemberBoard
from .reason import Why
from .version import BoardEvent, BoardState, DraftVersion, VersionState


class VersionBoard(MemberBoard, Protocol):
    """An append-only list of version events, with members and leases beside it."""

    def next_number(self) -> int:
        """Reserve a version number: 0 first, never twice."""
        ...

    def register(self, version: DraftVersion, by: str, why: Why) -> BoardEvent:
        """Append the candidate event of a new version. BoardConflict when the number is taken."""
        ...

    def move(
        self, number: int, state: VersionState, by: str, why: Why, *, replica: str = "", was: VersionState | None = None
    ) -> BoardEvent:
        """Append one change of state; a canary is one on `replica` alone.

        BoardConflict, and no change, when the version's state does not allow it or is not `was`, or when another
        version is canary.
        """
        ...

    def roll_back(
        self, by: str, why: Why, number: int | None = None, was: VersionState | None = None, *, to: int | None = None
    ) -> BoardState:
        """Undo the newest promotion in one step: the canary to rolled_back; without one, live too, previous to live.

        BoardConflict, and no change, when there is no canary and no previous version, or when `number` is given and
        is neither live nor canary, or not in the state `was`: refusing one version must not take another one down.
        A version brought back to live ends the canary of another, as every version that goes live does.

        With `to`, live versions are rolled back, all in one step, until `to` is live: the live one and those that were
        live since `to` was. BoardConflict, and no change, when `to` is no version that rollbacks would return to.
        """
        ...

    def read(self) -> BoardState:
        """Fold all events."""
        ...

    def events(self, after_id: str = "", wait_s: float = 0.0) -> list[BoardEvent]:
        """Events after `after_id`, oldest first; all of them with an empty id.

        When there are none, blocks up to `wait_s`, at most MAX_WAIT_S, until there is one. BoardConflict when the board
        does not have `after_id` any more: it lost data, and whoever knew that event reads it from the beginning.
        """
        ...

    def lease(self, name: str, ttl_s: float) -> AbstractContextManager[Lease]:
        """Hold `name` alone for the body: a true Lease when it was free, a false one (at once) when it is held.

        The body may take longer than `ttl_s`: the lease is renewed while it runs. A holder that dies frees the name
        after `ttl_s`; one that could not renew for that long (suspended, cut off) has lost it, and Lease.is_held says
        so. A lost lease ends quietly and leaves the next holder's alone.
        """
        ...
