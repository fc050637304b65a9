"""A replica's account: its name on the board, and the trace counts that its servers kept under that name."""

import logging

from ...buffer.board.member_name import MemberName
from ...buffer.board.member_status import MemberStatus, TracesSaid
from ...buffer.board.version_board import VersionBoard
from ..wire.counts import CaptureCounts, DropReason

log = logging.getLogger(__name__)

#: A status goes out every BEAT_S and expires after BEAT_TTL_S, so that a dead replica disappears from the board.
BEAT_S = 1.0
BEAT_TTL_S = 10.0

#: A larger count cannot be one, and JSON does not carry it.
_MAX_COUNT = 2**53


class ReplicaAccount:
    """Keeps `counts` under this replica's name, and apart from those of a server that beats under it already.

    For the courier's thread. Any call may raise BufferUnavailable; then call again.
    """

    def __init__(self, board: VersionBoard, name: MemberName, counts: CaptureCounts) -> None:
        self._board = board
        self._name = name
        self._counts = counts
        self._told = counts.told()  # by the last beat

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

    def sign(self, said: MemberStatus) -> None:
        """Say whose it is, before every beat."""
        self._name.sign(said)

    def release(self) -> None:
        """Let the next server have the name at once: this one has beaten for the last time."""
        self._name.release()

    def beat(self, said: MemberStatus) -> None:
        """Send a status."""
        self._board.beat(self.member, said, BEAT_TTL_S)
        if not self._name.settle():
            self._counts.hand_over(self._told)
        self._told = self._counts.told()


def adopt_last_counts(board: VersionBoard, member: str, counts: CaptureCounts) -> None:
    """Continue `counts` from the last status of `member`, what its server held counted as dropped; done once.

    Without it, traces lost when whole process trees are killed would not be counted. Call before the first beat, which
    replaces that status. Nothing is left to do for a courier that continues the counts of another one of the same
    server. A status that makes no sense is ignored, with a warning. Raises BufferUnavailable; then call again.
    """
    if counts.has_predecessor:
        return
    said = board.last_status(member)
    before = said.account
    if fault := said.unreadable or _why_senseless(before):
        log.warning("paceline: counts start at zero; of the last status of %s: %s", member, fault)
    else:
        counts.resume(before, 0, DropReason.SERVER_DIED)
    counts.has_predecessor = True


def _why_senseless(told: TracesSaid) -> str:
    """Anybody may write to Redis. Empty for counts that a server may have told."""
    counts = (told.captured, told.delivered, told.rounds, told.payload_bytes, told.labels_refused)
    if wrong := [count for count in (*counts, *told.dropped.values()) if not 0 <= count <= _MAX_COUNT]:
        return f"got a count of {wrong[0]}, expected one of 0 to 2**53"
    ended = told.delivered + sum(told.dropped.values())
    if ended > told.captured:
        return f"got {ended} traces delivered or dropped, expected at most the {told.captured} captured"
    return ""
