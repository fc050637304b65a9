"""Tries a canary: its requests against those that the other replicas serve meanwhile with the live version.

Both serve the same traffic, so a shift of the traffic is not taken for a worse draft. Requests that ran when the
canary came are left out: in the live arm there are none that begin half-way.
"""

import math
from collections.abc import Iterable, Mapping

from ...buffer.base import VersionBoard
from ...buffer.version import BoardState, VersionState
from ...policies.acceptance import Tally
from ...policies.canary import Arm, CanaryDecision, CanaryRules, CanaryTest
from .request_rounds import RequestRounds, read_request_rounds

#: Between two reads of the board and of the other replicas' heartbeats.
READ_S = 1.0


class CanaryTrial:
    """The trial of version `number` on `replica`. Reads the board when it is made; any call may raise as boards do."""

    def __init__(
        self, board: VersionBoard, replica: str, number: int, rules: CanaryRules, checkpoints: list[int]
    ) -> None:
        self._board, self._replica, self.number = board, replica, number
        self._test, self._checkpoints = CanaryTest(rules), checkpoints
        self._max_requests = rules.max_requests
        self._counted: set[tuple[str, str]] = set()  # (replica, request) of the others' requests in the test
        self._met: set[str] = set()  # replicas whose heartbeats were read before
        self._read_at = -READ_S
        self.live = Tally()  # of the live arm
        self._looks = 0  # verdicts asked for
        self.is_over = False
        self._read(board.read())

    def add_canary(self, requests: Iterable[RequestRounds], running: Mapping[str, RequestRounds]) -> None:
        """Count what was served before the trial was made; those in `running` have not ended."""
        for request in requests:
            self._observe(Arm.CANARY, request, ended=request.request_id not in running)

    def add_live(self, requests: Iterable[RequestRounds], *, is_history: bool) -> None:
        """Count ended requests that the live version has served; `is_history`: before the canary came."""
        for request in requests:
            self._observe(Arm.LIVE, request, ended=True, is_history=is_history)
            self.live += Tally(request.accepted, request.rounds)

    def count(self, version: int, request_id: str, accepted: int, *, ended: bool) -> None:
        """One round of a request that began under `version`, the canary or the live one between its turns."""
        arm, round_ = Arm.CANARY if version == self.number else Arm.LIVE, Tally(accepted, 1)
        self._test.observe(arm, request_id, round_, ended=ended)
        if arm is Arm.LIVE:
            self.live += round_

    def turn(self, now: float) -> None:
        """Read the other replicas' heartbeats when it is time, and write a verdict on the board once there is one."""
        if not 0.0 <= now - self._read_at < READ_S:  # a clock set back must not stop it
            self._read_at = now
            self._read(self._board.read())
        if not self.is_over:
            self._judge()

    def status(self) -> dict[str, object]:
        """For the replica's heartbeat, as JSON values: both arms, the gain with its interval, what the limit leaves."""
        verdict = self._test.verdict()
        return {
            "version": self.number,
            "canary": _arm(verdict.canary, verdict.canary_requests),
            "live": _arm(verdict.live, verdict.live_requests),
            "gain": round(verdict.gain, 4) if verdict.canary.rounds and verdict.live.rounds else None,
            # Too few requests give no interval: it is not known, and JSON has no infinity.
            "interval": [round(end, 4) for end in verdict.interval]
            if all(map(math.isfinite, verdict.interval))
            else None,
            "looks": self._looks,
            "requests_left": max(self._max_requests - verdict.canary_requests, 0),
        }

    def _read(self, state: BoardState) -> None:
        self.is_over = state.canary != self.number  # the operator's decision overrides the trial's
        for member, status in self._board.heartbeats().items():
            if member.startswith("replica:") and member != f"replica:{self._replica}":
                self._add_reported(member, status.get("stretches"), state.live)

    def _add_reported(self, member: str, reported: object, live: int | None) -> None:
        if not isinstance(reported, Mapping) or reported.get("version") != live:
            return
        if not isinstance(reported.get("ended"), list):
            return
        # What a replica reports first had ended by then, on whatever traffic there was.
        is_history = member not in self._met
        self._met.add(member)
        for value in reported["ended"]:
            request = read_request_rounds(value, self._checkpoints)
            if request is not None and (member, request.request_id) not in self._counted:
                self._counted.add((member, request.request_id))
                self.add_live([request], is_history=is_history)

    def _observe(self, arm: Arm, request: RequestRounds, *, ended: bool, is_history: bool = False) -> None:
        *segments, last = request.segments()
        for segment in segments:
            self._test.observe(arm, request.request_id, segment, ended=False, is_history=is_history)
        self._test.observe(arm, request.request_id, last, ended=ended, is_history=is_history)

    def _judge(self) -> None:
        verdict, by = self._test.verdict(), f"replica:{self._replica}"
        self._looks += 1
        if verdict.decision is CanaryDecision.WAIT:
            return
        if verdict.decision is CanaryDecision.ROLL_BACK:
            self._board.roll_back(by, verdict.reason, self.number, VersionState.CANARY)
        else:
            self._board.move(self.number, VersionState.LIVE, by, verdict.reason, was=VersionState.CANARY)
        self.is_over = True


def _arm(served: Tally, requests: int) -> dict[str, object]:
    """One arm; without rounds its accept length is not known."""
    length = round(served.accept_length, 4) if served.rounds else None
    return {"requests": requests, "rounds": served.rounds, "accept_length": length}
