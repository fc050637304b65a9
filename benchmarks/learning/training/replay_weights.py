"""Which replayed traces an ablation prefers: the newer ones, or those whose drafts were rejected."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ....buffer.trace import NO_DRAFT, DraftTrace
from .plan import BenchPlan


def favoured(replay: Sequence[DraftTrace], log_weights_N: Tensor, plan: BenchPlan) -> Tensor:
    """`log_weights_N` of `replay`, oldest first, with the preferences of `plan`, float64[N].

    The weight is multiplied by 0.5^(age / half-life) and by 1 + replay_errors * rejected share, age being the number
    of traces that came after it.
    """
    if plan.recency_half_life_traces:
        ages_N = torch.arange(len(replay), dtype=torch.float64).flip(0)
        log_weights_N = log_weights_N - math.log(2.0) * ages_N / plan.recency_half_life_traces
    if plan.replay_errors:
        shares_N = torch.tensor([rejected_share(trace) for trace in replay], dtype=torch.float64)
        log_weights_N = log_weights_N + (plan.replay_errors * shares_N).log1p()
    return log_weights_N


def rejected_share(trace: DraftTrace) -> float:
    """Share of the drafts a trace recorded that were not accepted, whether judged or after the first rejection."""
    drafts = int((trace.rounds.drafted != NO_DRAFT).sum())
    return 1.0 - int(trace.rounds.accepted.sum()) / drafts if drafts else 0.0
