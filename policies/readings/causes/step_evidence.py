"""What is seen of load, batches, draft steps, the learner and the scheduler's time in two periods, in words."""

from collections.abc import Callable

from .amounts import BUSY, IDLE, Amounts, StepKey, Steps
from .step_parts import MIN_STEPS
from .wording import share


def load_evidence(before: Amounts, now: Amounts) -> str:
    """Requests at a time, and how much of the time there was nothing to do."""
    running = [_mean(period.all_steps.requests, period.all_steps.steps, "requests") for period in (before, now)]
    idle = [share(period.seconds.get("idle", 0.0), period.clock_s) for period in (before, now)]
    return f"{running[1]} at a time, {running[0]} before; idle {idle[1]} of the time, {idle[0]} before"


def batch_evidence(before: Amounts, now: Amounts) -> str:
    """The bucket that most steps moved to, and what its steps took."""
    gained, lost = _most_moved(before, now, lambda key: key.bucket)
    if gained is None:
        return "batches as large as before"
    both = before + now
    text = _shares(f"steps of a batch of up to {gained}", before, now, lambda key: key.bucket == gained)
    took = (_step_ms(both, lambda key, bucket=bucket: key.bucket == bucket) for bucket in (gained, lost))
    return "{}; a step took {} there, {} with up to {}".format(text, *took, lost)


def steps_evidence(before: Amounts, now: Amounts) -> str:
    """Draft steps on average, and how much was plain decoding."""
    means = [
        _mean(sum(key.draft_steps * cell.steps for key, cell in p.steps.items()), p.all_steps.steps, "draft steps")
        for p in (before, now)
    ]
    plain = _shares("plain decoding", before, now, lambda key: key.draft_steps == 0)
    return f"{means[1]} on average, {means[0]} before; {plain}"


def learner_evidence(before: Amounts, now: Amounts) -> str:
    """How much of the steps a learner ran, and what steps of one batch and one length took with it and without."""
    text = _shares("a learner at work during", before, now, lambda key: key.learner == BUSY) + " of the steps"
    both = (before + now).steps
    known = {
        key[:2]
        for key, cell in both.items()
        if cell.steps >= MIN_STEPS and both.get(key._replace(learner=IDLE), Steps()).steps >= MIN_STEPS
        if key.learner == BUSY
    }
    if not known:
        return f"{text}; steps of one batch and one length with and without it: none"
    bucket, steps = max(known, key=lambda kind: both[StepKey(*kind, BUSY)].steps)
    took = [_step_ms(before + now, lambda key, at=at: key == StepKey(bucket, steps, at)) for at in (BUSY, IDLE)]
    return f"{text}; with a batch of up to {bucket} and {steps} draft steps a step took {took[0]} with it, {took[1]} without"


def rest_evidence(before: Amounts, now: Amounts) -> str:
    """Step time of the batch, length and learner's state that both periods know best."""
    known = [key for key in before.steps if min(before.steps[key].steps, _steps(now, key).steps) >= MIN_STEPS]
    if not known:
        return "no batch, number of draft steps and state of the learner occurred in both periods"
    key = max(known, key=lambda key: min(before.steps[key].steps, _steps(now, key).steps))
    took = [_step_ms(period, lambda other: other == key) for period in (now, before)]
    where = f"batch of up to {key.bucket}, {key.draft_steps} draft steps, learner {key.learner}"
    return f"{where}: a step took {took[0]}, {took[1]} before"


def phase_evidence(phase: str) -> Callable[[Amounts, Amounts], str]:
    """The share of one phase in the time that is not idle."""

    def evidence(before: Amounts, now: Amounts) -> str:
        shares = [share(period.seconds.get(phase, 0.0), period.busy_s) for period in (before, now)]
        return f"{phase} took {shares[1]} of the time that was not idle, {shares[0]} before"

    return evidence


def _steps(period: Amounts, key: StepKey) -> Steps:
    return period.steps.get(key, Steps())


def _count(period: Amounts, is_in: Callable[[StepKey], bool]) -> Steps:
    return sum((cell for key, cell in period.steps.items() if is_in(key)), Steps())


def _shares(what: str, before: Amounts, now: Amounts, is_in: Callable[[StepKey], bool]) -> str:
    shares = [share(_count(period, is_in).steps, period.all_steps.steps) for period in (before, now)]
    return f"{what} {shares[1]}, {shares[0]} before"


def _most_moved(before: Amounts, now: Amounts, of: Callable[[StepKey], int]) -> tuple[int | None, int | None]:
    """What gained the most share of the steps, and what lost the most; None where no share moved by 1 %."""
    values = {of(key) for key in (*before.steps, *now.steps)}
    gains = {value: _share_of(now, of, value) - _share_of(before, of, value) for value in values}
    if not gains or max(gains.values()) < 0.01:
        return None, None
    return max(gains, key=gains.__getitem__), min(gains, key=gains.__getitem__)


def _share_of(period: Amounts, of: Callable[[StepKey], int], value: int) -> float:
    return _count(period, lambda key: of(key) == value).steps / max(period.all_steps.steps, 1)


def _step_ms(period: Amounts, is_in: Callable[[StepKey], bool]) -> str:
    cell = _count(period, is_in)
    return f"{1e3 * cell.seconds / cell.steps:.1f} ms ({cell.steps} steps)" if cell.steps else "unknown (no step)"


def _mean(part: float, whole: float, unit: str) -> str:
    return f"{part / whole:.1f} {unit}" if whole else f"unknown {unit}"
