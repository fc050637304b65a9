"""Between the swapper thread, which asks for swaps, and the scheduler thread, which carries them out.

Plain queues of one process. Commands reach the other ranks through SGLang's own request broadcast.
"""

import itertools
import queue
import threading
import time
from dataclasses import dataclass, replace

import msgspec

from ...buffer.board.member_status import SwapSaid
from ...buffer.errors import WeightsRefused
from .commands import Act, Readiness, SwapCommand
from .staging import Staging
from .swap_effect import Probe

#: The longest the scheduler may take to reach its next iteration; a long prefill is the usual reason.
PICKUP_S = 60.0
#: The longest a file may take to stage.
STAGE_S = 300.0
#: Between two commits of one swap, while another rank still stages or SGLang has released its memory.
NOT_YET_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one rank's scheduler did about a commit."""

    attempt: int
    readiness: Readiness
    outcome: SwapSaid | None = None
    sha256: str = ""  # of the file, where there is an outcome
    why: str = ""  # of one that is not done; empty where another rank knows
    probe: Probe | None = None


class SwapChannel:
    """The scheduler thread takes commands, and puts answers and stagings; the methods but `take` are the swapper's."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[SwapCommand] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.stagings: dict[int, Staging] = {}  # by attempt
        self._attempts = itertools.count(1)
        self._given_up: dict[int, tuple[SwapCommand, float]] = {}  # by attempt; the commit, and when (unix seconds)
        self._late: list[tuple[SwapCommand, Answer]] = []

    def next_attempt(self) -> int:
        """Number of one more swap; answers to earlier attempts are ignored."""
        return next(self._attempts)

    def take(self) -> SwapCommand | None:
        """The oldest command that waits, or None. Never blocks."""
        try:
            return self.inbox.get_nowait()
        except queue.Empty:
            return None

    def prepare(self, command: SwapCommand) -> None:
        """Have the file staged on every rank; returns when it is staged on this one.

        Raises WeightsRefused when a check fails, OSError when this host cannot load the file, TimeoutError.
        """
        staging = self.stagings[command.attempt] = Staging()
        self.inbox.put(command)
        if not staging.done.wait(PICKUP_S + STAGE_S):
            raise TimeoutError(f"version {command.number}: the weights were not staged in time")
        staging.check()

    def commit(self, command: SwapCommand) -> Answer:
        """Commit once all ranks are ready; the answer has an outcome. Raises WeightsRefused or TimeoutError."""
        deadline = time.monotonic() + STAGE_S
        pause = threading.Event()
        while True:
            self.inbox.put(command)
            answer = self._await(command)
            if answer.outcome is not None:
                return answer
            if answer.readiness is Readiness.REFUSED:
                raise WeightsRefused(answer.why or "another rank refused the weights; see its log")
            if time.monotonic() >= deadline:
                why = answer.why or "another rank has not staged the weights"
                raise TimeoutError(f"version {command.number}: {why}, for {STAGE_S} s")
            pause.wait(NOT_YET_S)

    def abandon(self, attempt: int, number: int) -> None:
        """Have every rank forget what it may have staged."""
        self.inbox.put(SwapCommand(act=Act.ABANDON, attempt=attempt, number=number, file="", sha256=""))

    def take_late(self) -> list[tuple[SwapCommand, Answer]]:
        """Commits that were done after `commit` had given up on them, each once, oldest first. Never blocks."""
        while not self.answers.empty():
            self._note_late(self.answers.get_nowait())
        late = self._late
        self._late = []
        return late

    def _await(self, command: SwapCommand) -> Answer:
        while True:
            try:
                answer = self.answers.get(timeout=PICKUP_S)
            except queue.Empty:
                self._given_up[command.attempt] = command, time.time()
                raise TimeoutError(
                    f"version {command.number}: the scheduler reached no iteration within {PICKUP_S} s"
                ) from None
            if answer.attempt == command.attempt:
                return answer
            self._note_late(answer)

    def _note_late(self, answer: Answer) -> None:
        command, since = self._given_up.pop(answer.attempt, (None, 0.0))
        if command is not None and answer.outcome is not None:
            outcome = msgspec.structs.replace(answer.outcome, late_s=max(answer.outcome.at - since, 0.0))
            self._late.append((command, replace(answer, outcome=outcome)))
