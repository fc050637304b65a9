"""About how long runs take, before they are run: to cut a programme to its time, and to show what each part costs."""

from collections.abc import Iterable, Iterator

from ...policies.objectives.baselines.table import BENCH_OBJECTIVES
from .programme import Job
from .rows import Rate
from .stream import Sizes

#: One optimiser step of the demo's head per draft unrolled, one thread, both cores at work.
STEP_S_PER_DRAFT = 0.025
#: Against that, where drafted chains are scored beside the committed text.
CHAINS_FACTOR = 1.6
#: Where a reference learns the same traces and is asked about them: AdaSPEC.
REFERENCE_FACTOR = 2.3
#: Reading off what a draft would have had accepted on one request.
MEASURED_REQUEST_S = 0.02
#: Loading the draft and making a trainer.
BEGIN_S = 0.3


def optimiser_steps(job: Job) -> int:
    """Steps of the whole run, none of them skipped."""
    if job.row.rate is Rate.NONE:
        return 0
    plan, steps = job.row.plan(job.setting.steps, job.seed), 0
    for number, requests in enumerate(_chunks(job.sizes, job.row.cadence)):
        replayed = round(plan.batch_traces * plan.replay_share) if number else 0
        steps += plan.passes * -(-requests // max(plan.batch_traces - replayed, 1))
    return steps


def seconds(jobs: Iterable[Job]) -> float:
    """Of one process that runs all of them, training and measuring."""
    return sum(_seconds(job) for job in jobs)


def _seconds(job: Job) -> float:
    requests, plan = job.sizes.before_shift + job.sizes.after_shift, job.row.plan(job.setting.steps, job.seed)
    has_chains = plan.off_path_weight > 0.0 or BENCH_OBJECTIVES[plan.objective].needs_served_rounds
    factor = (CHAINS_FACTOR if has_chains else 1.0) * (REFERENCE_FACTOR if plan.distils_reference else 1.0)
    step_s = STEP_S_PER_DRAFT * plan.steps * factor
    return BEGIN_S + step_s * optimiser_steps(job) + MEASURED_REQUEST_S * requests


def _chunks(sizes: Sizes, cadence: int) -> Iterator[int]:
    """Requests of every chunk, as stream.Stream.chunks cuts them."""
    for side in (sizes.before_shift, sizes.after_shift):
        whole, rest = divmod(side, cadence or sizes.cadence)
        yield from [cadence or sizes.cadence] * whole + [rest] * bool(rest)
