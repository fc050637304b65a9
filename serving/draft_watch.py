"""What a replica's draft does, from its rounds as they are served: who calls for a canary's trial, and the alarm.

Traces come when their request has ended; a bad draft must be out before that. So the courier counts rounds here, and
says on the board what they show.
"""

import logging
from collections import deque
from dataclasses import replace
from typing import Any

from ..buffer.base import VersionBoard
from ..buffer.errors import BoardConflict, BufferUnavailable, DecodeError
from ..buffer.version import BoardState, VersionState
from ..policies.acceptance import Tally
from ..policies.canary import CanaryRules
from ..policies.guard import Action, Alarm, GuardLimits, Readings, alarms
from .steps import Step, VerifyStep
from .stretch import Stretch
from .trial import CanaryTrial

log = logging.getLogger(__name__)

#: Ended stretches a replica reports; with a reading a second, a busy replica reports a sample.
REPORTED_STRETCHES = 64
#: Running requests counted. One that is aborted while it waits never says that it ended; this bounds those.
MAX_RUNNING = 4096
REPORTED_ALARMS = 8
#: Requests an alarm needs, so that nobody's single request raises it.
MIN_REQUESTS = 4
#: Rounds after which a canary may be called dead, those of requests that ran when it came included.
CANARY_MIN_ROUNDS = 100


class DraftWatch:
    """Counts the rounds of one replica by version; for the courier's thread.

    A canary that drafts here is promoted or rolled back on the board. A version that dies in silence is rolled back:
    a canary against the live arm, a live version against its own watch before, unless it was itself returned to by a
    roll back, for then it is the traffic. While Redis is away nothing is decided, and counting goes on.
    """

    def __init__(self, board: VersionBoard, replica: str, rules: CanaryRules, limits: GuardLimits) -> None:
        self._board, self._replica, self._rules, self._limits = board, replica, rules, limits
        self._looks = sorted(set(rules.early_rounds))
        self._version: int | None = None
        self._running: dict[str, Stretch] = {}
        self._before_it: frozenset[str] = frozenset()  # requests that ran when the version came
        self._ended: deque[Stretch] = deque(maxlen=REPORTED_STRETCHES)
        self._trial: CanaryTrial | None = None
        self._is_asked = True  # whether the board was asked about this version
        self._accepted = self._rounds = 0  # of this watch
        self._before = Tally()  # the watch before
        self._requests: set[str] = set()  # of this watch
        self._alarms: deque[dict[str, Any]] = deque(maxlen=REPORTED_ALARMS)
        self._fault = ""

    @property
    def is_on_trial(self) -> bool:
        """Whether a canary drafts here, so that every round should be counted soon."""
        return self._trial is not None

    def add(self, step: Step) -> None:
        """Count one step; prefills change nothing."""
        if not isinstance(step, VerifyStep) or not (step.commit.tokens or step.commit.finish):
            return
        if step.draft_version != self._version:
            self._change(step.draft_version)
        if step.commit.tokens:
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

    def reading(self) -> dict[str, object]:
        """For the replica's heartbeat, where the courier of a canary finds its live arm."""
        ended = [stretch.reading() for stretch in self._ended]
        return {"stretches": {"version": self._version, "ended": ended}, "alarms": list(self._alarms)}

    def _change(self, version: int) -> None:
        self._version, self._is_asked, self._trial = version, False, None
        self._before_it = frozenset(self._running)
        self._running.clear()
        self._ended.clear()
        if self._rounds >= self._limits.min_rounds:
            self._before = self._served
        self._new_watch()

    @property
    def _served(self) -> Tally:
        return Tally(self._accepted, self._rounds)

    def _new_watch(self) -> None:
        self._accepted = self._rounds = 0
        self._requests.clear()

    def _count(self, step: VerifyStep) -> None:
        self._accepted += step.accepted
        self._rounds += 1
        if len(self._requests) < MIN_REQUESTS:
            self._requests.add(step.request_id)
        if step.request_id in self._before_it:
            return
        stretch = self._running.get(step.request_id)
        if stretch is None:
            stretch = self._running[step.request_id] = Stretch(step.request_id, self._looks)
            if len(self._running) > MAX_RUNNING:
                del self._running[next(iter(self._running))]
        stretch.add(step.accepted)
        if self._trial is not None:
            self._trial.count(step.request_id, step.accepted, ended=bool(step.commit.finish))

    def _end(self, request_id: str) -> None:
        stretch = self._running.pop(request_id, None)
        if stretch is not None:
            self._ended.append(stretch)

    def _ask(self) -> None:
        state = self._board.read()
        if self._version is not None and self._version == state.canary == state.drafts_on(self._replica):
            trial = CanaryTrial(self._board, self._replica, self._version, self._rules, self._looks)
            trial.take_up([*self._ended, *self._running.values()], self._running)
            self._trial = trial
        self._is_asked = True

    def _guard(self, now: float) -> None:
        limits, before = self._limits, self._before
        if self._trial is not None:
            limits = replace(limits, min_rounds=min(limits.min_rounds, CANARY_MIN_ROUNDS))
            before = self._trial.live if self._trial.live.rounds >= limits.min_rounds else before
        if self._rounds < limits.min_rounds or len(self._requests) < MIN_REQUESTS:
            return
        readings = Readings(served=self._served, served_before=before)
        if alarms(readings, limits):
            state = self._board.read()
            for alarm in alarms(replace(readings, can_roll_back=self._may_go(state)), limits):
                self._act(alarm, state, now)
        self._before = self._served
        self._new_watch()

    def _may_go(self, state: BoardState) -> bool:
        if self._version == state.canary:
            return True
        if state.live is None or self._version != state.live or state.previous is None:
            return False
        # A roll back dates both of its events alike.
        returned_at = state.rows[state.live].changed_at
        gone = (row for row in state.rows.values() if row.state is VersionState.ROLLED_BACK)
        return all(row.changed_at != returned_at for row in gone)

    def _act(self, alarm: Alarm, state: BoardState, now: float) -> None:
        log.error("paceline: alarm %s on version %s: %s", alarm.name, self._version, alarm.reading)
        if alarm.action is Action.ROLL_BACK and self._version is not None:
            was = VersionState.CANARY if self._version == state.canary else VersionState.LIVE
            self._roll_back(f"{alarm.name}: {alarm.reading}", was)
        self._alarms.append({"name": alarm.name, "reading": alarm.reading, "version": self._version, "at": now})

    def _roll_back(self, why: str, was: VersionState) -> None:
        try:
            self._board.roll_back(f"replica:{self._replica}", why, self._version, was)
        except BoardConflict as conflict:
            log.warning("paceline: version %s was moved by somebody else: %s", self._version, conflict)
