"""What tests of trainers share: traces that `make_draft`'s drafts read, and how weights are compared."""

from collections.abc import Callable, Iterable

import torch
from paceline.buffer.stream.trace import DraftTrace


def training_traces(make_trace: Callable[..., DraftTrace], seeds: Iterable[int], **changes: object) -> list[DraftTrace]:
    """One trace per seed, with features of the width that a draft of `make_draft` reads."""
    usual = {"feature_dim": 48, "rounds": 3, "context_len": 3}
    return [make_trace(seed, **(usual | changes)) for seed in seeds]


def weights_of(draft: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of every weight, by its name."""
    return {name: tensor.clone() for name, tensor in draft.state_dict().items()}


def are_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Whether both hold the same weights, bit by bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
