"""Does a version serve worse than the live one? A sequential test of served rounds, valid at every look.

Two tests run side by side and share the error that `confidence` leaves:

- *harm*, fast (canary_begins.py): on how requests begin, also those that still run. It can only say ROLL_BACK.
- *gain*, slow: an interval for the difference in pooled accept length that holds at every look together.

Requests, not rounds, are the unit of chance in both: rounds of one request resemble each other. Both assume that the
arms draw from the same traffic: replicas behind one router do; two canary turns of one replica do only while the
traffic does not change, so alternate several short turns there.

Looked for on PyPI before writing this: confseq 0.0.11 needs Boost and a C++ compiler to install; savvi 0.3.1 tests
multinomials and regressions and brings cvxpy; ville 0.1.0, a first release, compares single values assigned with a
known chance. None knows ratios of clustered rounds or a test on ranks, and the formulas needed are short.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

from ..buffer.board.reason import Reason, ReasonCode, because
from .acceptance import Tally
from .canary_begins import BeginTests


class Arm(StrEnum):
    """Which version drafted a round."""

    CANARY = "canary"
    LIVE = "live"


class CanaryDecision(StrEnum):
    """What to do with the canary."""

    PROMOTE = "promote"
    ROLL_BACK = "roll_back"
    WAIT = "wait"


class Basis(StrEnum):
    """What a verdict rests on."""

    NOTHING_YET = "nothing_yet"
    HARM = "harm"
    INTERVAL = "interval"
    LIMIT = "limit"  # undecided when the canary's requests were used up


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryVerdict:
    """What was decided, and the figures it was decided on."""

    decision: CanaryDecision
    basis: Basis
    reason: Reason
    gain: float  # accept length of the canary minus that of the live version
    interval: tuple[float, float]  # of the gain, valid at every look; (-inf, inf) with too few requests
    canary: Tally
    live: Tally
    canary_requests: int  # with at least one round
    live_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRules:
    """The numbers of the test. ValueError when one is out of its range."""

    confidence: float = 0.95  # 1 - confidence bounds the chance of any verdict on evidence between equal drafts
    min_effect: float = 0.1  # gain in accept length at which the interval is tightest
    non_inferiority: float = 0.1  # loss in accept length; an undecided canary that has it goes live with 1 - confidence
    min_requests: int = 30  # of each arm; with fewer there is no interval
    max_requests: int = 2000  # of the canary; there the test ends
    harm_share: float = 0.4  # part of 1 - confidence that the harm test may spend
    early_rounds: tuple[int, ...] = (4, 8, 16, 24)  # of a request: where the harm test looks at it

    def __post_init__(self) -> None:
        if not (0.0 < self.confidence < 1.0 and 0.0 < self.harm_share < 1.0):
            raise ValueError(
                f"confidence, harm_share: got {self.confidence}, {self.harm_share}, expected within (0, 1)"
            )
        if not (self.min_effect > 0.0 and self.non_inferiority >= 0.0):
            raise ValueError(
                f"min_effect, non_inferiority: got {self.min_effect}, {self.non_inferiority}, expected > 0 and >= 0"
            )
        if not 2 <= self.min_requests <= self.max_requests:
            raise ValueError(
                f"min_requests, max_requests: got {self.min_requests}, {self.max_requests}, expected 2 <= min <= max"
            )
        if not self.early_rounds or min(self.early_rounds) < 1:
            raise ValueError(f"early_rounds: got {self.early_rounds}, expected numbers of rounds, at least one")


class _ArmSums:
    """Running sums over the requests of one arm; a request's tally may still grow."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.total = Tally()
        #: Sums over requests of accepted^2, accepted * rounds, rounds^2.
        self.squares: tuple[float, float, float] = (0, 0, 0)

    def add(self, request_id: str, served: Tally) -> tuple[Tally, Tally]:
        """The request's tally without `served`, and with it."""
        before = self.tallies.get(request_id, Tally())
        after = before + served
        if after.rounds:
            self.tallies[request_id] = after
        self.total += served
        grown = zip(self.squares, _squares(after), _squares(before), strict=True)
        self.squares = tuple(total + new - old for total, new, old in grown)  # type: ignore[assignment] # three in, three out
        return before, after

    def variance(self) -> float:
        """Of the pooled accepted per round, requests as units: sum (a - ratio * r)^2 / (n - 1) / n / mean(r)^2."""
        n = len(self.tallies)
        rounds = self.total.rounds
        ratio = self.total.accepted / rounds
        aa, ar, rr = self.squares
        spread = max(aa - 2 * ratio * ar + ratio * ratio * rr, 0.0)
        return spread * n / (n - 1) / rounds**2


