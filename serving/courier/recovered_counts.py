"""What the server before this one, of the same replica, took along when it died with its courier."""

import logging
from typing import Annotated

import msgspec

from ...buffer.base import VersionBoard
from ...buffer.errors import DecodeError
from ..wire.counts import CaptureCounts, DropReason

log = logging.getLogger(__name__)

#: Counts beyond it are no counts, and JSON does not carry them.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _ReportedCounts(msgspec.Struct):
    """The part of a replica's reading that says where its captured traces went."""

    captured: _Count = 0
    delivered: _Count = 0
    dropped: dict[str, _Count] = {}
    rounds: _Count = 0
    payload_bytes: _Count = 0

    def __post_init__(self) -> None:
        ended = self.delivered + sum(self.dropped.values())
        if ended > self.captured:
            raise ValueError(f"got {ended} traces delivered or dropped, expected at most the {self.captured} captured")


def adopt_last_counts(board: VersionBoard, member: str, counts: CaptureCounts) -> None:
    """Let `counts` go on where the last server of that name ended, what it held counted as dropped; once in a life.

    Without it, whole process trees that are killed at once would lose traces that nobody counts. Call before the first
    beat, which takes the place of that server's. Counts of a courier that goes on for another one of the same server
    have it behind them. A reading that cannot be understood is passed over, with a warning. Raises BufferUnavailable;
    then call again.
    """
    if counts.has_predecessor:
        return
    try:
        books = msgspec.convert(dict(board.last_status(member)), _ReportedCounts)
        counts.resume(msgspec.to_builtins(books), 0, DropReason.SERVER_DIED)
    except (DecodeError, msgspec.ValidationError) as fault:  # those of __post_init__ too
        log.warning("paceline: counts begin anew; the last reading of %s is unreadable: %s", member, fault)
    counts.has_predecessor = True
