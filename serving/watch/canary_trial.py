"""A canary on trial: its requests against those that the other replicas serve meanwhile with the live version.

The same traffic, so a shift of the traffic is not taken for a worse draft. Requests that ran when the canary came are
left out: the live arm has none that begin in their middle.
"""

from collections.abc import Iterable, Mapping

from ...buffer.base import VersionBoard
from ...buffer.version import BoardState, VersionState
from ...policies.acceptance import Tally
from ...policies.canary import Arm, CanaryDecision, CanaryRules, CanaryTest
from .request_rounds import RequestRounds, read_request_rounds

#: Between two looks at the board and at what the other replicas report.
READ_S = 1.0


class CanaryTrial:
    """The trial of version `number` on `replica`. Reads the board when it is made; any call may raise as boards do."""

    def __init__(self, board: VersionBoard, replica: str, number: int, rules: CanaryRules, looks: list[int]) -> None:
        self._board, self._replica, self.number = board, replica, number
        self._test, self._looks = CanaryTest(rules), looks
        self._known: set[tuple[str, str]] = set()  # (replica, request) of the live stretches in the test
        self._met: set[str] = set()  # replicas whose stretches were read before
        self._read_at = -READ_S
        self.live = Tally()  # what the live arm holds
        self.is_over = False
        self._read(board.read())

    def take_up(self, stretches: Iterable[RequestRounds], running: Mapping[str, RequestRounds]) -> None:
        """Count what was served before the trial was made; those in `running` have not ended."""
        for stretch in stretches:
            self._observe(Arm.CANARY, stretch, ended=stretch.request_id not in running)

    def take_live(self, stretches: Iterable[RequestRounds], *, is_history: bool) -> None:
        """Count requests that the live version has served and that have ended; `is_history`: before the canary came."""
        for stretch in stretches:
            self._observe(Arm.LIVE, stretch, ended=True, is_history=is_history)
            self.live += Tally(stretch.accepted, stretch.rounds)

    def count(self, version: int, request_id: str, accepted: int, *, ended: bool) -> None:
        """One round of a request that began under `version`, the canary or the live one between its windows."""
        arm, round_ = Arm.CANARY if version == self.number else Arm.LIVE, Tally(accepted, 1)
        self._test.observe(arm, request_id, round_, ended=ended)
        if arm is Arm.LIVE:
            self.live += round_

    def turn(self, now: float) -> None:
        """Look at the others when it is time, and write the verdict on the board once there is one."""
        if not 0.0 <= now - self._read_at < READ_S:  # a clock set back must not stop it
            self._read_at = now
            self._read(self._board.read())
        if not self.is_over:
            self._judge()

    def _read(self, state: BoardState) -> None:
        self.is_over = state.canary != self.number  # an operator's hand goes before the trial's
        for member, reading in self._board.heartbeats().items():
            if member.startswith("replica:") and member != f"replica:{self._replica}":
                self._take(member, reading.get("stretches"), state.live)

    def _take(self, member: str, told: object, live: int | None) -> None:
        if not isinstance(told, Mapping) or told.get("version") != live or not isinstance(told.get("ended"), list):
            return
        # What a replica tells first had ended by then, on whatever traffic there was.
        is_history = member not in self._met
        self._met.add(member)
        for value in told["ended"]:
            stretch = read_request_rounds(value, self._looks)
            if stretch is not None and (member, stretch.request_id) not in self._known:
                self._known.add((member, stretch.request_id))
                self.take_live([stretch], is_history=is_history)

    def _observe(self, arm: Arm, stretch: RequestRounds, *, ended: bool, is_history: bool = False) -> None:
        *pieces, last = stretch.pieces()
        for piece in pieces:
            self._test.observe(arm, stretch.request_id, piece, ended=False, is_history=is_history)
        self._test.observe(arm, stretch.request_id, last, ended=ended, is_history=is_history)

    def _judge(self) -> None:
        verdict, by = self._test.verdict(), f"replica:{self._replica}"
        if verdict.decision is CanaryDecision.WAIT:
            return
        if verdict.decision is CanaryDecision.ROLL_BACK:
            self._board.roll_back(by, verdict.reason, self.number, VersionState.CANARY)
        else:
            self._board.move(self.number, VersionState.LIVE, by, verdict.reason, was=VersionState.CANARY)
        self.is_over = True
