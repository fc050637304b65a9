"""When to learn: when the live draft has kept losing ground, or when enough traffic has come that it has not seen.

Learning costs what serving could use, so the default rests while the draft keeps its level on known traffic.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from river.drift import ADWIN

from .acceptance import Tally

_ADWIN: Any = ADWIN  # river's classes are not typed


class LearnMode(StrEnum):
    """What decides: nothing ever (a baseline without updates), a timer, or the traffic."""

    NEVER = "never"
    ALWAYS = "always"
    DRIFT = "drift"


class LearnChoice(StrEnum):
    """What the learner should do now."""

    LEARN = "learn"
    REST = "rest"


@dataclass(frozen=True, slots=True)
class LearnDecision:
    """What was decided and why, in one sentence with figures."""

    choice: LearnChoice
    reason: str


@dataclass(frozen=True, slots=True)
class LearnRules:
    """The numbers of the decision. ValueError when one is out of its range.

    Two levels each, one to begin and one to stop, so that a figure on the edge does not switch learning on and off.
    """

    mode: LearnMode = LearnMode.DRIFT
    cool_down_s: float = 60.0  # least time between the ends of one round and the beginning of the next, in any mode
    period_s: float = 600.0  # between rounds under `always`
    fall_share: float = 0.10  # loss of accepted drafts per round that begins learning
    recovered_share: float = 0.05  # loss at which learning stops again
    sustained_requests: int = 20  # requests since the fall before it counts
    give_up_rounds: int = 8  # rounds learnt from one fall, then the level there is the new normal
    fresh_begin: float = 0.5  # share of the traces at hand not learnt from that begins learning
    fresh_stop: float = 0.1  # share at which it stops
    min_fresh: int = 40  # fresh traces that make a share worth looking at
    delta: float = 0.002  # ADWIN's confidence: a smaller one cuts later and less often by mistake

    def __post_init__(self) -> None:
        if not 0.0 <= self.recovered_share <= self.fall_share < 1.0:
            raise ValueError(
                f"recovered_share, fall_share: got {self.recovered_share}, {self.fall_share}, "
                "expected 0 <= recovered_share <= fall_share < 1"
            )
        if not 0.0 <= self.fresh_stop <= self.fresh_begin:
            raise ValueError(
                f"fresh_stop, fresh_begin: got {self.fresh_stop}, {self.fresh_begin}, expected 0 <= stop <= begin"
            )
        if min(self.cool_down_s, self.period_s) < 0.0 or min(self.sustained_requests, self.give_up_rounds) < 1:
            raise ValueError(f"rules: got {self}, expected times of at least 0 and counts of at least 1")


class LevelWatch:
    """Has the accepted length per request fallen, and has it come back?

    Changes are found by ADWIN (Bifet, Gavalda 2007; river's), which needs no scale and no reference set: it cuts its
    window where the newer part has another mean. Behind a cut the level is measured anew, and held against the
    highest level before any cut since the last one taken for normal, so that many small falls add up to one.
    """

    def __init__(self, rules: LearnRules) -> None:
        self._rules = rules
        self._detector = _ADWIN(delta=rules.delta, clock=1)
        self.has_fallen = False
        self.before: float | None = None  # accepted per round to be held against; None: no cut since all was normal
        self._since_n = 0
        self._since_sum = 0.0

    def observe(self, served: Tally) -> None:
        """One request, in the order served; without rounds it says nothing."""
        if not served.rounds:
            return
        value = served.accepted / served.rounds
        self._since_n, self._since_sum = self._since_n + 1, self._since_sum + value
        old = self._cut(value)
        if old is not None:
            self.before = max(old, self.before or 0.0)
            self._since_n, self._since_sum = 0, 0.0
        elif self.before is not None and self._since_n >= self._rules.sustained_requests:
            self._compare(self.before)

    @property
    def level(self) -> float:
        """Accepted per round and request since the last cut, or since the level was taken for normal; 0 without one."""
        return self._since_sum / self._since_n if self._since_n else 0.0

    def accept_level(self) -> None:
        """Take the level as it is for the normal one."""
        self.has_fallen, self.before = False, None

    def _cut(self, value: float) -> float | None:
        """Feed ADWIN; the mean of what it cut off, None without a cut."""
        detector = self._detector
        width, total = detector.width, detector.total
        detector.update(value)
        cut_n = width + 1 - detector.width
        return (total + value - detector.total) / cut_n if detector.drift_detected and cut_n else None

    def _compare(self, before: float) -> None:
        # Two edges: a level between them leaves things as they are.
        if self.level < before * (1.0 - self._rules.fall_share):
            self.has_fallen = True
        elif self.level >= before * (1.0 - self._rules.recovered_share):
            self.accept_level()


class LearnWatch:
    """Decides whether to learn. Deterministic; times are passed in and must not run backwards."""

    def __init__(self, rules: LearnRules) -> None:
        self._rules = rules
        self._watch = LevelWatch(rules)
        self._learnt_at_s: float | None = None
        self._rounds_in_fall = 0
        self._is_fresh = False

    def observe(self, served: Tally) -> None:
        """What the live draft had accepted on one request, in the order served."""
        self._watch.observe(served)

    def learnt(self, now_s: float) -> None:
        """A round has ended at `now_s`; the cool-down begins."""
        self._learnt_at_s = now_s
        self._rounds_in_fall = self._rounds_in_fall + 1 if self._watch.has_fallen else 0
        if self._rounds_in_fall >= self._rules.give_up_rounds:
            self._watch.accept_level()
            self._rounds_in_fall = 0

    def decide(self, now_s: float, fresh: int, known: int) -> LearnDecision:
        """Learn now? `fresh` traces at hand are not learnt from, `known` ones are. Moves the hysteresis of freshness.

        Under `never` always rests; otherwise rests through the cool-down, and without a fresh trace or a fall.
        """
        rules = self._rules
        if rules.mode is LearnMode.NEVER:
            return LearnDecision(LearnChoice.REST, "learning is set to never")
        passed_s = float("inf") if self._learnt_at_s is None else now_s - self._learnt_at_s
        if passed_s < rules.cool_down_s:
            return LearnDecision(
                LearnChoice.REST, f"{passed_s:.0f} s since the last round, {rules.cool_down_s:g} s asked"
            )
        if rules.mode is LearnMode.ALWAYS:
            choice = LearnChoice.LEARN if passed_s >= rules.period_s else LearnChoice.REST
            return LearnDecision(
                choice, f"{passed_s:.0f} s since the last round, one is due every {rules.period_s:g} s"
            )
        return self._by_traffic(fresh, known)

    def _by_traffic(self, fresh: int, known: int) -> LearnDecision:
        rules, watch, share = self._rules, self._watch, fresh / max(fresh + known, 1)
        self._is_fresh = fresh >= rules.min_fresh and share >= (
            rules.fresh_stop if self._is_fresh else rules.fresh_begin
        )
        if watch.has_fallen:
            reason = f"accepted per round fell from {watch.before or 0.0:.3f} to {watch.level:.3f}"
            return LearnDecision(LearnChoice.LEARN, f"{reason}, {self._rounds_in_fall} rounds learnt since")
        figures = f"{fresh} of {fresh + known} traces ({share:.0%}) are not learnt from"
        if self._is_fresh:
            return LearnDecision(LearnChoice.LEARN, figures)
        return LearnDecision(LearnChoice.REST, f"{figures}, the level holds at {watch.level:.3f} accepted per round")
