"""When to learn: while it pays, and again when the live draft has lost ground or meets traffic it does badly on.

Learning costs what serving could use, so the default rests once several learning rounds in a row made no better draft.
A rest begins by one measure (the gate's) and ends by others (what is served), so no borderline figure can switch it on
and off.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..buffer.board.reason import Reason, ReasonCode, because
from .acceptance import Tally


class LearnMode(StrEnum):
    """DRIFT: served traffic decides. ALWAYS: every learning round trains. NEVER: none does (baseline)."""

    DRIFT = "drift"
    ALWAYS = "always"
    NEVER = "never"


class LearnChoice(StrEnum):
    """What the learner should do with the claimed traces."""

    LEARN = "learn"
    REST = "rest"


@dataclass(frozen=True, slots=True)
class LearnDecision:
    """What was decided and why."""

    choice: LearnChoice
    reason: Reason
    has_drifted: bool = False  # whether what is served changed, which ends a rest


#: Requests before a rest that its traffic is compared with.
USUAL_REQUESTS = 200
#: Requests that are remembered, of a rest and before one; a change is found in far fewer.
REMEMBERED_REQUESTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnRules:
    """The numbers of the decision. ValueError when one is out of its range."""

    mode: LearnMode = LearnMode.DRIFT
    flat_rounds: int = 6  # learning rounds in a row without a better draft that begin a rest
    flat_requests: int = 200  # served in them, at least: a few small learning rounds prove no gain, however large
    cool_down_s: float = 60.0  # the shortest rest
    fall_share: float = 0.10  # loss of accepted drafts per round that ends a rest
    sustained_requests: int = 20  # requests since the fall before it counts
    low_share: float = 0.10  # of the requests before the rest: the worst ones, which set what counts as low
    unexplored_share: float = 0.30  # of the latest requests being that low ends a rest
    latest_requests: int = 40  # how many the latest are
    delta: float = 0.002  # ADWIN's confidence: a smaller one cuts later and less often by mistake

    def __post_init__(self) -> None:
        if min(self.flat_rounds, self.sustained_requests, self.latest_requests) < 1 or self.cool_down_s < 0.0:
            raise ValueError(f"rules: got {self}, expected counts of at least 1 and a cool-down of at least 0 s")
        if not 1 <= self.flat_requests <= REMEMBERED_REQUESTS:
            raise ValueError(f"rules: got {self}, expected 1 to {REMEMBERED_REQUESTS} flat_requests")
        if not 0.0 < self.low_share < self.unexplored_share < 1.0 or not 0.0 < self.fall_share < 1.0:
            raise ValueError(f"rules: got {self}, expected 0 < low_share < unexplored_share < 1 and 0 < fall_share < 1")


@dataclass(slots=True)
class _Rest:
    began_at_s: float
    usual: tuple[float, ...]  # accepted per round of requests before it, oldest first


@dataclass(frozen=True, slots=True)
class Standing:
    """What a schedule waits for, for people."""

    next: str  # what ends the rest or begins one
    flat_rounds: int
    rest_after_flat_rounds: int
    rested_s: float | None = None  # None: it does not rest


class LearnSchedule:
    """Decides whether to learn; begins as a learner that never rested. Deterministic; times are unix seconds."""

    def __init__(self, rules: LearnRules) -> None:
        self._rules = rules
        self._flat_rounds = 0
        # Flat rounds and `_latest` before the last better draft, while it may be rolled back.
        self._before: tuple[int, tuple[float, ...]] | None = None
        self._rest: _Rest | None = None
        # Accepted per round by request, since the rest began; while learning, since the last better draft.
        self._latest: deque[float] = deque(maxlen=REMEMBERED_REQUESTS)

    def observe(self, served: Iterable[Tally]) -> None:
        """Add what was accepted of each request, in the order served; requests without rounds are left out."""
        self._latest.extend(tally.accepted / tally.rounds for tally in served if tally.rounds)

    def decide(self, now_s: float) -> LearnDecision:
        """Whether to learn from the claimed traces. LEARN ends a rest."""
        mode = self._rules.mode
        if mode is not LearnMode.DRIFT:
            choice = LearnChoice.REST if mode is LearnMode.NEVER else LearnChoice.LEARN
            return LearnDecision(choice, because(ReasonCode.LEARNING_SET, mode=mode.value))
        if self._rest is None:
            flat = because(
                ReasonCode.FEW_FLAT_ROUNDS, flat_rounds=self._flat_rounds, rest_after=self._rules.flat_rounds
            )
            return LearnDecision(LearnChoice.LEARN, flat)
        decision = self._judge(self._rest, now_s)
        if decision.choice is LearnChoice.LEARN:
            self._rest = None
            self._flat_rounds = 0
            self._latest.clear()
        return decision

    def record_learning(self, now_s: float, *, is_better: bool | None, is_warm: bool) -> None:
        """Note the end of a learning round that trained; under `drift` a rest may begin here.

        `is_better`: whether the gate let the candidate pass; None while it waits, which counts neither way. A draft
        that is not warm goes on learning whatever the gate says: its first gains are too small to be seen.
        """
        self._before = (self._flat_rounds, tuple(self._latest)) if is_better and is_warm else None
        if is_better:
            self._latest.clear()  # an older draft served them
        if is_better or not is_warm:
            self._flat_rounds = 0
        elif is_better is not None:
            self._flat_rounds += 1
        self._rest_if_done(now_s)

    def record_rollback(self, now_s: float) -> None:
        """Note that the last better draft was rolled back in serving: no gain, so a rest may begin here.

        Otherwise a gate that lets everything pass and a canary that lets nothing pass would keep the learner training
        for ever. Without a better draft, or called a second time, nothing changes.
        """
        if self._before is not None:
            flat_rounds, latest = self._before
            self._flat_rounds = flat_rounds + 1
            self._before = None
            self._latest = deque((*latest, *self._latest), maxlen=REMEMBERED_REQUESTS)
            self._rest_if_done(now_s)

    def _rest_if_done(self, now_s: float) -> None:
        rules = self._rules
        is_done = self._flat_rounds >= rules.flat_rounds and not self._lacking_requests
        if rules.mode is LearnMode.DRIFT and is_done:
            self._rest = _Rest(now_s, tuple(self._latest)[-USUAL_REQUESTS:])
            self._latest.clear()

    @property
    def _lacking_requests(self) -> int:
        """How many must yet come before a rest may begin."""
        return max(max(self._rules.flat_requests, self._rules.latest_requests) - len(self._latest), 0)

    def _judge(self, rest: _Rest, now_s: float) -> LearnDecision:
        rules = self._rules
        rest.began_at_s = min(rest.began_at_s, now_s)  # a clock set back must not lengthen the rest
        rested_s = now_s - rest.began_at_s
        if rested_s < rules.cool_down_s:
            waits = because(ReasonCode.JUST_AT_REST, rested_s=rested_s, cool_down_s=rules.cool_down_s)
            return LearnDecision(LearnChoice.REST, waits)
        usual = sum(rest.usual) / len(rest.usual)
        level = _level_after_a_cut(rest.usual, self._latest, rules)
        if level is not None and level < usual * (1.0 - rules.fall_share):
            return _drifted(because(ReasonCode.ACCEPTED_FELL, usual=usual, level=level))
        latest = tuple(self._latest)[-rules.latest_requests :]
        low = sum(value < _low(rest.usual, rules.low_share) for value in latest)
        found = because(ReasonCode.UNEXPLORED, low=low, latest=len(latest), one_in=round(1.0 / rules.low_share))
        if len(latest) >= rules.latest_requests and low >= rules.unexplored_share * len(latest):
            return _drifted(found)
        stays = found.but(ReasonCode.NOTHING_NEW, flat_rounds=rules.flat_rounds, usual=usual)
        return LearnDecision(LearnChoice.REST, stays)

    def standing(self, now_s: float) -> Standing:
        """What it waits for now."""
        rules = self._rules
        rest = self._rest
        if rules.mode is not LearnMode.DRIFT:
            return Standing(f"learning is set to {rules.mode.value}", self._flat_rounds, rules.flat_rounds)
        if rest is None:
            lacking = max(rules.flat_rounds - self._flat_rounds, 0)
            left = f"{lacking} more flat rounds and {self._lacking_requests} more requests"
            return Standing(f"{left} begin a rest", self._flat_rounds, rules.flat_rounds)
        rested_s = max(now_s - rest.began_at_s, 0.0)
        usual = sum(rest.usual) / len(rest.usual)
        low = _low(rest.usual, rules.low_share)
        fallen = usual * (1.0 - rules.fall_share)
        ends = (
            f"a rest ends after {rules.cool_down_s:g} s, once accepted per round falls under {fallen:.3f}, or "
            f"{rules.unexplored_share:.0%} of {rules.latest_requests} requests are under {low:.3f}"
        )
        return Standing(ends, self._flat_rounds, rules.flat_rounds, round(rested_s, 3))

    def state(self) -> dict[str, object]:
        """What continuing needs, as JSON values; a restored schedule decides as this one would."""
        rest = None if self._rest is None else {"began_at_s": self._rest.began_at_s, "usual": list(self._rest.usual)}
        before = None if self._before is None else [self._before[0], list(self._before[1])]
        return {"flat_rounds": self._flat_rounds, "before": before, "latest": list(self._latest), "rest": rest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; an empty one is that of a schedule that has seen nothing."""
        rest = state.get("rest")
        self._flat_rounds = int(state.get("flat_rounds", 0))
        before = state.get("before")
        self._before = (before[0], tuple(before[1])) if before else None
        self._latest = deque(state.get("latest", ()), maxlen=REMEMBERED_REQUESTS)
        self._rest = _Rest(rest["began_at_s"], tuple(rest["usual"])) if rest else None


def _drifted(reason: Reason) -> LearnDecision:
    return LearnDecision(LearnChoice.LEARN, reason, has_drifted=True)


def _low(usual: Sequence[float], share: float) -> float:
    """The value that at most `share` of `usual` are below."""
    return sorted(usual)[int(share * len(usual))]


def _level_after_a_cut(usual: Sequence[float], latest: Iterable[float], rules: LearnRules) -> float | None:
    """Mean of what ADWIN kept when it cut its window among `latest`; None without a cut or while too few came since.

    ADWIN (Bifet, Gavalda 2007; river's) needs no scale: it cuts where the newer part of its window has another mean.
    """
    # Its import takes over a second: only a learner at rest pays for it.
    from river.drift import ADWIN  # noqa: PLC0415

    made: Any = ADWIN  # river's classes are not typed
    detector = made(delta=rules.delta, clock=1)
    has_cut = False
    for value in usual:
        detector.update(value)
    for value in latest:
        detector.update(value)
        has_cut = has_cut or detector.drift_detected
    return float(detector.estimation) if has_cut and detector.width >= rules.sustained_requests else None
