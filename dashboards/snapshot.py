"""A speculator at one moment: what its board holds and what its members last said; all that is shown is from here."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ..buffer.board.counters import Counters
from ..buffer.board.member_board import MemberSeen
from ..buffer.board.version import BoardState
from ..buffer.board.version_board import VersionBoard

REPLICA = "replica:"
LEARNER = "learner:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Times are unix seconds by the clock of the board, which is Redis' own."""

    speculator: str
    at: float
    state: BoardState
    members: Mapping[str, MemberSeen] = field(default_factory=dict)
    histories: Mapping[str, Sequence[Counters]] = field(default_factory=dict)

    def counters(self) -> Iterator[Counters]:
        """The histories of all members, one after another."""
        return chain.from_iterable(self.histories.values())

    def unseen_s(self, member: str) -> float:
        """For how long nothing was heard of `member`, in seconds."""
        return max(0.0, self.at - self.members[member].last_seen_at)

    def drafts_with(self, member: str) -> int | None:
        """Number of the version that a replica says it drafts with; None where it says nothing."""
        return self.members[member].said.draft_version

    def drafting(self) -> dict[str, int | None]:
        """What each server that is alive says it drafts with; those that draft without a model are left out."""
        return {name: one.said.draft_version for name, one in self.present(REPLICA).items() if one.said.has_draft}

    def present(self, kind: str = "") -> dict[str, MemberSeen]:
        """Members of `kind` (REPLICA or LEARNER; all of them by default) that beat, and have not said that they end."""
        return {
            name: seen
            for name, seen in sorted(self.members.items())
            if name.startswith(kind) and seen.is_alive and not (has_ended(seen) or seen.said.left)
        }


def has_ended(seen: MemberSeen) -> bool:
    """Whether the member said with its last beat that it ends."""
    return seen.said.ended


def take(board: VersionBoard, speculator: str, history_s: float = math.inf) -> Snapshot:
    """Read the board, its members and the newest `history_s` seconds of what each counted; 0: none of it.

    A few round trips, and one for every member whose history is read. Raises BufferUnavailable, and DecodeError or
    BoardConflict for a board that cannot be read.
    """
    members = board.members()
    now = board.now()
    since_s = max(0.0, now - history_s)
    histories = {member: board.history(member, since_s) for member in members} if history_s else {}
    return Snapshot(speculator=speculator, at=now, state=board.read(), members=members, histories=histories)
