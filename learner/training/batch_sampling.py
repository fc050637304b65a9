"""Which traces make up the batches of a fit: every fresh one once a pass, then draws from the replay buffer."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ...buffer.stream.trace import DraftTrace
from ...policies.trace_weighting import Float64s, age_weights, tenant_weights
from .plan import Recipe

#: A rare tenant's traces are replayed up to so many times as often as by their number.
TENANT_BALANCE = 4.0


def draw_batches(
    fresh: Sequence[DraftTrace],
    replay: Sequence[DraftTrace],
    *,
    passes: int,
    recipe: Recipe,
    random: torch.Generator,
    log_weights_N: Tensor | None = None,
    targets: Sequence[str] = (),
) -> Iterator[list[DraftTrace]]:
    """Yield the batches of all passes. Moves `random`, a generator on the CPU.

    A batch holds no trace of `replay`, the replay buffer, twice; without one it is all fresh. `log_weights_N` are those
    of `replay`, None: all alike. `targets` are the target versions that may be trained on, oldest first: a fresh trace
    of an older one is in half as many passes, version by version.
    """
    replayed = round(recipe.batch_traces * recipe.replay_share) if replay else 0
    new = max(recipe.batch_traces - replayed, 1)
    for taking_part in _taking_part(_age_weights(fresh, targets), passes, random):
        order = [taking_part[i] for i in torch.randperm(len(taking_part), generator=random).tolist()]
        for begin in range(0, len(order), new):
            drawn = _drawn(len(replay), log_weights_N, replayed, random)
            yield [fresh[i] for i in order[begin : begin + new]] + [replay[i] for i in drawn]


def log_replay_weights(
    replay: Sequence[DraftTrace], targets: Sequence[str] = (), tenant_balance: float = TENANT_BALANCE
) -> Tensor | None:
    """Logarithm of how likely each trace of `replay` is drawn, float64[N]; None: all alike.

    The weight is the factor of the trace's target version times that of its tenant (policies/trace_weighting.py): an
    older target counts less than the newest, and a tenant that sends much does not drown the others. `tenant_balance`,
    at least 1, bounds how much more often a rare tenant's traces are drawn; at 1 they are drawn by their number.
    """
    aged = _age_weights(replay, targets)
    is_balanced = tenant_balance > 1.0 and len({trace.tenant for trace in replay}) > 1
    if not is_balanced and np.all(aged == 1.0):
        return None
    weights_N = torch.from_numpy(aged).log()
    if is_balanced:
        tenants = [trace.tenant for trace in replay]
        weights_N += torch.from_numpy(tenant_weights(tenants, aged, tenant_balance)).log()
    return weights_N


def _age_weights(traces: Sequence[DraftTrace], targets: Sequence[str]) -> Float64s:
    if not targets:
        return np.ones(len(traces))
    return age_weights([trace.target_version for trace in traces], targets)


def _taking_part(weights: Float64s, passes: int, random: torch.Generator) -> Iterator[list[int]]:
    """Pass by pass the indices that take part, each in `weights[i]` of the passes on average.

    Systematic sampling: a random phase per trace, and it takes part when its running sum of weights crosses an
    integer. How often it does differs from what was asked by less than one pass.
    """
    phase = np.zeros(len(weights))
    if np.any(weights < 1.0):
        phase = torch.rand(len(weights), generator=random, dtype=torch.float64).numpy()
    for number in range(passes):
        crossed = np.floor(phase + (number + 1) * weights) > np.floor(phase + number * weights)
        yield np.flatnonzero(crossed).tolist()


def _drawn(traces: int, log_weights_N: Tensor | None, wanted: int, random: torch.Generator) -> list[int]:
    """Indices of `wanted` out of `traces`, or of all, each drawn by weight from those not drawn before."""
    if log_weights_N is None:
        alike: list[int] = torch.randperm(traces, generator=random)[:wanted].tolist()
        return alike
    # The largest log weights with Gumbel noise are that draw, and weights too small for a float keep their order.
    noise_N = -torch.empty(traces, dtype=torch.float64).exponential_(generator=random).log()
    drawn: list[int] = (log_weights_N + noise_N).topk(min(wanted, traces)).indices.tolist()
    return drawn
