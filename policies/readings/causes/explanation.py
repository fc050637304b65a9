"""Explanation: why serving is faster or slower now than before, the largest cause first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from .amounts import Amounts, added
from .change import Change, change
from .length_evidence import (
    draft_evidence,
    labels_evidence,
    sampling_evidence,
    stale_evidence,
    uncaptured_evidence,
)
from .noise import FALSE_BLAME, SMALLEST, Figure, Noise, is_noise, noise_of
from .parts import REMEDIES, Cause, Factor, Part, factor_of
from .step_evidence import (
    batch_evidence,
    learner_evidence,
    load_evidence,
    phase_evidence,
    rest_evidence,
    steps_evidence,
)

_EVIDENCE: Mapping[Cause, Callable[[Amounts, Amounts], str]] = {
    Cause.LOAD: load_evidence,
    Cause.BATCH: batch_evidence,
    Cause.LABELS: labels_evidence,
    Cause.SAMPLING: sampling_evidence,
    Cause.DRAFT: draft_evidence,
    Cause.STALE: stale_evidence,
    Cause.UNCAPTURED: uncaptured_evidence,
    Cause.STEPS: steps_evidence,
    Cause.LEARNER: learner_evidence,
    Cause.PREFILL: phase_evidence("prefill"),
    Cause.SWAP: phase_evidence("swap"),
    Cause.REST: rest_evidence,
}
_TOTAL = "tokens per second"
_SPEED = "speed of a request"
_INTERVAL_OUTSIDE = 0.05
#: Of the change of a request's speed: less is no answer to the question why it changed.
LEAST_PART = 0.2


@dataclass(frozen=True, slots=True)
class Period:
    """A time by its name, and what was served in it, in the short stretches that the history tells apart."""

    name: str  # as a sentence goes on with it: "in the last minute"
    began_s: float  # unix seconds
    ended_s: float
    stretches: Sequence[Amounts]

    @property
    def amounts(self) -> Amounts:
        """All of it."""
        return added(self.stretches)


@dataclass(frozen=True, slots=True)
class Effect:
    """A difference of logarithms with its 95 % interval, None where none can be given."""

    log: float
    low: float | None
    high: float | None
    is_noise: bool  # it cannot be told from no difference, among all that might be blamed

    @property
    def is_likely(self) -> bool:
        """Whether it is noise among all causes, and no noise were it the only one that might be blamed."""
        if not self.is_noise or self.low is None or self.high is None:
            return False
        return abs(self.log) >= SMALLEST and not self.low <= 0.0 <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one cause contributes, on what evidence, and what would change it."""

    cause: Cause
    effect: Effect
    share: float | None  # of the change of a request's speed; None for load, and where that change is noise
    evidence: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Findings, those that stand out first and the largest of them at the top; `unknown` says what cannot be told."""

    before: Period
    now: Period
    change: Change
    total: Effect | None  # of tokens per second; None without a step clock
    request_speed: Effect | None  # without a step clock it is of the accept length alone; None: nothing is known
    findings: Sequence[Finding] = ()
    unknown: Sequence[str] = field(default=())

    @property
    def first(self) -> Finding | None:
        """The cause that is named first; None where nothing stands out."""
        return next((finding for finding in self.findings if not finding.effect.is_noise), None)

    @property
    def likeliest(self) -> Finding | None:
        """Where nothing stands out, the largest cause whose own interval excludes nothing; None without one.

        Where the change of speed is no noise, it must go the same way and be at least LEAST_PART of it.
        """
        likely = (finding for finding in self.findings if finding.effect.is_likely)
        named = (finding for finding in likely if finding.share is None or finding.share >= LEAST_PART)
        return None if self.first is not None else next(named, None)


def explain(before: Period, now: Period) -> Explanation:
    """Compare two periods."""
    whole = before.amounts, now.amounts
    found = change(*whole)
    causes = found.causes()
    noise = noise_of(before.stretches, now.stretches, _figures(causes))

    def effect(name: str, log: float) -> Effect:
        return _effect(log, noise.get(name), is_noise=is_noise(log, noise.get(name), FALSE_BLAME))

    def of_cause(cause: Cause) -> Effect:
        log = found.of(cause) or 0.0
        return _effect(log, noise.get(cause), is_noise=not _stands_out(cause, found, noise))

    speed = effect(_SPEED, found.request_speed) if found.parts else None
    findings = [_finding(cause, of_cause(cause), speed, whole) for cause in causes]
    return Explanation(
        before=before,
        now=now,
        change=found,
        total=effect(_TOTAL, found.total) if Cause.LOAD in causes else None,
        request_speed=speed,
        findings=sorted(findings, key=lambda finding: _rank(finding, speed)),
        unknown=_unknown(found),
    )


def _effect(log: float, known: Noise | None, *, is_noise: bool) -> Effect:
    half = None if known is None else known.half_width(_INTERVAL_OUTSIDE)
    low, high = (None, None) if half is None else (log - half, log + half)
    return Effect(log, low, high, is_noise=is_noise)


def _stands_out(cause: Cause, found: Change, noise: Mapping[str, Noise]) -> bool:
    """Whether a cause can be told from none among all of them, or as what a sure change of speed came from.

    The second asks for less, since where the speed of a request has changed, something has changed it (tests in a fixed
    order, as Maurer, Hothorn and Lehmacher 1995 have them): the cause must be sure by itself, and LEAST_PART of it.
    """
    log = found.of(cause) or 0.0
    half = FALSE_BLAME / 2
    if not is_noise(log, noise.get(cause), half / len(found.causes())):
        return True
    is_part = cause is not Cause.LOAD and found.request_speed and log / found.request_speed >= LEAST_PART
    is_sure = not is_noise(found.request_speed, noise.get(_SPEED), half)
    return bool(is_part) and is_sure and not is_noise(log, noise.get(cause), FALSE_BLAME)


def _figures(causes: Sequence[Cause]) -> dict[str, Figure]:
    by_cause: dict[str, Figure] = {cause: partial(Change.of, cause=cause) for cause in causes}
    return {**by_cause, _TOTAL: lambda each: each.total, _SPEED: lambda each: each.request_speed}


def _finding(cause: Cause, effect: Effect, speed: Effect | None, periods: tuple[Amounts, Amounts]) -> Finding:
    has_share = cause is not Cause.LOAD and speed is not None and not speed.is_noise
    share = effect.log / speed.log if speed is not None and has_share else None
    return Finding(cause=cause, effect=effect, share=share, evidence=_EVIDENCE[cause](*periods), remedy=REMEDIES[cause])


def _rank(finding: Finding, speed: Effect | None) -> tuple[int, bool, bool, float]:
    """Noise last, the likely before it; then load after all that makes a request faster or slower; then what went
    against the change.
    """
    log = finding.effect.log
    is_against = speed is not None and not speed.is_noise and log * speed.log < 0.0
    certainty = finding.effect.is_noise + (finding.effect.is_noise and not finding.effect.is_likely)
    return certainty, finding.cause is Cause.LOAD, is_against, -abs(log)


def _unknown(found: Change) -> tuple[str, ...]:
    """One line per reason, with the factors and parts that it leaves unknown."""
    by_reason: dict[str, list[Part]] = {}
    for part, why in found.unknown.items():
        by_reason.setdefault(why, []).append(part)
    return tuple(f"{', '.join(_named(parts))}: unknown, {why}" for why, parts in by_reason.items())


def _named(parts: Sequence[Part]) -> list[str]:
    """Factors of which every part is among these, and the other parts."""
    whole = [factor for factor in Factor if {p for p in Part if factor_of(p) is factor} <= set(parts)]
    return [*whole, *(part for part in parts if factor_of(part) not in whole)]
