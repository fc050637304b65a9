"""What a replica's draft does, from its rounds as they are served: who calls for a canary's trial, and the alarm.

Traces come when their request has ended; a bad draft must be out before that. So the courier counts rounds here, and
says on the board what they show.
"""

import logging
from collections import Counter, deque
from dataclasses import replace
from typing import Any

from ...buffer.base import VersionBoard
from ...buffer.errors import BoardConflict, BufferUnavailable, DecodeError
from ...buffer.version import BoardState, VersionState
from ...policies.acceptance import Tally
from ...policies.canary import CanaryRules
from ...policies.guard import Action, Alarm, GuardInput, GuardLimits, alarms
from ..wire.request_forward import RequestForward, RequestVerify
from .canary_trial import CanaryTrial
from .request_rounds import RequestRounds

log = logging.getLogger(__name__)

#: Ended stretches a replica reports; with a reading a second, a busy replica reports a sample.
REPORTED_STRETCHES = 64
#: Running requests counted. One that is aborted while it waits never says that it ended; this bounds those.
MAX_RUNNING = 4096
REPORTED_ALARMS = 8
#: Versions that take turns, and a few before them.
MAX_LEVELS = 4
#: Requests an alarm needs, so that nobody's single request raises it.
MIN_REQUESTS = 4
#: Rounds after which a canary may be called dead, those of requests that ran when it came included.
CANARY_MIN_ROUNDS = 100
#: Rounds of one request that an alarm looks at, so that it needs what MIN_REQUESTS of them show.
MOST_ROUNDS = CANARY_MIN_ROUNDS // MIN_REQUESTS


