"""Which traces make up the batches of a fit: every fresh one once a pass, filled up with draws from the window."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ...buffer.trace import NO_DRAFT, DraftTrace
from ...policies.trace_weighting import Float64s, age_weights, tenant_weights
from .plan import TrainingPlan


def draw_batches(
    fresh: Sequence[DraftTrace],
    window: Sequence[DraftTrace],
    plan: TrainingPlan,
    random: torch.Generator,
    targets: Sequence[str] = (),
) -> Iterator[list[DraftTrace]]:
    """Yield the batches of all passes; `window` is oldest first. Moves `random`, a generator on the CPU.

    A batch holds no trace of the window twice; without a window it is all fresh. `targets` are the target versions
    that may be trained on, oldest first: a fresh trace of an older one is in half as many passes, version by version.
    """
    replayed = round(plan.batch_traces * plan.replay_share) if window else 0
    new = max(plan.batch_traces - replayed, 1)
    weights_N = log_replay_weights(window, plan, targets)
    for taking_part in _taking_part(_age_weights(fresh, targets), plan.passes, random):
        order = [taking_part[i] for i in torch.randperm(len(taking_part), generator=random).tolist()]
        for begin in range(0, len(order), new):
            drawn = _drawn(len(window), weights_N, replayed, random)
            yield [fresh[i] for i in order[begin : begin + new]] + [window[i] for i in drawn]


def log_replay_weights(window: Sequence[DraftTrace], plan: TrainingPlan, targets: Sequence[str] = ()) -> Tensor | None:
    """Logarithm of how likely each trace of `window`, oldest first, is drawn, float64[N]; None: all alike.

    The weight is 0.5^(age / half-life) * (1 + replay_errors * share of its drafts that were rejected) * its tenant's
    factor * that of its target version (policies/trace_weighting.py: a flood must not drown the rest, nor an older
    target speak as loudly as the newest), age being the number of traces that came after it.
    """
    aged = _age_weights(window, targets)
    is_balanced = plan.tenant_balance > 1.0 and len({trace.tenant for trace in window}) > 1
    if not plan.recency_half_life_traces and not plan.replay_errors and not is_balanced and np.all(aged == 1.0):
        return None
    weights_N = torch.from_numpy(aged).log()
    if is_balanced:
        tenants = [trace.tenant for trace in window]
        weights_N += torch.from_numpy(tenant_weights(tenants, aged, plan.tenant_balance)).log()
    if plan.recency_half_life_traces:
        ages_N = torch.arange(len(window), dtype=torch.float64).flip(0)
        weights_N -= math.log(2.0) * ages_N / plan.recency_half_life_traces
    if plan.replay_errors:
        shares_N = torch.tensor([rejected_share(trace) for trace in window], dtype=torch.float64)
        weights_N += (plan.replay_errors * shares_N).log1p()
    return weights_N


def rejected_share(trace: DraftTrace) -> float:
    """Share of the drafts a trace recorded that did not stand, whether judged or behind the first rejection."""
    drafts = int((trace.rounds.drafted != NO_DRAFT).sum())
    return 1.0 - int(trace.rounds.accepted.sum()) / drafts if drafts else 0.0


def _age_weights(traces: Sequence[DraftTrace], targets: Sequence[str]) -> Float64s:
    if not targets:
        return np.ones(len(traces))
    return age_weights([trace.target_version for trace in traces], targets)


def _taking_part(weights: Float64s, passes: int, random: torch.Generator) -> Iterator[list[int]]:
    """Pass by pass the indices that take part, each in `weights[i]` of the passes on average.

    A trace steps by its weight, from a place drawn once, and takes part when it crosses a whole number: how often it
    does differs from what was asked by less than one pass.
    """
    at = np.zeros(len(weights))
    if np.any(weights < 1.0):
        at = torch.rand(len(weights), generator=random, dtype=torch.float64).numpy()
    for number in range(passes):
        crossed = np.floor(at + (number + 1) * weights) > np.floor(at + number * weights)
        yield np.flatnonzero(crossed).tolist()


def _drawn(traces: int, log_weights_N: Tensor | None, wanted: int, random: torch.Generator) -> list[int]:
    """Indices of `wanted` of `traces`, or of all, each drawn by weight from those not drawn before."""
    if log_weights_N is None:
        alike: list[int] = torch.randperm(traces, generator=random)[:wanted].tolist()
        return alike
    # The largest of log weights with Gumbel noise are such a draw, and weights too small for a float keep their order.
    noise_N = -torch.empty(traces, dtype=torch.float64).exponential_(generator=random).log()
    drawn: list[int] = (log_weights_N + noise_N).topk(min(wanted, traces)).indices.tolist()
    return drawn
