"""What the server before this one, of the same replica, took along when it died with its courier."""

import logging
from typing import Annotated

import msgspec

from ..buffer.base import VersionBoard
from ..buffer.errors import DecodeError
from .counts import CaptureCounts, DropReason

log = logging.getLogger(__name__)

#: Counts beyond it are no counts, and JSON does not carry them.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Books(msgspec.Struct):
    """The part of a replica's reading that says where its captured traces went."""

    server: str = ""
    captured: _Count = 0
    delivered: _Count = 0
    dropped: dict[str, _Count] = {}
    rounds: _Count = 0
    payload_bytes: _Count = 0

    def __post_init__(self) -> None:
        ended = self.delivered + sum(self.dropped.values())
        if ended > self.captured:
            raise ValueError(f"got {ended} traces delivered or dropped, expected at most the {self.captured} captured")


class Predecessor:
    """Lets the counts of a replica go on where another server of that name ended; `server` names this one's life.

    Without it, whole process trees that are killed at once would lose traces that nobody counts. What the other
    server captured behind its last beat is known to nobody.
    """

    def __init__(self, board: VersionBoard, member: str, server: str) -> None:
        self._board, self._member, self._server = board, member, server
        self._is_over = False

    def hand_over(self, counts: CaptureCounts) -> None:
        """Add what the other server counted, and what it held as dropped; once, and before this server's first beat.

        Nothing when the last reading is of this server's own, whose couriers hand over to each other. A reading that
        cannot be understood is passed over, with a warning. Raises BufferUnavailable; then call again.
        """
        if self._is_over:
            return
        try:
            books = msgspec.convert(dict(self._board.last_reading(self._member)), _Books)
            if books.server not in {"", self._server}:
                counts.resume(msgspec.to_builtins(books), 0, DropReason.SERVER_DIED)
        except (DecodeError, msgspec.ValidationError) as fault:  # those of __post_init__ too
            log.warning("paceline: counts begin anew; the last reading of %s is unreadable: %s", self._member, fault)
        self._is_over = True

    def reading(self) -> dict[str, object]:
        """The name of this server's life, by which its own readings are known."""
        return {"server": self._server}
