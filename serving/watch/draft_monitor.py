"""Counts served verify rounds by draft version; runs canary trials, and raises alarms.

Traces come when their request has ended; a bad draft must be out before that. So the courier counts rounds as they
are served, and writes on the board what they show.
"""

import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...buffer.base import VersionBoard
from ...buffer.errors import BoardConflict, BufferUnavailable, DecodeError
from ...buffer.version import BoardState, VersionState
from ...policies.acceptance import Tally
from ...policies.canary import CanaryRules
from ...policies.guard import Action, Alarm, AlarmName, GuardInput, GuardLimits, alarms
from ..wire.request_forward import RequestForward, RequestVerify
from .canary_trial import CanaryTrial
from .request_rounds import RequestRounds

log = logging.getLogger(__name__)

#: Ended requests in a heartbeat; a busy replica reports a sample.
REPORTED_REQUESTS = 64
#: Running requests counted. One that is aborted while it waits never reports its end; this bounds those.
MAX_RUNNING = 4096
REPORTED_ALARMS = 8
#: Versions that take turns, and a few before them.
MAX_LEVELS = 4
#: Requests an alarm needs, so that no single request raises it.
MIN_REQUESTS = 4
#: Rounds after which a canary may be found dead, those of requests that ran when it came included.
CANARY_MIN_ROUNDS = 100
#: Rounds of one request that count for an alarm, so that it takes MIN_REQUESTS of them.
MAX_ROUNDS = CANARY_MIN_ROUNDS // MIN_REQUESTS


