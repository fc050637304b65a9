"""Counts served verify rounds by draft version; runs canary trials, and raises alarms.

Traces come when their request has ended; a bad draft must be out before that. So the courier counts rounds as they
are served, and writes on the board what they show.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ...buffer.board.member_status import AlarmSaid, MemberStatus, StretchesSaid
from ...buffer.board.reason import Reason, ReasonCode, because
from ...buffer.board.version import BoardState, VersionState
from ...buffer.board.version_board import VersionBoard
from ...buffer.errors import BoardConflict, BufferUnavailable, DecodeError
from ...policies.acceptance import Tally
from ...policies.canary import CanaryRules
from ...policies.guard import Action, Alarm, AlarmName, GuardLimits, alarms
from ...policies.verdict_words import alarm_sentence
from ..wire.request_forward import RequestForward, RequestVerify
from .canary_trial import CanaryTrial
from .request_rounds import RequestRounds, begun_said
from .served_intervals import CANARY_MIN_ROUNDS, ServedIntervals

log = logging.getLogger(__name__)

#: Ended requests in a heartbeat; a busy replica reports a sample.
REPORTED_REQUESTS = 64
#: Running requests whose begins are in a heartbeat.
REPORTED_BEGINS = 24
#: Running requests counted. One that is aborted while it waits never reports its end; this bounds those.
MAX_RUNNING = 4096
REPORTED_ALARMS = 8


class DraftMonitor:
    """Counts the rounds of one replica by version; for the courier's thread.

    A canary that drafts here is promoted or rolled back on the board. A version whose drafts are hardly accepted any
    more is rolled back: a canary compared with the live arm, a live version with its own interval before, unless it
    was itself restored by a roll back, since then the traffic is the cause. A change of the target's version starts the
    comparison over: what the same draft accepted before it rolls nothing back. While Redis is away nothing is decided,
    and counting continues. On a replica that alternates, a canary's trial includes the turns of the live version.
    `replica`, its name on the board, may be set anew until a canary drafts here.
    """

    def __init__(
        self, board: VersionBoard, replica: str, rules: CanaryRules, limits: GuardLimits, *, alternates: bool = False
    ) -> None:
        self._alternates = alternates
        self._board = board
        self.replica = replica
        self._rules = rules
        self._limits = limits
        self._checkpoints = sorted(set(rules.early_rounds))
        self._version: int | None = None
        self._running: dict[str, RequestRounds] = {}
        self._before_it: dict[str, None] = {}  # running requests that were drafted by an earlier version as well
        self._ended: deque[RequestRounds] = deque(maxlen=REPORTED_REQUESTS)
        self._earlier: list[RequestRounds] = []  # of the version before, where it may be the live arm
        self._trial: CanaryTrial | None = None
        self._is_asked = True  # whether the board was asked about this version
        self._intervals = ServedIntervals(limits, alternates=alternates)
        self._raised: set[str] = set()  # alarms raised on this version
        self._alarms: deque[AlarmSaid] = deque(maxlen=REPORTED_ALARMS)
        self._fault = ""

    @property
    def is_on_trial(self) -> bool:
        """Whether a canary drafts here, so that every round should be counted soon."""
        return self._trial is not None

    def add(self, forward: RequestForward) -> None:
        """Count one forward; prefills change nothing."""
        if not isinstance(forward, RequestVerify) or not (forward.commit.tokens or forward.commit.finish):
            return
        if forward.target_version != self._intervals.target_version:
            self._change_target(forward.target_version)
        if forward.draft_version != self._version:
            self._change(forward.draft_version)
        is_counted = bool(forward.commit.tokens and len(forward.drafted))  # plain decoding says nothing about the draft
        if is_counted:
            self._count(forward)
        if forward.commit.finish:
            self._end(forward, is_counted=is_counted)

    def turn(self, now: float) -> None:
        """Decide what can be decided, and write it on the board. Reads the board when the version has changed."""
        try:
            if not self._is_asked:
                self._ask()
            if self._trial is not None:
                self._trial.turn(now)
                self._trial = None if self._trial.is_over else self._trial
            self._guard(now)
        except BufferUnavailable:
            return  # the courier reports it; the next turn decides
        except (BoardConflict, DecodeError) as fault:
            self._trial = None
            if str(fault) != self._fault:  # met again in every turn
                log.warning("paceline: version %s is not monitored: %s", self._version, fault)
            self._fault = str(fault)

    def fill(self, said: MemberStatus) -> None:
        """Put what it knows into the replica's heartbeat, where the courier of a canary finds its live arm."""
        ended = [request.said() for request in self._ended]
        begun = begun_said(self._running.values(), REPORTED_BEGINS)
        said.stretches = StretchesSaid(version=self._version, ended=ended, begun=begun)
        said.alarms = list(self._alarms)
        said.trial = self._trial.said() if self._trial else None

    def _change_target(self, version: str) -> None:
        self._intervals.change_target(version)
        if self._trial is not None:
            self._trial.live = Tally()  # a level of the target before

    def _change(self, version: int) -> None:
        self._intervals.change_draft(version)
        self._version = version
        self._is_asked = False
        if self._alternates:
            self._earlier = [*self._ended]
        else:
            self._trial = None
        self._raised.clear()
        # A request that was left out before stays so: it does not begin here either.
        self._before_it |= dict.fromkeys(self._running)
        while len(self._before_it) > MAX_RUNNING:
            del self._before_it[next(iter(self._before_it))]
        self._running.clear()
        self._ended.clear()

    def _count(self, verify: RequestVerify) -> None:
        self._intervals.count(verify)
        if verify.request_id in self._before_it:
            return
        request = self._running.get(verify.request_id)
        if request is None:
            request = self._running[verify.request_id] = RequestRounds(
                request_id=verify.request_id, checkpoints=self._checkpoints
            )
            if len(self._running) > MAX_RUNNING:
                del self._running[next(iter(self._running))]
        request.add(verify.accepted)
        if self._trial is not None:
            ended = bool(verify.commit.finish)
            self._trial.count(verify.draft_version, verify.request_id, verify.accepted, ended=ended)

    def _end(self, verify: RequestVerify, *, is_counted: bool) -> None:
        self._before_it.pop(verify.request_id, None)
        request = self._running.pop(verify.request_id, None)
        if request is not None:
            self._ended.append(request)
            if self._trial is not None and not is_counted:
                self._trial.end(verify.draft_version, verify.request_id)

    def _ask(self) -> None:
        state = self._board.read()
        is_canary = self._version == state.canary == state.drafts_on(self.replica)
        if self._version is not None and is_canary and self._trial is None:
            trial = CanaryTrial(
                self._board, self.replica, self._version, rules=self._rules, checkpoints=self._checkpoints
            )
            trial.add_live(self._earlier, is_history=True)
            trial.add_canary([*self._ended, *self._running.values()], self._running)
            self._trial = trial
        self._is_asked = True

    def _guard(self, now: float) -> None:
        limits = self._limits
        live = Tally()
        if self._trial is not None and self._trial.number == self._version:
            limits = replace(limits, min_rounds=min(limits.min_rounds, CANARY_MIN_ROUNDS))
            live = self._trial.live if self._trial.live.rounds >= limits.min_rounds else live
        if not self._intervals.is_full(limits):
            return
        figures = self._intervals.figures(live)
        if alarms(figures, limits):
            state = self._board.read()
            raised = alarms(replace(figures, can_roll_back=self._can_roll_back(state)), limits)
            for alarm in raised:
                self._act(alarm, state, now)
            if self._version == state.live and state.is_returned_to:
                self._forget_level(raised)
        self._intervals.end()

    def _forget_level(self, raised: Sequence[Alarm]) -> None:
        """Compare with the present traffic alone, once a restored version has been found dead on it too.

        Else every later version that accepts a little more would be rolled back for what the traffic before allowed.
        """
        if any(alarm.name is AlarmName.SILENT_DEATH for alarm in raised):
            self._intervals.forget_level()

    def _can_roll_back(self, state: BoardState) -> bool:
        if self._version == state.canary:
            return True
        is_live = state.live is not None and self._version == state.live
        return is_live and state.previous is not None and not state.is_returned_to

    def _act(self, alarm: Alarm, state: BoardState, now: float) -> None:
        if alarm.action is not Action.ROLL_BACK and alarm.name in self._raised:
            return  # nothing can be done, and it was reported
        self._raised.add(alarm.name)
        told = alarm_sentence(alarm.name, alarm.figures)
        log.error("paceline: alarm %s on version %s: %s", alarm.name, self._version, told)
        if alarm.action is Action.ROLL_BACK and self._version is not None:
            was = VersionState.CANARY if self._version == state.canary else VersionState.LIVE
            self._roll_back(because(ReasonCode.ALARM, alarm=alarm.name.value, **alarm.figures), was)
        self._alarms.append(
            AlarmSaid(name=alarm.name, action=alarm.action, figures=dict(alarm.figures), version=self._version, at=now)
        )

    def _roll_back(self, why: Reason, was: VersionState) -> None:
        try:
            self._board.roll_back(f"replica:{self.replica}", why, self._version, was)
        except BoardConflict as conflict:
            log.warning("paceline: version %s was moved by another member: %s", self._version, conflict)
