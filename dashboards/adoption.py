"""Whether the servers draft with what the board says, waited for."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..buffer.board.member_status import MemberStatus
from ..buffer.board.version_board import VersionBoard
from ..buffer.finding import SOMETHING_WRONG, WELL
from ..policies.verdict_words import sentence
from .snapshot import REPLICA

#: Between two looks; a server beats every second.
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Adoption:
    """Which servers draft with a version, and why the others do not."""

    number: int
    drafting: tuple[str, ...] = ()
    others: tuple[tuple[str, str], ...] = ()  # server -> what it says
    taken_back: str = ""  # why the version is not live any more; empty: it is

    @property
    def is_nobody_there(self) -> bool:
        """Whether no server is alive to take it."""
        return not self.drafting and not self.others

    @property
    def is_complete(self) -> bool:
        """Whether every server that is alive drafts with it."""
        return not self.taken_back and not self.others

    def sentence(self) -> str:
        """Who has it and who has not."""
        if self.taken_back:
            return f"version {self.number} is not live any more: {self.taken_back}"
        if self.is_nobody_there:
            return f"version {self.number} is live on the board, no server is alive to take it"
        parts = [f"version {self.number} is live on the board"]
        parts += [f"{name} drafts with version {self.number}" for name in self.drafting]
        parts += [f"{name} does not: {why}" for name, why in self.others]
        return "\n".join(parts)


def adoption(board: VersionBoard, number: int) -> Adoption:
    """How far the servers are that beat now."""
    state = board.read()
    drafting = []
    others = []
    if state.live != number:
        row = state.rows.get(number)
        return Adoption(number, taken_back=sentence(row.why) if row else f"got live version {state.live}")
    for member, said in sorted(board.heartbeats().items()):
        if member.startswith(REPLICA) and said.has_draft and not said.ended:
            if said.draft_version == number:
                drafting.append(member)
            else:
                others.append((member, said.unreadable or _why(said)))
    return Adoption(number, tuple(drafting), tuple(others))


def wait_for_adoption(
    board: VersionBoard,
    number: int,
    limit_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> Adoption:
    """Look until every server drafts with `number`, it is taken back, or `limit_s` seconds have passed.

    Blocks; does not wait where no server is alive.
    """
    deadline_s = clock() + limit_s
    while True:
        found = adoption(board, number)
        if found.is_complete or found.taken_back or clock() >= deadline_s:
            return found
        pause(LOOK_S)


def say_adoption(board: VersionBoard, number: int, limit_s: float, say: Callable[[str], object]) -> int:
    """Wait, say who drafts with `number`, and return the exit code; Ctrl-C ends the wait and not the promotion."""
    try:
        found = wait_for_adoption(board, number, limit_s)
    except KeyboardInterrupt:
        found = adoption(board, number)
    say(found.sentence())
    return WELL if found.is_complete else SOMETHING_WRONG


def _why(said: MemberStatus) -> str:
    drafts = f"it drafts with {'nothing known' if said.draft_version is None else said.draft_version}"
    return f"{drafts}; {said.swap_reason}" if said.swap_reason else drafts