class DraftMonitor:
    """Counts the rounds of one replica by version; for the courier's thread.

    A canary that drafts here is promoted or rolled back on the board. A version whose drafts are hardly accepted any
    more is rolled back: a canary compared with the live arm, a live version with its own interval before, unless it
    was itself restored by a roll back, since then the traffic is the cause. While Redis is away nothing is decided,
    and counting continues. On a replica that alternates, a canary's trial includes the turns of the live version.
    """

    def __init__(
        self, board: VersionBoard, replica: str, rules: CanaryRules, limits: GuardLimits, *, alternates: bool = False
    ) -> None:
        self._alternates = alternates
        self._board, self._replica, self._rules, self._limits = board, replica, rules, limits
        self._checkpoints = sorted(set(rules.early_rounds))
        self._version: int | None = None
        self._running: dict[str, RequestRounds] = {}
        self._before_it: dict[str, None] = {}  # running requests that were drafted by an earlier version as well
        self._ended: deque[RequestRounds] = deque(maxlen=REPORTED_REQUESTS)
        self._earlier: list[RequestRounds] = []  # of the version before, where it may be the live arm
        self._trial: CanaryTrial | None = None
        self._is_asked = True  # whether the board was asked about this version
        self._accepted = self._rounds = 0  # in this interval
        self._before = Tally()  # the interval before; see _remember_served
        self._levels: dict[int, Tally] = {}  # the same by version, where versions take turns
        self._requests: Counter[str] = Counter()  # rounds of each in this interval
        self._raised: set[str] = set()  # alarms raised on this version
        self._drafts: Counter[int] = Counter()  # tokens proposed in this interval
        self._committed: Counter[int] = Counter()  # tokens of the text in this interval
        self._alarms: deque[dict[str, Any]] = deque(maxlen=REPORTED_ALARMS)
        self._fault = ""

    @property
    def is_on_trial(self) -> bool:
        """Whether a canary drafts here, so that every round should be counted soon."""
        return self._trial is not None

    def add(self, forward: RequestForward) -> None:
        """Count one forward; prefills change nothing."""
        if not isinstance(forward, RequestVerify) or not (forward.commit.tokens or forward.commit.finish):
            return
        if forward.draft_version != self._version:
            self._change(forward.draft_version)
        if forward.commit.tokens and len(forward.drafted):  # a round of plain decoding says nothing about the draft
            self._count(forward)
        if forward.commit.finish:
            self._end(forward.request_id)

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

    def status(self) -> dict[str, object]:
        """For the replica's heartbeat, where the courier of a canary finds its live arm."""
        ended = [request.status() for request in self._ended]
        return {"stretches": {"version": self._version, "ended": ended}, "alarms": list(self._alarms)}

    def _change(self, version: int) -> None:
        self._keep_level(version)
        self._version, self._is_asked = version, False
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
        self._new_interval()

    def _keep_level(self, version: int) -> None:
        """Note what was served last, and find what the version that comes now is compared with."""
        if self._rounds >= self._limits.min_rounds:
            self._remember_served()
        if self._alternates and self._version is not None:  # each version against its own turns
            self._levels = dict([*self._levels.items(), (self._version, self._before)][-MAX_LEVELS:])
            self._before = self._levels.get(version, Tally())

    @property
    def _served(self) -> Tally:
        return Tally(self._accepted, self._rounds)

    def _new_interval(self) -> None:
        self._accepted = self._rounds = 0
        self._requests.clear()
        self._drafts.clear()
        self._committed.clear()

    def _count(self, verify: RequestVerify) -> None:
        self._count_for_alarms(verify)
        if verify.request_id in self._before_it:
            return
        request = self._running.get(verify.request_id)
        if request is None:
            request = self._running[verify.request_id] = RequestRounds(verify.request_id, self._checkpoints)
            if len(self._running) > MAX_RUNNING:
                del self._running[next(iter(self._running))]
        request.add(verify.accepted)
        if self._trial is not None:
            ended = bool(verify.commit.finish)
            self._trial.count(verify.draft_version, verify.request_id, verify.accepted, ended=ended)

    def _count_for_alarms(self, verify: RequestVerify) -> None:
        if self._requests[verify.request_id] >= MAX_ROUNDS:
            return
        self._requests[verify.request_id] += 1
        self._accepted += verify.accepted
        self._rounds += 1
        self._drafts.update(verify.drafted.tolist())
        self._committed.update(verify.commit.tokens)

    def _end(self, request_id: str) -> None:
        self._before_it.pop(request_id, None)
        request = self._running.pop(request_id, None)
        if request is not None:
            self._ended.append(request)

    def _ask(self) -> None:
        state = self._board.read()
        is_canary = self._version == state.canary == state.drafts_on(self._replica)
        if self._version is not None and is_canary and self._trial is None:
            trial = CanaryTrial(self._board, self._replica, self._version, self._rules, self._checkpoints)
            trial.add_live(self._earlier, is_history=True)
            trial.add_canary([*self._ended, *self._running.values()], self._running)
            self._trial = trial
        self._is_asked = True

    def _guard(self, now: float) -> None:
        limits, before = self._limits, self._before
        if self._trial is not None and self._trial.number == self._version:
            limits = replace(limits, min_rounds=min(limits.min_rounds, CANARY_MIN_ROUNDS))
            before = self._trial.live if self._trial.live.rounds >= limits.min_rounds else before
        if self._rounds < limits.min_rounds or len(self._requests) < MIN_REQUESTS:
            return
        figures = self._figures(before)
        if alarms(figures, limits):
            state = self._board.read()
            raised = alarms(replace(figures, can_roll_back=self._can_roll_back(state)), limits)
            for alarm in raised:
                self._act(alarm, state, now)
            if self._version == state.live and state.is_returned_to:
                self._forget_level(raised)
        self._remember_served()
        self._new_interval()

    def _remember_served(self) -> None:
        """What comes is compared with this interval; one that is neither alive nor dead replaces none that was alive.

        Or a dead draft would have one interval to be found in: a single request whose text it happens to repeat hides
        it there.
        """
        alive = self._limits.alive_accept_length
        if self._served.accept_length >= alive or self._before.accept_length < alive:
            self._before = self._served

    def _forget_level(self, raised: Sequence[Alarm]) -> None:
        """Compare with the present traffic alone, once a restored version has been found dead on it too.

        Else every later version that accepts a little more would be rolled back for what the traffic before allowed.
        """
        if any(alarm.name is AlarmName.SILENT_DEATH for alarm in raised):
            self._before = Tally()

    def _figures(self, before: Tally) -> GuardInput:
        token, most = max(self._drafts.items(), key=lambda found: found[1], default=(0, 0))
        return GuardInput(
            served=self._served,
            served_before=before,
            proposed_drafts=self._drafts.total(),
            most_proposed=most,
            committed_tokens=self._committed.total(),
            most_committed=self._committed[token],
        )

    def _can_roll_back(self, state: BoardState) -> bool:
        if self._version == state.canary:
            return True
        is_live = state.live is not None and self._version == state.live
        return is_live and state.previous is not None and not state.is_returned_to

    def _act(self, alarm: Alarm, state: BoardState, now: float) -> None:
        if alarm.action is not Action.ROLL_BACK and alarm.name in self._raised:
            return  # nothing can be done, and it was reported
        self._raised.add(alarm.name)
        log.error("paceline: alarm %s on version %s: %s", alarm.name, self._version, alarm.detail)
        if alarm.action is Action.ROLL_BACK and self._version is not None:
            was = VersionState.CANARY if self._version == state.canary else VersionState.LIVE
            self._roll_back(f"{alarm.name}: {alarm.detail}", was)
        self._alarms.append({**alarm.as_json(), "version": self._version, "at": now})

    def _roll_back(self, why: str, was: VersionState) -> None:
        try:
            self._board.roll_back(f"replica:{self._replica}", why, self._version, was)
        except BoardConflict as conflict:
            log.warning("paceline: version %s was moved by another member: %s", self._version, conflict)
