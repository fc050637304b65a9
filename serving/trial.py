"""What a replica's draft does, from its rounds as they are served: a canary's trial, and the alarm for a dead draft.

Traces come when their request has ended; a bad draft must be out before that. So the courier counts rounds here and
says on the board what they show. A canary is held against what other replicas serve meanwhile with the live version:
the same traffic, so a shift of the traffic is not taken for a worse draft.
"""

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from ..buffer.base import VersionBoard
from ..buffer.errors import BoardConflict, BufferUnavailable
from ..buffer.version import BoardState, VersionState
from ..policies.acceptance import Tally
from ..policies.canary import Arm, CanaryDecision, CanaryRules, CanaryTest
from ..policies.guard import Action, Alarm, GuardLimits, Readings, alarms
from .steps import Step, VerifyStep
from .stretch import Stretch, read_stretch

log = logging.getLogger(__name__)

#: Ended stretches a replica reports; with a reading a second, a busy replica reports a sample.
REPORTED_STRETCHES = 64
#: Running requests counted. One that is aborted while it waits never says that it ended; this bounds those.
MAX_RUNNING = 4096
#: Between two looks at what the other replicas report, while a canary is on trial.
READ_S = 1.0
REPORTED_ALARMS = 8


class DraftWatch:
    """Counts the rounds of one replica by version; for the courier's thread.

    A canary that drafts here is promoted or rolled back on the board by CanaryTest's verdict. A live version that
    dies in silence is rolled back when there is one before it. Requests that were running when the version changed
    count from there on. While Redis is away nothing is decided, and counting goes on.
    """

    def __init__(self, board: VersionBoard, replica: str, rules: CanaryRules, limits: GuardLimits) -> None:
        self._board, self._replica, self._rules, self._limits = board, replica, rules, limits
        self._looks = sorted(set(rules.early_rounds))
        self._version: int | None = None
        self._running: dict[str, Stretch] = {}
        self._ended: deque[Stretch] = deque(maxlen=REPORTED_STRETCHES)
        self._trial: CanaryTest | None = None
        self._is_asked = True  # whether the board was asked about this version
        self._known: set[tuple[str, str]] = set()  # (replica, request) of live stretches in the trial
        self._read_at = 0.0
        self._accepted = self._rounds = 0  # of this watch
        self._before = Tally()  # the watch before
        self._alarms: deque[dict[str, Any]] = deque(maxlen=REPORTED_ALARMS)

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
                self._ask(now)
            if self._trial is not None:
                self._read_others(now)
                self._judge(self._trial)
            self._guard(now)
        except BufferUnavailable:
            return  # the courier reports it; the next turn decides
        except BoardConflict as conflict:
            log.warning("paceline: version %s was moved by somebody else: %s", self._version, conflict)
            self._trial = None

    def reading(self) -> dict[str, object]:
        """For the replica's heartbeat, where the courier of a canary finds its live arm."""
        ended = [stretch.reading() for stretch in self._ended]
        stretches = {"version": self._version, "ended": ended}
        return {"stretches": stretches, "alarms": list(self._alarms)}

    def _change(self, version: int) -> None:
        self._version, self._is_asked, self._trial = version, False, None
        self._running.clear()
        self._ended.clear()
        if self._rounds >= self._limits.min_rounds:
            self._before = Tally(self._accepted, self._rounds)
        self._accepted = self._rounds = 0

    def _count(self, step: VerifyStep) -> None:
        stretch = self._running.get(step.request_id)
        if stretch is None:
            stretch = self._running[step.request_id] = Stretch(step.request_id, self._looks)
            if len(self._running) > MAX_RUNNING:
                del self._running[next(iter(self._running))]
        stretch.add(step.accepted)
        self._accepted += step.accepted
        self._rounds += 1
        if self._trial is not None:
            self._trial.observe(Arm.CANARY, step.request_id, Tally(step.accepted, 1), ended=bool(step.commit.finish))

    def _end(self, request_id: str) -> None:
        stretch = self._running.pop(request_id, None)
        if stretch is not None:
            self._ended.append(stretch)

    def _ask(self, now: float) -> None:
        state = self._board.read()
        self._is_asked = True
        if self._version is None or self._version != state.canary or state.drafts_on(self._replica) != self._version:
            return
        self._trial, self._read_at = CanaryTest(self._rules), 0.0
        self._known.clear()
        self._read_others(now)  # first: rounds of a canary say nothing without the live arm
        for stretch in [*self._ended, *self._running.values()]:  # served since it came, while nobody knew
            self._observe(Arm.CANARY, stretch, ended=stretch.request_id not in self._running)

    def _read_others(self, now: float) -> None:
        if now < self._read_at:
            return
        self._read_at = now + READ_S
        live = self._board.read().live
        for member, reading in self._board.heartbeats().items():
            if member.startswith("replica:") and member != f"replica:{self._replica}":
                self._take(member, reading.get("stretches"), live)

    def _take(self, member: str, told: object, live: int | None) -> None:
        if not isinstance(told, Mapping) or told.get("version") != live or not isinstance(told.get("ended"), list):
            return
        for value in told["ended"]:
            stretch = read_stretch(value, self._looks)
            if stretch is not None and (member, stretch.request_id) not in self._known:
                self._known.add((member, stretch.request_id))
                self._observe(Arm.LIVE, stretch, ended=True)

    def _observe(self, arm: Arm, stretch: Stretch, *, ended: bool) -> None:
        assert self._trial is not None  # noqa: S101 - called while there is one
        pieces = list(stretch.pieces())
        for piece in pieces[:-1]:
            self._trial.observe(arm, stretch.request_id, piece, ended=False)
        self._trial.observe(arm, stretch.request_id, pieces[-1], ended=ended)

    def _judge(self, trial: CanaryTest) -> None:
        verdict = trial.verdict()
        if verdict.decision is CanaryDecision.WAIT:
            return
        assert self._version is not None  # noqa: S101 - a trial has a version
        if self._board.read().canary != self._version:  # an operator's hand goes before the trial's
            self._trial = None
            return
        if verdict.decision is CanaryDecision.ROLL_BACK:
            self._board.roll_back(f"replica:{self._replica}", verdict.reason, self._version)
        else:
            self._board.move(self._version, VersionState.LIVE, f"replica:{self._replica}", verdict.reason)
        self._trial = None

    def _guard(self, now: float) -> None:
        if self._rounds < self._limits.min_rounds:
            return
        served = Tally(self._accepted, self._rounds)
        if alarms(Readings(served=served, served_before=self._before), self._limits):
            state = self._board.read()
            can_roll_back = state.previous is not None and state.live == self._version
            for alarm in alarms(Readings(can_roll_back, served, self._before), self._limits):
                self._act(alarm, state, now)
        self._before, self._accepted, self._rounds = served, 0, 0

    def _act(self, alarm: Alarm, state: BoardState, now: float) -> None:
        log.error("paceline: alarm %s on version %s: %s", alarm.name, self._version, alarm.reading)
        self._alarms.append({"name": alarm.name, "reading": alarm.reading, "version": self._version, "at": now})
        if alarm.action is Action.ROLL_BACK:
            self._board.roll_back(f"replica:{self._replica}", f"{alarm.name}: {alarm.reading}", state.live)
