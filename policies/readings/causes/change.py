"""Change: by how much each part made serving faster or slower between two periods, as logarithms that add up."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .amounts import UNKNOWN, Amounts, Steps
from .length_parts import length_parts, why_not_split
from .logs import log_change, log_parts
from .parts import Cause, Factor, Part, cause_of, factor_of, parts_of
from .step_parts import MIN_STEPS, step_parts

#: Phases of a scheduler's clock -> the part whose share of the time takes from decode steps.
_PHASES: Mapping[str, Part] = {"prefill": Part.PREFILL, "swap": Part.SWAP}
_CLOCK = (Factor.RUNNING, Factor.STEP_TIME, Factor.DECODE_SHARE)


@dataclass(frozen=True, slots=True)
class Change:
    """Parts of ln(tokens per second now / before); of ln(accept length) alone where there is no step clock."""

    parts: Mapping[Part, float] = field(default_factory=dict)
    unknown: Mapping[Part, str] = field(default_factory=dict)  # why

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(self.parts.values())

    @property
    def request_speed(self) -> float:
        """Sum of all parts but the load's: tokens per second of a request that runs."""
        return self.total - (self.of(Cause.LOAD) or 0.0)

    def of(self, cause: Cause) -> float | None:
        """What a cause contributes; None where none of its parts is known."""
        known = [self.parts[part] for part in parts_of(cause) if part in self.parts]
        return sum(known) if known else None

    def of_factor(self, factor: Factor) -> float | None:
        """What a factor contributes; None where none of its parts is known."""
        known = [log for part, log in self.parts.items() if factor_of(part) is factor]
        return sum(known) if known else None

    def causes(self) -> tuple[Cause, ...]:
        """Those of which a part is known, the largest contribution first."""
        found = dict.fromkeys(cause_of(part) for part in self.parts)
        return tuple(sorted(found, key=lambda cause: -abs(self.of(cause) or 0.0)))


def change(before: Amounts, now: Amounts) -> Change:
    """Split tokens per second = running x accept length / step time x decode share, factor by factor.

    Every part is a difference of logarithms, and their sum is that of tokens per second.
    """
    lengths = length_parts(before, now)
    if not (_has_clock(before) and _has_clock(now)):
        clock = {part: why_no_clock(before, now) for part in Part if factor_of(part) in _CLOCK}
        return _told_apart(lengths, clock | _not_split(lengths, before, now), before, now)
    running = log_change(_running(before.all_steps), _running(now.all_steps))
    parts = {Part.RUNNING: running, **lengths, **step_parts(before, now), **_decode_share(before, now)}
    return _told_apart(parts, _not_split(lengths, before, now), before, now)


def _told_apart(parts: Mapping[Part, float], unknown: Mapping[Part, str], before: Amounts, now: Amounts) -> Change:
    """Without the parts that are 0 because nobody says what they tell apart: these are unknown, not nothing."""
    served = {*before.served, *now.served}
    steps = {*before.steps, *now.steps}
    silent = {}
    if Part.LABELS in parts and not any(key.label for key in served):
        silent[Part.LABELS] = "for no request names a label (paceline_label)"
    if Part.LEARNER in parts and all(key.learner == UNKNOWN for key in steps):
        silent[Part.LEARNER] = "for no learner sends counters"
    return Change({part: log for part, log in parts.items() if part not in silent}, {**unknown, **silent})


def why_no_clock(before: Amounts, now: Amounts) -> str:
    """Why nothing is known of step times, where nothing is."""
    counts = f"{before.all_steps.steps} before and {now.all_steps.steps} now"
    return f"for too few decode steps were timed: {counts}, of at least {MIN_STEPS} in each"


def _not_split(known: Mapping[Part, float], before: Amounts, now: Amounts) -> dict[Part, str]:
    """Why parts of the accept length are unknown: those of steps are where there is no clock."""
    of_steps = (Part.STEPS_LENGTH, Part.UNCAPTURED)
    missing = [part for part in Part if factor_of(part) is Factor.ACCEPT_LENGTH and part not in known]
    return {
        part: why_no_clock(before, now) if known and part in of_steps else why_not_split(before, now)
        for part in missing
    }


def _has_clock(period: Amounts) -> bool:
    steps = period.all_steps
    return steps.steps >= MIN_STEPS and steps.seconds > 0.0 and steps.tokens > 0 and bool(period.seconds)


def _running(steps: Steps) -> float:
    return steps.requests / steps.steps


def _decode_share(before: Amounts, now: Amounts) -> dict[Part, float]:
    """The share of the time that is not idle, and within it that of decode steps, which falls by what others gain."""
    idle = log_change(*(period.busy_s / period.clock_s for period in (before, now)))
    shares = [_shares(period) for period in (before, now)]
    decode = (period.all_steps.seconds / period.busy_s for period in (before, now))
    lost = {part: shares[0][part] - shares[1][part] for part in shares[0]}
    return {Part.IDLE: idle, **dict(zip(lost, log_parts(lost.values(), *decode), strict=True))}


def _shares(period: Amounts) -> dict[Part, float]:
    """Of the scheduler's busy time, by what takes it from timed decode steps."""
    seconds = {part: period.seconds.get(phase, 0.0) for phase, part in _PHASES.items()}
    seconds[Part.UNTIMED] = period.busy_s - period.all_steps.seconds - sum(seconds.values())
    return {part: taken_s / period.busy_s for part, taken_s in seconds.items()}
