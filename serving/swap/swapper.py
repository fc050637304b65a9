"""Follows the board: the live version there, or the canary on this replica, becomes what drafts here."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from ...buffer.board.member_status import SwapSaid
from ...buffer.board.reason import ReasonCode, because
from ...buffer.board.version import BoardFold, BoardRow, BoardState
from ...buffer.board.version_board import VersionBoard
from ...buffer.board.version_store import NO_STORE, VersionStore
from ...buffer.errors import BoardConflict, BufferUnavailable, WeightsRefused
from ...buffer.stream.trace_buffer import MAX_WAIT_S
from .staggered_rollout import StaggeredRollout
from .swap_record import SwapRecord

log = logging.getLogger(__name__)

#: Between two tries to reach a lost Redis.
RETRY_S = 0.5


class CanaryTurns:
    """Alternates canary and live version in time, on a replica without another one to compare with.

    Turns of `turn_s` seconds, the canary's first; 0: a canary drafts all the time. The swapper's thread owns it.
    """

    def __init__(self, turn_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._turn_s = turn_s
        self._clock = clock
        self._number: int | None = None
        self._began_s = 0.0

    def is_its_turn(self, number: int) -> bool:
        """Return whether the canary `number` drafts now; its first turn begins with the first call for it."""
        if number != self._number:
            self._number = number
            self._began_s = self._clock()
        return not self._turn_s or self._passed() % 2 < 1

    def left_s(self) -> float:
        """Seconds until the turn changes; infinite while there are no turns."""
        if not self._turn_s or self._number is None:
            return math.inf
        return (1.0 - self._passed() % 1.0) * self._turn_s

    def end(self) -> None:
        """There is no canary any more."""
        self._number = None

    def _passed(self) -> float:
        return (self._clock() - self._began_s) / self._turn_s


class DraftSwitch(Protocol):
    """What a swapper needs of an engine; SwapClient is the one that ships."""

    @property
    def draft_version(self) -> int:
        """Number of the version that drafts right now; any thread may ask."""

    def swap(self, number: int, file: str, sha256: str, is_wanted: Callable[[], bool]) -> SwapSaid:
        """Make `file`, a path or where to fetch it from, the live draft, if `is_wanted` once it is staged.

        After WeightsRefused and OSError (this host cannot load the file) it is as it was; after TimeoutError it is too,
        or `take_late` will have the swap.
        """
        ...

    def take_late(self) -> list[SwapSaid]:
        """Swaps that were done after `swap` had given up on them, each once, oldest first."""
        ...


class Swapper:
    """Follows the board in a thread of its own and swaps when what drafts here is not the wanted version.

    A refusal rolls the version back on the board with the reason, unless another member has moved it. A version that
    was itself restored by a roll back is left alone, so that one bad disk cannot roll the fleet back step by step. A
    time-out is tried again at the next look, and so is a file that cannot be read or fetched here while another replica
    drafts with it.

    Only new events are read, so that a long history costs nothing, and Redis blocks until there is one: a thread that
    wakes often takes the GIL from the scheduler. `before_canary` is called before a canary is swapped in and may
    block, until whatever counts its rounds is ready. With `turns` a canary on this replica alternates with the live
    version. With `rollout` a new live version waits until this replica may swap.
    """

    def __init__(
        self,
        board: VersionBoard,
        switch: DraftSwitch,
        *,
        replica: str,
        before_canary: Callable[[], object],
        record: SwapRecord | None = None,
        turns: CanaryTurns | None = None,
        rollout: StaggeredRollout | None = None,
        named: Callable[[], str] | None = None,
        store: VersionStore = NO_STORE,
    ) -> None:
        """`named` says how the board knows this replica; while that is empty no canary drafts here. None: `replica`."""
        self._board = board
        self._switch = switch
        self._replica = replica
        self._named = named or (lambda: replica)
        self._before_canary = before_canary
        self._store = store
        self._turns = turns or CanaryTurns(0.0)
        self._rollout = rollout or StaggeredRollout(board, replica, hold_s=0.0)
        self._last_live: int | None = None  # the live version that drafted here last; None: it has to catch up
        self._is_other_board = False  # the board was replaced: its numbers name other weights
        self.record = record or SwapRecord()
        self._fold = BoardFold()
        self._state = self._fold.state()
        self._last_fault = ""
        self._stop = threading.Event()

    def start(self) -> threading.Thread:
        """Run in a daemon thread and return it."""
        thread = threading.Thread(target=self.run, name="paceline-swapper", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Ask `run` to return."""
        self._stop.set()

    def run(self) -> None:
        """Follow the board until `stop`."""
        while not self._stop.is_set():
            try:
                self.turn(MAX_WAIT_S)
            except BufferUnavailable:
                self._stop.wait(RETRY_S)  # the courier reports it; serving continues with the draft it has
            except Exception as fault:  # noqa: BLE001 - the swapper outlives any fault; serving continues
                self._say(f"swapper: {type(fault).__name__}: {fault}")
                self._stop.wait(RETRY_S)

    def turn(self, wait_s: float = 0.0) -> None:
        """One look at the board, waiting up to `wait_s` for news, and at most one swap."""
        self._replica = self._rollout.replica = self._named() or self._replica
        state = self._look(min(wait_s, self._turns.left_s()))
        self._note_late()
        wanted = self._wanted(state)
        self.record.is_canary = wanted is not None and wanted == state.canary
        if wanted is None or not self._is_due(wanted, state):
            return
        row = state.rows[wanted]
        version = row.version
        promotion = (wanted, row.changed_at)
        if promotion in self.record.refused:  # promoted again, it is staged again: its file may have been mended
            self._roll_back(version.number, self.record.refused[promotion])
            return
        if self.record.is_canary:
            self._before_canary()
        try:
            self._swap(row)
        except TimeoutError as fault:
            self._say(f"version {version.number} waits: {fault}")
        except (WeightsRefused, OSError) as refusal:
            if isinstance(refusal, OSError) and self._drafts_elsewhere(version.number):
                self._say(f"version {version.number} waits: another replica drafts with it, here {refusal}")
                return
            self.record.refused[promotion] = str(refusal)
            log.error("paceline: version %d refused: %s", version.number, refusal)  # noqa: TRY400 - the message says it all
            self._roll_back(version.number, str(refusal))

    def _swap(self, row: BoardRow) -> None:
        version = row.version
        before = self._switch.draft_version
        last = self.record.last
        is_news = last is None or row.changed_at > last.at  # else it is a canary's turn, and no event's

        def is_wanted() -> bool:
            state = self._look()
            wanted = self._wanted(state)
            # The version, not its number: a board that was replaced may give the number to other weights.
            return wanted is not None and state.rows[wanted].version == version

        file = self._store.locate(version.weights_uri)
        done = self._switch.swap(version.number, file, version.sha256, is_wanted)
        self._note_late()  # they were done before it
        self.record.note(msgspec.structs.replace(done, before=before, asked_at=row.changed_at if is_news else None))
        self._is_other_board = False

    def _note_late(self) -> None:
        for swap in self._switch.take_late():
            log.warning("paceline: version %d was swapped in %.1f s late", swap.number, swap.late_s)
            self.record.note(swap)

    def _drafts_elsewhere(self, number: int) -> bool:
        own = f"replica:{self._replica}"
        return any(
            member.startswith("replica:") and member != own and said.draft_version == number
            for member, said in self._board.heartbeats().items()
        )

    def _is_due(self, wanted: int, state: BoardState) -> bool:
        """Whether `wanted` is to be swapped in now; notes which live version drafts here."""
        if wanted == self._switch.draft_version and not self._is_other_board:
            self._last_live = wanted if wanted == state.live else self._last_live
            return False
        is_new = wanted == state.live and self._last_live not in {None, wanted} and not self._is_other_board
        return not is_new or self._rollout.may_swap_now(state, self._switch.draft_version)

    def _wanted(self, state: BoardState) -> int | None:
        wanted = state.drafts_on(self._named())
        if wanted is None or wanted != state.canary:
            self._turns.end()
            return wanted
        return wanted if self._turns.is_its_turn(wanted) else state.live

    def _look(self, wait_s: float = 0.0) -> BoardState:
        try:
            self._fold.extend(self._board.events(self._fold.last_event_id, wait_s))
        except BoardConflict:
            # Redis lost its data, or in a fail-over the newest of it: what was known before does not apply.
            fresh = BoardFold()
            fresh.extend(self._board.events())
            self._fold = fresh
            self._is_other_board = True
        if self._fold.last_event_id != self._state.last_event_id:
            self._state = self._fold.state()
            self.record.is_canary_out = self._state.canary is not None
        return self._state

    def _roll_back(self, number: int, why: str) -> None:
        if number == self._state.live and (self._state.previous is None or self._state.is_returned_to):
            before = "has no version before it" if self._state.previous is None else "was rolled back to it already"
            self._say(f"version {number} stays refused, and the board {before}: {why}")
            return
        try:
            refusal = because(ReasonCode.WEIGHTS_REFUSED, by=self._replica, fault=why)
            self._board.roll_back(f"replica:{self._replica}", refusal, number)
        except BoardConflict as conflict:
            self._say(f"another member moved version {number} first: {conflict}")

    def _say(self, fault: str) -> None:
        if fault != self._last_fault:  # most faults are met again at every look
            log.warning("paceline: %s", fault)
        self._last_fault = fault
