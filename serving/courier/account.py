"""A replica's account: its name on the board, and the trace counts that its servers kept under that name."""

import logging
from collections.abc import Mapping
from typing import Annotated

import msgspec

from ...buffer.board.member_name import MemberName
from ...buffer.board.version_board import VersionBoard
from ...buffer.errors import DecodeError
from ..wire.counts import CaptureCounts, DropReason

log = logging.getLogger(__name__)

#: A status goes out every BEAT_S and expires after BEAT_TTL_S, so that a dead replica disappears from the board.
BEAT_S = 1.0
BEAT_TTL_S = 10.0

#: A larger count cannot be one, and JSON does not carry it.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _ReportedCounts(msgspec.Struct, kw_only=True):
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


class ReplicaAccount:
    """Keeps `counts` under this replica's name, and apart from those of a server that beats under it already.

    For the courier's thread. Any call may raise BufferUnavailable; then call again.
    """

    def __init__(self, board: VersionBoard, name: MemberName, counts: CaptureCounts) -> None:
        self._board = board
        self._name = name
        self._counts = counts
        self._told = counts.status()  # by the last beat

    @property
    def member(self) -> str:
        """Empty until it is known."""
        return self._name.held

    def take_name(self, *, may_move: bool = True, may_wait: bool = True) -> None:
        """Find out the name, or whether it is still this one's; MemberName says when it changes."""
        had = self._name.held
        if self._name.take(BEAT_TTL_S, may_move=may_move, may_wait=may_wait) and had:
            self._counts.has_predecessor = False  # another server's counts stand under the new name

    def adopt(self) -> None:
        """Continue the counts of a dead server of this name; before the first beat under it, which replaces them."""
        adopt_last_counts(self._board, self.member, self._counts)

    def status(self) -> dict[str, object]:
        """Of the name, for every beat."""
        return self._name.status()

    def release(self) -> None:
        """Let the next server have the name at once: this one has beaten for the last time."""
        self._name.release()

    def beat(self, status: Mapping[str, object]) -> None:
        """Send a status."""
        self._board.beat(self.member, status, BEAT_TTL_S)
        if not self._name.settle():
            self._counts.hand_over(self._told)
        self._told = self._counts.status()


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
