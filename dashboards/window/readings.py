"""Views of all speculators, read at most once a second each, however many tabs look on."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...buffer.board.version_board import VersionBoard
from ...buffer.errors import BoardConflict, BufferUnavailable, DecodeError
from .look import BoardReader, Look

#: Between two readings of one board.
READ_EVERY_S = 1.0
#: Between two walks over the keys of Redis for the names of speculators.
NAMES_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one reading of a board found. Without a look, `trouble` says why, and since when there has been none."""

    number: int  # grows by one with every reading
    at: float  # unix seconds by this machine's clock
    look: Look | None
    trouble: str = ""
    since: float = 0.0  # unix seconds of the last good reading, or of the first try


@dataclass(slots=True, kw_only=True)
class _Board:
    speculator: str
    reader: BoardReader | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    view: View | None = None
    is_stale: bool = False


@dataclass(slots=True, kw_only=True)
class Readings:
    """Shared by all tabs; for one event loop. Reading blocks a thread of its own, never the loop."""

    list_names: Callable[[], list[str]]  # of the speculators in Redis; may block and raise BufferUnavailable
    open_board: Callable[[str], VersionBoard]  # may block and raise BufferUnavailable
    clock: Callable[[], float] = time.time
    is_closed: bool = False
    _boards: dict[str, _Board] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    _named_at: float = float("-inf")
    _why_no_names: str = ""

    async def names(self) -> list[str]:
        """All speculators; those known last while Redis does not answer."""
        now = self.clock()
        if now - self._named_at >= (NAMES_EVERY_S if self._names else READ_EVERY_S):
            self._named_at = now
            try:
                self._names = await asyncio.to_thread(self.list_names)
                self._why_no_names = "no speculator is known yet: start a server with paceline"
            except BufferUnavailable as fault:
                self._why_no_names = str(fault)
        return self._names

    async def why_unknown(self, speculator: str) -> str:
        """Why there is no board of that name; empty when there is one."""
        names = await self.names()
        if speculator in names:
            return ""
        return f"speculator: got {speculator!r}, expected one of {names}" if names else self._why_no_names

    async def current(self, speculator: str) -> View:
        """The newest view, younger than READ_EVERY_S. Never raises: a board that cannot be read is a view too."""
        board = self._boards.setdefault(speculator, _Board(speculator=speculator))
        async with board.lock:
            if board.view is None or board.is_stale or self.clock() - board.view.at >= READ_EVERY_S:
                board.is_stale = False
                board.view = await asyncio.to_thread(self._read, board)
        return board.view

    def close(self) -> None:
        """Let every stream end: nobody is served any more."""
        self.is_closed = True

    def forget(self) -> None:
        """Read again when somebody asks next: a board was changed from here."""
        for board in self._boards.values():
            board.is_stale = True

    def _read(self, board: _Board) -> View:
        before = board.view
        now = self.clock()
        number = 1 if before is None else before.number + 1
        try:
            if board.reader is None:
                board.reader = BoardReader(speculator=board.speculator, board=self.open_board(board.speculator))
            return View(number=number, at=now, look=board.reader.look())
        except (BufferUnavailable, DecodeError, BoardConflict) as fault:
            since = now if before is None else before.at if before.look else before.since
            return View(number=number, at=now, look=None, trouble=str(fault), since=since)