class CanaryTest:
    """Collects rounds of both arms and says what they show. Deterministic: the same calls give the same verdicts.

    Feed it first with what the live version served shortly before, as history: the harm test compares ranks, and a
    canary that is dead is out sooner among two hundred live requests than among ten, while they are of the same
    traffic. The interval leaves history out, for the traffic may have changed since, and then the better arm would be
    the one that saw the easier part.

    Where the live arm is reported later than the canary's rounds, set `live_known_until`, so that begins of the same
    minutes are compared. Times are seconds on any one clock.
    """

    def __init__(self, rules: CanaryRules) -> None:
        self._rules = rules
        self._arms = {Arm.CANARY: _ArmSums(), Arm.LIVE: _ArmSums()}
        self._history = _ArmSums()  # of the live version, before the canary came
        error = 1.0 - rules.confidence
        self._begins = BeginTests(sorted(set(rules.early_rounds)), error * rules.harm_share, error)
        #: The live arm is known up to this time; the harm test lets later rounds of the canary wait.
        self.live_known_until = math.inf

    def observe(
        self, arm: Arm, request_id: str, served: Tally, *, ended: bool, is_history: bool = False, at: float = 0.0
    ) -> None:
        """Add rounds of one request, in the order served; `ended` when none will follow.

        `is_history` marks requests of the live version that ended before the canary came. Only rounds drafted by the
        arm's own version: a request that spans the swap is split by its caller or left out. Tallies may hold
        one round or many, cut alike in both arms. `at`: when the canary served them.
        """
        before, now = (self._history if is_history else self._arms[arm]).add(request_id, served)
        if now.rounds and arm is Arm.CANARY:
            self._begins.add_canary(request_id, before, now, ended=ended, at=at)
        elif now.rounds:
            self._begins.add_live(request_id, before, now, ended=ended, is_history=is_history)

    def live_began(self, request_id: str, began: Tally, *, is_history: bool = False) -> None:
        """The first `began.rounds` rounds of a live request that still runs, for the harm test alone.

        One of `early_rounds` is expected, shorter ones first; `observe` may bring the same rounds again once it ended.
        """
        self._begins.add_live(request_id, Tally(0, began.rounds - 1), began, ended=False, is_history=is_history)

    @property
    def has_live_begins(self) -> bool:
        """Whether a request of the live version is known to have begun since the canary came."""
        return self._begins.has_live

    def verdict(self) -> CanaryVerdict:
        """What the rounds so far show; may be asked after every round. Begins that have come are compared first."""
        self._begins.compare(self.live_known_until)
        canary = self._arms[Arm.CANARY]
        live = self._arms[Arm.LIVE]
        gain = canary.total.accept_length - live.total.accept_length
        interval = self._interval(gain)
        decision, basis, reason = self._decide(gain, interval)
        counts = len(canary.tallies), len(live.tallies)
        reason = reason.but(
            canary_accept_length=canary.total.accept_length,
            canary_requests=counts[0],
            canary_rounds=canary.total.rounds,
            live_accept_length=live.total.accept_length,
            live_requests=counts[1],
            live_rounds=live.total.rounds,
            gain=gain,
            confidence=self._rules.confidence,
            gain_low=interval[0],
            gain_high=interval[1],
        )
        return CanaryVerdict(
            decision=decision,
            basis=basis,
            reason=reason,
            gain=gain,
            interval=interval,
            canary=canary.total,
            live=live.total,
            canary_requests=counts[0],
            live_requests=counts[1],
        )

    def _interval(self, gain: float) -> tuple[float, float]:
        arms = self._arms.values()
        if any(len(arm.tallies) < self._rules.min_requests for arm in arms):
            return -math.inf, math.inf
        error = (1.0 - self._rules.confidence) * (1.0 - self._rules.harm_share)
        half = anytime_half_width(sum(arm.variance() for arm in arms), error, self._rules.min_effect)
        return gain - half, gain + half

    def _decide(self, gain: float, interval: tuple[float, float]) -> tuple[CanaryDecision, Basis, Reason]:
        low, high = interval
        if harmed := self._begins.accusation():
            return CanaryDecision.ROLL_BACK, Basis.HARM, harmed
        if low > 0.0:
            return CanaryDecision.PROMOTE, Basis.INTERVAL, because(ReasonCode.CANARY_GAINS)
        if high < 0.0:
            return CanaryDecision.ROLL_BACK, Basis.INTERVAL, because(ReasonCode.CANARY_LOSES)
        if len(self._arms[Arm.CANARY].tallies) < self._rules.max_requests:
            return CanaryDecision.WAIT, Basis.NOTHING_YET, because(ReasonCode.CANARY_WAITS)
        return self._decide_last(gain)

    def _decide_last(self, gain: float) -> tuple[CanaryDecision, Basis, Reason]:
        """At the limit: one look, at a number of requests that was set before, so an interval for one look decides.

        That of every look is about twice as wide, and would turn away most drafts that are as good as the live one.
        """
        rules = self._rules
        arms = self._arms.values()
        has_few = any(len(arm.tallies) < rules.min_requests for arm in arms)
        error = math.inf if has_few else math.sqrt(sum(arm.variance() for arm in arms))
        low = gain - NormalDist().inv_cdf(rules.confidence) * error
        decision, code = (
            (CanaryDecision.PROMOTE, ReasonCode.CANARY_EQUAL)
            if low > -rules.non_inferiority
            else (CanaryDecision.ROLL_BACK, ReasonCode.CANARY_UNPROVEN)
        )
        return decision, Basis.LIMIT, because(code, limit=rules.max_requests, bound=low, margin=rules.non_inferiority)


def anytime_half_width(variance: float, error: float, effect: float) -> float:
    """Half width of an interval around an estimate with `variance` that holds at all times with 1 - error.

        sqrt(V (1 + V / t^2) (log(1 + t^2 / V) + 2 log(1 / error)))        t = effect

    The normal-mixture bound in information time 1 / V: Robbins 1970; for A/B tests the mSPRT of Johari, Pekelis,
    Walsh 2015 and, with estimated variances, the asymptotic confidence sequences of Waudby-Smith, Arbour, Sinha,
    Kennedy, Ramdas 2021. Narrowest, relative to an interval for one look, about where it reaches `effect`, and wide
    while there are few requests, which is where its asymptotics would be least trustworthy. 0 without variance.
    """
    if variance <= 0.0:
        return 0.0
    share = variance / effect**2
    return math.sqrt(variance * (1.0 + share) * (math.log1p(1.0 / share) + 2.0 * math.log(1.0 / error)))


def _squares(tally: Tally) -> tuple[float, float, float]:
    return tally.accepted**2, tally.accepted * tally.rounds, tally.rounds**2
