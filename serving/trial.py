"""A canary on trial: its requests against those that the other replicas serve meanwhile with the live version.

The same traffic, so a shift of the traffic is not taken for a worse draft. Requests that ran when the canary came are
left out: the live arm has none that begin in their middle.
"""

from collections.abc import Iterable, Mapping

from ..buffer.base import VersionBoard
from ..buffer.version import BoardState, VersionState
from ..policies.acceptance import Tally
from ..policies.canary import Arm, CanaryDecision, CanaryRules, CanaryTest
from .stretch import Stretch, read_stretch

#: Between two looks at the board and at what the other replicas report.
READ_S = 1.0


class CanaryTrial:
    """The trial of version `number` on `replica`. Reads the board when it is made; any call may raise as boards do."""

    def __init__(self, board: VersionBoard, replica: str, number: int, rules: CanaryRules, looks: list[int]) -> None:
        self._board, self._replica, self._number = board, replica, number
        self._test, self._looks = CanaryTest(rules), looks
        self._known: set[tuple[str, str]] = set()  # (replica, request) of the live stretches in the test
        self._read_at = 0.0
        self.live = Tally()  # what the live arm holds
        self.is_over = False
        self._read(board.read())

    def take_up(self, stretches: Iterable[Stretch], running: Mapping[str, Stretch]) -> None:
        """Count what was served before the trial was made; those in `running` have not ended."""
        for stretch in stretches:
            self._observe(Arm.CANARY, stretch, ended=stretch.request_id not in running)

    def count(self, request_id: str, accepted: int, *, ended: bool) -> None:
        """One round of a request that began under the canary."""
        self._test.observe(Arm.CANARY, request_id, Tally(accepted, 1), ended=ended)

    def turn(self, now: float) -> None:
        """Look at the others when it is time, and write the verdict on the board once there is one."""
        if now >= self._read_at:
            self._read_at = now + READ_S
            self._read(self._board.read())
        if not self.is_over:
            self._judge()

    def _read(self, state: BoardState) -> None:
        self.is_over = state.canary != self._number  # an operator's hand goes before the trial's
        for member, reading in self._board.heartbeats().items():
            if member.startswith("replica:") and member != f"replica:{self._replica}":
                self._take(member, reading.get("stretches"), state.live)

    def _take(self, member: str, told: object, live: int | None) -> None:
        if not isinstance(told, Mapping) or told.get("version") != live or not isinstance(told.get("ended"), list):
            return
        for value in told["ended"]:
            stretch = read_stretch(value, self._looks)
            if stretch is not None and (member, stretch.request_id) not in self._known:
                self._known.add((member, stretch.request_id))
                self._observe(Arm.LIVE, stretch, ended=True)
                self.live += Tally(stretch.accepted, stretch.rounds)

    def _observe(self, arm: Arm, stretch: Stretch, *, ended: bool) -> None:
        pieces = list(stretch.pieces())
        for piece in pieces[:-1]:
            self._test.observe(arm, stretch.request_id, piece, ended=False)
        self._test.observe(arm, stretch.request_id, pieces[-1], ended=ended)

    def _judge(self) -> None:
        verdict, by = self._test.verdict(), f"replica:{self._replica}"
        if verdict.decision is CanaryDecision.WAIT:
            return
        if verdict.decision is CanaryDecision.ROLL_BACK:
            self._board.roll_back(by, verdict.reason, self._number, VersionState.CANARY)
        else:
            self._board.move(self._number, VersionState.LIVE, by, verdict.reason, was=VersionState.CANARY)
        self.is_over = True
