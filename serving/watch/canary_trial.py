"""Tries a canary: its requests against those that the other replicas serve meanwhile with the live version.

Both serve the same traffic, so a shift of the traffic is not taken for a worse draft, as long as both arms are known
up to the same minute: the canary's rounds are counted as they are served, and those of the other replicas come with
their heartbeats. So how the canary's requests begin is compared once the heartbeats have told of that time. Requests
that ran when the canary came are left out: in the live arm there are none that begin half-way.
"""

import math
from collections.abc import Iterable, Mapping

from ...buffer.board.member_status import ArmSaid, MemberStatus, StretchesSaid, TrialSaid
from ...buffer.board.version import VersionState
from ...buffer.board.version_board import VersionBoard
from ...policies.acceptance import Tally
from ...policies.canary import Arm, CanaryDecision, CanaryRules, CanaryTest
from .request_rounds import RequestRounds, read_begun, read_request_rounds

#: Between two reads of the board, and of the other replicas' heartbeats.
READ_S = 1.0
HEAR_S = 0.25
#: For so long the canary's begins wait for the first live one. A live arm without requests must not keep a dead canary.
ALONE_S = 2.0
#: A heartbeat that is older is not waited for: its replica died, or clocks differ.
STALE_S = 2.0
#: No time is later.
_MAX_SECONDS = 1e12


class CanaryTrial:
    """The trial of version `number` on `replica`. Reads the board when it is made; any call may raise as boards do."""

    def __init__(
        self, board: VersionBoard, replica: str, number: int, *, rules: CanaryRules, checkpoints: list[int]
    ) -> None:
        self._board = board
        self._replica = replica
        self.number = number
        self._test = CanaryTest(rules)
        self._checkpoints = checkpoints
        self._max_requests = rules.max_requests
        self._counted: set[tuple[str, str]] = set()  # (replica, request) of the others' requests in the test
        self._met: set[str] = set()  # replicas whose heartbeats were read before
        self._read_at = -READ_S
        self._heard_at = -HEAR_S
        self._began_at: float | None = None  # the first turn
        self._turned_at = 0.0  # the last turn: what is counted was served later
        self._test.live_known_until = -math.inf
        self.live = Tally()  # of the live arm
        self._looks = 0  # verdicts asked for
        self.is_over = False
        self._live_version: int | None = None  # by the last read of the board
        self._read()
        self._hear(math.inf)

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
        arm = Arm.CANARY if version == self.number else Arm.LIVE
        round_ = Tally(accepted, 1)
        self._test.observe(arm, request_id, round_, ended=ended, at=self._turned_at)
        if arm is Arm.LIVE:
            self.live += round_

    def end(self, version: int, request_id: str) -> None:
        """A request that began under `version` ended without another round: its client left, or it decoded plainly."""
        arm = Arm.CANARY if version == self.number else Arm.LIVE
        self._test.observe(arm, request_id, Tally(), ended=True, at=self._turned_at)

    def turn(self, now: float) -> None:
        """Read the other replicas' heartbeats when it is time, and write a verdict on the board once there is one.

        `now` in unix seconds, by this host's clock.
        """
        self._turned_at = now
        self._began_at = now if self._began_at is None else min(self._began_at, now)  # a clock may be set back
        if not 0.0 <= now - self._read_at < READ_S:  # a clock set back must not stop it
            self._read_at = now
            self._read()
        if not 0.0 <= now - self._heard_at < HEAR_S:
            self._heard_at = now
            known_until = self._hear(now)
            is_alone = not self._test.has_live_begins and known_until < self._began_at + ALONE_S
            self._test.live_known_until = -math.inf if is_alone else known_until
        if not self.is_over:
            self._judge()

    def said(self) -> TrialSaid:
        """For the replica's heartbeat: both arms, the gain with its interval, what the limit leaves."""
        verdict = self._test.verdict()
        low, high = verdict.interval
        return TrialSaid(
            version=self.number,
            canary=_arm(verdict.canary, verdict.canary_requests),
            live=_arm(verdict.live, verdict.live_requests),
            gain=round(verdict.gain, 4) if verdict.canary.rounds and verdict.live.rounds else None,
            # Too few requests give no interval: it is not known, and JSON has no infinity.
            interval=(round(low, 4), round(high, 4)) if math.isfinite(low) and math.isfinite(high) else None,
            looks=self._looks,
            requests_left=max(self._max_requests - verdict.canary_requests, 0),
        )

    def _read(self) -> None:
        state = self._board.read()
        self.is_over = state.canary != self.number  # the operator's decision overrides the trial's
        self._live_version = state.live

    def _hear(self, now: float) -> float:
        """Take in what the others report. Returns until when all of them that do not lag have reported, or `now`."""
        beats = self._board.heartbeats()
        own = f"replica:{self._replica}"
        told = [now]
        for member, said in beats.items():
            if not member.startswith("replica:") or member == own or said.stretches is None:
                continue
            if said.stretches.version == self._live_version:
                self._add_reported(member, said.stretches)
                told.append(_beaten_at(said, beats.get(own, MemberStatus()), now))
        return min(at for at in told if at >= now - STALE_S)

    def _add_reported(self, member: str, served: StretchesSaid) -> None:
        # What a replica reports first had ended or begun by then, on whatever traffic there was.
        is_history = member not in self._met
        self._met.add(member)
        for running in served.begun:
            if (member, running.digest) not in self._counted:
                for began in read_begun(running, self._checkpoints):
                    self._test.live_began(running.digest, began, is_history=is_history)
        for ended in served.ended:
            request = read_request_rounds(ended, self._checkpoints)
            if request is not None and (member, request.request_id) not in self._counted:
                self._counted.add((member, request.request_id))
                self.add_live([request], is_history=is_history)

    def _observe(self, arm: Arm, request: RequestRounds, *, ended: bool, is_history: bool = False) -> None:
        *segments, last = request.segments()
        for segment in segments:
            self._test.observe(arm, request.request_id, segment, ended=False, is_history=is_history)
        self._test.observe(arm, request.request_id, last, ended=ended, is_history=is_history)

    def _judge(self) -> None:
        verdict = self._test.verdict()
        by = f"replica:{self._replica}"
        self._looks += 1
        if verdict.decision is CanaryDecision.WAIT:
            return
        if verdict.decision is CanaryDecision.ROLL_BACK:
            self._board.roll_back(by, verdict.reason, self.number, VersionState.CANARY)
        else:
            self._board.move(self.number, VersionState.LIVE, by, verdict.reason, was=VersionState.CANARY)
        self.is_over = True


def _beaten_at(said: MemberStatus, own: MemberStatus, unknown: float) -> float:
    """When a heartbeat was made, by this host's clock; as far as it is known how both clocks differ from Redis'."""
    if said.at is None or abs(said.at) >= _MAX_SECONDS:  # heartbeats are not trusted
        return unknown
    if said.clock_offset_s is None or own.clock_offset_s is None or abs(said.clock_offset_s) >= _MAX_SECONDS:
        return said.at
    return said.at + own.clock_offset_s - said.clock_offset_s


def _arm(served: Tally, requests: int) -> ArmSaid:
    """One arm; without rounds its accept length is not known."""
    length = round(served.accept_length, 4) if served.rounds else None
    return ArmSaid(requests=requests, rounds=int(served.rounds), accept_length=length)
