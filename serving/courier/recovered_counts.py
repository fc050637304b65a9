"""Recovers the trace counts of this replica's previous server after both of its processes were killed."""

import logging
from typing import Annotated

import msgspec

from ...buffer.base import VersionBoard
from ...buffer.errors import DecodeError
from ..wire.counts import CaptureCounts, DropReason

log = logging.getLogger(__name__)

#: A larger count cannot be one, and JSON does not carry it.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _ReportedCounts(msgspec.Struct):
    """The part of a replica's status that says where its captured traces went."""

    captured: _Count = 0
    delivered: _Count = 0
    dropped: dict[str, _Count] = {}
    rounds: _Count = 0
    payload_bytes: _Count = 0
    labels_refused: _Count = 0

    def __post_init__(self) -> None:
        ended = self.delivered + sum(self.dropped.values())
        if ended > self.captured:
            raise ValueError(f"got {ended} traces delivered or dropped, expected at most the {self.captured} captured")


def adopt_last_counts(board: VersionBoard, member: str, counts: CaptureCounts) -> None:
    """Continue `counts` from the last status of `member`, what its server held counted as dropped; done once.

    Without it, traces lost when whole process trees are killed would not be counted. Call before the first beat, which
    replaces that status. Nothing is left to do for a courier that continues the counts of another one of the same
    server. A status that makes no sense is ignored, with a warning. Raises BufferUnavailable; then call again.
    """
    if counts.has_predecessor:
        return
    try:
        reported = msgspec.convert(dict(board.last_status(member)), _ReportedCounts)
        counts.resume(msgspec.to_builtins(reported), 0, DropReason.SERVER_DIED)
    except (DecodeError, msgspec.ValidationError) as fault:  # those of __post_init__ too
        log.warning("paceline: counts start at zero; the last status of %s is unreadable: %s", member, fault)
    counts.has_predecessor = True
