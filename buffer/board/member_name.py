"""The name under which one process beats, so that no two of them share an account: each has a name of its own."""

import logging
from collections.abc import Iterator
from itertools import chain, count, takewhile

from .member_status import MemberStatus
from .version_board import VersionBoard

log = logging.getLogger(__name__)


class MemberName:
    """The member name that was given to a process; while another one beats under it, NAME~2, NAME~3 and so on.

    The name may be that of a process which died a moment ago, such as the one that this one takes the place of: until
    that is heard of again, or its claim expires, this process has no name. Once it has one, an earlier one is its own
    only after somebody said that its holder ends: else nobody would see that a process died. For one thread at a time.
    """

    def __init__(self, board: VersionBoard, wanted: str, boot: str, held: str = "") -> None:
        """`held`: the name of the process before, where this one goes on for it as the same `boot`."""
        self._board = board
        self._wanted = wanted
        self._boot = boot
        self.held = held  # empty until the board has given one
        self._before = ""  # not left yet
        self._heard: dict[str, float] = {}  # name -> when its holder had beaten, when this process looked first

    def take(self, ttl_s: float, *, may_move: bool = True, may_wait: bool = True) -> bool:
        """Take the first free name, for `ttl_s`; whether that is another one than before. May raise BufferUnavailable.

        Call before every beat: a process that was suspended may have lost its name. It does not change to an earlier
        one unless it `may_move`, and takes another one at once unless it `may_wait`.
        """
        names: Iterator[str] = (f"{self._wanted}~{place}" if place > 1 else self._wanted for place in count(1))
        if self.held:
            earlier = takewhile(self.held.__ne__, names)
            ended = (name for name in earlier if may_move and self._board.last_status(name).ended)
            names = chain(ended, [self.held], names)
        while (heard := self._board.claim(name := next(names), self._boot, ttl_s)) is not None:
            is_alive = self._heard.setdefault(name, heard) != heard
            if may_wait and not (self.held or is_alive):
                return False
        return self._change(name)

    def sign(self, said: MemberStatus) -> None:
        """Say in `said`, before every beat under this name, whose it is."""
        said.boot = self._boot
        said.wanted = "" if self.held == self._wanted else self._wanted

    def settle(self) -> bool:
        """Leave the name before, once a beat has gone out under this one; False: another process has taken that."""
        is_left = not self._before or self._board.leave(self._before, self._boot)
        self._before = ""
        return is_left

    def release(self) -> None:
        """Let others have the name at once, after the last beat. May raise BufferUnavailable."""
        if self.held:
            self._board.claim(self.held, self._boot, 0.0)

    def _change(self, name: str) -> bool:
        if name == self.held:
            return False
        if name != self._wanted:
            log.warning("paceline: another process is called %s already; this one is called %s", self._wanted, name)
        self._before = self.held
        self.held = name
        return True