class DraftMonitor:
    """Counts the rounds of one replica by version; for the courier's thread.

    A canary that drafts here is promoted or rolled back on the board. A version that dies in silence is rolled back:
    a canary against the live arm, a live version against its own watch before, unless it was itself returned to by a
    roll back, for then it is the traffic. While Redis is away nothing is decided, and counting goes on.
    On a replica that alternates, a canary's trial goes on through the windows of the live version and counts them too.
    """

    def __init__(
        self, board: VersionBoard, replica: str, rules: CanaryRules, limits: GuardLimits, *, alternates: bool = False
    ) -> None:
        self._alternates = alternates
        self._board, self._replica, self._rules, self._limits = board, replica, rules, limits
        self._looks = sorted(set(rules.early_rounds))
        self._version: int | None = None
        self._running: dict[str, RequestRounds] = {}
        self._before_it: dict[str, None] = {}  # running requests that have lived through a change of version
        self._ended: deque[RequestRounds] = deque(maxlen=REPORTED_STRETCHES)
        self._earlier: list[RequestRounds] = []  # of the version before, where it may be the live arm
        self._trial: CanaryTrial | None = None
        self._is_asked = True  # whether the board was asked about this version
        self._accepted = self._rounds = 0  # of this watch
        self._before = Tally()  # the watch before
        self._levels: dict[int, Tally] = {}  # the same by version, where versions take turns
        self._requests: Counter[str] = Counter()  # rounds of each in this watch
        self._raised: set[str] = set()  # alarms raised on this version
        self._drafts: Counter[int] = Counter()  # tokens proposed in this watch
        self._committed: Counter[int] = Counter()  # tokens of the text in this watch
        self._alarms: deque[dict[str, Any]] = deque(maxlen=REPORTED_ALARMS)
        self._fault = ""

    @property
    def is_on_trial(self) -> bool:
        """Whether a canary drafts here, so that every round should be counted soon."""
        return self._trial is not None

    def add(self, step: RequestForward) -> None:
        """Count one step; prefills change nothing."""
        if not isinstance(step, RequestVerify) or not (step.commit.tokens or step.commit.finish):
            return
        if step.draft_version != self._version:
            self._change(step.draft_version)
        if step.commit.tokens and len(step.drafted):  # a round of plain decoding says nothing of the draft
            self._count(step)
        if step.commit.finish:
            self._end(step.request_id)

    def turn(self, now: float) -> None:
        """Decide what can be decided, and say it on the board. Reads the board when the version has changed."""
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
            if str(fault) != self._fault:  # met again at every turn
                log.warning("paceline: version %s is not watched: %s", self._version, fault)
            self._fault = str(fault)

    def status(self) -> dict[str, object]:
        """For the replica's heartbeat, where the courier of a canary finds its live arm."""
        ended = [stretch.status() for stretch in self._ended]
        return {"stretches": {"version": self._version, "ended": ended}, "alarms": list(self._alarms)}

    def _change(self, version: int) -> None:
        self._keep_level(version)
        self._version, self._is_asked = version, False
        if self._alternates:
            self._earlier = [*self._ended]
        else:
            self._trial = None
        # One that was left out before stays so: what it serves now is no beginning either.
        self._raised.clear()
        self._before_it |= dict.fromkeys(self._running)
        while len(self._before_it) > MAX_RUNNING:
            del self._before_it[next(iter(self._before_it))]
        self._running.clear()
        self._ended.clear()
        self._new_watch()

    def _keep_level(self, version: int) -> None:
        """Note what was served last, and find what the version that comes now is held against."""
        if self._rounds >= self._limits.min_rounds:
            self._before = self._served
        if self._alternates and self._version is not None:  # each version against its own turns
            self._levels = dict([*self._levels.items(), (self._version, self._before)][-MAX_LEVELS:])
            self._before = self._levels.get(version, Tally())

    @property
    def _served(self) -> Tally:
        return Tally(self._accepted, self._rounds)

    def _new_watch(self) -> None:
        self._accepted = self._rounds = 0
        self._requests.clear()
        self._drafts.clear()
        self._committed.clear()

    def _count(self, step: RequestVerify) -> None:
        self._look_at(step)
        if step.request_id in self._before_it:
            return
        stretch = self._running.get(step.request_id)
        if stretch is None:
            stretch = self._running[step.request_id] = RequestRounds(step.request_id, self._looks)
            if len(self._running) > MAX_RUNNING:
                del self._running[next(iter(self._running))]
        stretch.add(step.accepted)
        if self._trial is not None:
            self._trial.count(step.draft_version, step.request_id, step.accepted, ended=bool(step.commit.finish))

    def _look_at(self, step: RequestVerify) -> None:
        """Add the round to what the alarms see, unless its request has shown them enough."""
        if self._requests[step.request_id] >= MOST_ROUNDS:
            return
        self._requests[step.request_id] += 1
        self._accepted += step.accepted
        self._rounds += 1
        self._drafts.update(step.drafted.tolist())
        self._committed.update(step.commit.tokens)

    def _end(self, request_id: str) -> None:
        self._before_it.pop(request_id, None)
        stretch = self._running.pop(request_id, None)
        if stretch is not None:
            self._ended.append(stretch)

    def _ask(self) -> None:
        state = self._board.read()
        is_canary = self._version == state.canary == state.drafts_on(self._replica)
        if self._version is not None and is_canary and self._trial is None:
            trial = CanaryTrial(self._board, self._replica, self._version, self._rules, self._looks)
            trial.take_live(self._earlier, is_history=True)
            trial.take_up([*self._ended, *self._running.values()], self._running)
            self._trial = trial
        self._is_asked = True

    def _guard(self, now: float) -> None:
        limits, before = self._limits, self._before
        if self._trial is not None and self._trial.number == self._version:
            limits = replace(limits, min_rounds=min(limits.min_rounds, CANARY_MIN_ROUNDS))
            before = self._trial.live if self._trial.live.rounds >= limits.min_rounds else before
        if self._rounds < limits.min_rounds or len(self._requests) < MIN_REQUESTS:
            return
        readings = self._readings(before)
        if alarms(readings, limits):
            state = self._board.read()
            for alarm in alarms(replace(readings, can_roll_back=self._may_go(state)), limits):
                self._act(alarm, state, now)
        self._before = self._served
        self._new_watch()

    def _readings(self, before: Tally) -> GuardInput:
        token, most = max(self._drafts.items(), key=lambda found: found[1], default=(0, 0))
        return GuardInput(
            served=self._served,
            served_before=before,
            proposed_drafts=self._drafts.total(),
            most_proposed=most,
            committed_tokens=self._committed.total(),
            most_committed=self._committed[token],
        )

    def _may_go(self, state: BoardState) -> bool:
        if self._version == state.canary:
            return True
        is_live = state.live is not None and self._version == state.live
        return is_live and state.previous is not None and not state.is_returned_to

    def _act(self, alarm: Alarm, state: BoardState, now: float) -> None:
        if alarm.action is not Action.ROLL_BACK and alarm.name in self._raised:
            return  # nothing can be done, and it was said
        self._raised.add(alarm.name)
        log.error("paceline: alarm %s on version %s: %s", alarm.name, self._version, alarm.detail)
        if alarm.action is Action.ROLL_BACK and self._version is not None:
            was = VersionState.CANARY if self._version == state.canary else VersionState.LIVE
            self._roll_back(f"{alarm.name}: {alarm.detail}", was)
        self._alarms.append({**alarm.told(), "version": self._version, "at": now})

    def _roll_back(self, why: str, was: VersionState) -> None:
        try:
            self._board.roll_back(f"replica:{self._replica}", why, self._version, was)
        except BoardConflict as conflict:
            log.warning("paceline: version %s was moved by somebody else: %s", self._version, conflict)
