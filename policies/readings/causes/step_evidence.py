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
    moved = _most_moved(before, now)
    if moved is None:
        return "batches as large as before"
    gained, lost = moved
    text = _shares(f"steps of a batch of up to {gained}", before, now, lambda key: key.bucket == gained)
    took = [_ms(_of_bucket(before + now, bucket)) for bucket in moved]
    return f"{text}; a step took {took[0]} there, {took[1]} with up to {lost}"


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
    both = before + now
    states = (BUSY, IDLE)
    known = [k for k in both.steps if min(_steps(both, k._replace(learner=s)).steps for s in states) >= MIN_STEPS]
    if not known:
        return f"{text}; no batch and number of draft steps occurred both with it and without"
    key = max(known, key=lambda key: both.steps[key].steps)
    took = [_ms(_steps(both, key._replace(learner=state))) for state in states]
    return f"{text}; {_where(key)}: a step took {took[0]} with it, {took[1]} without"


def rest_evidence(before: Amounts, now: Amounts) -> str:
    """Step time of the batch, length and learner's state that both periods know best."""
    known = [key for key in before.steps if min(_steps(period, key).steps for period in (before, now)) >= MIN_STEPS]
    if not known:
        return "no batch, number of draft steps and state of the learner occurred in both periods"
    key = max(known, key=lambda key: min(_steps(period, key).steps for period in (before, now)))
    took = [_ms(_steps(period, key)) for period in (now, before)]
    return f"{_where(key)}, learner {key.learner}: a step took {took[0]}, {took[1]} before"


def phase_evidence(phase: str) -> Callable[[Amounts, Amounts], str]:
    """The share of one phase in the time that is not idle."""

    def evidence(before: Amounts, now: Amounts) -> str:
        shares = [share(period.seconds.get(phase, 0.0), period.busy_s) for period in (before, now)]
        return f"{phase} took {shares[1]} of the time that was not idle, {shares[0]} before"

    return evidence


def _steps(period: Amounts, key: StepKey) -> Steps:
    return period.steps.get(key, Steps())


def _where(key: StepKey) -> str:
    return f"batch of up to {key.bucket}, {key.draft_steps} draft steps"


def _count(period: Amounts, is_in: Callable[[StepKey], bool]) -> Steps:
    return sum((cell for key, cell in period.steps.items() if is_in(key)), Steps())


def _of_bucket(period: Amounts, bucket: int) -> Steps:
    return _count(period, lambda key: key.bucket == bucket)


def _shares(what: str, before: Amounts, now: Amounts, is_in: Callable[[StepKey], bool]) -> str:
    shares = [share(_count(period, is_in).steps, period.all_steps.steps) for period in (before, now)]
    return f"{what} {shares[1]}, {shares[0]} before"


def _most_moved(before: Amounts, now: Amounts) -> tuple[int, int] | None:
    """The buckets that gained and lost the most share of the steps; None where no share moved by 1 %."""
    buckets = {key.bucket for key in (*before.steps, *now.steps)}
    gains = {bucket: _bucket_share(now, bucket) - _bucket_share(before, bucket) for bucket in buckets}
    if max(gains.values(), default=0.0) < 0.01:
        return None
    return max(gains, key=gains.__getitem__), min(gains, key=gains.__getitem__)


def _bucket_share(period: Amounts, bucket: int) -> float:
    return _of_bucket(period, bucket).steps / max(period.all_steps.steps, 1)


def _ms(steps: Steps) -> str:
    return f"{1e3 * steps.seconds / steps.steps:.1f} ms ({steps.steps} steps)" if steps.steps else "unknown (no step)"


def _mean(part: float, whole: float, unit: str) -> str:
    return f"{part / whole:.1f} {unit}" if whole else f"unknown {unit}"
