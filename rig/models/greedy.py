"""Plain greedy decoding with transformers: what a served answer must be, token by token."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel


@torch.inference_mode()
def greedy(
    model: PreTrainedModel,
    input_ids: Sequence[int],
    max_tokens: int,
    edit: Callable[[Tensor, Sequence[int]], Tensor] = lambda logits, _: logits,
) -> tuple[int, ...]:
    """The `max_tokens` tokens that follow `input_ids`, each the most probable one; EOS ends nothing.

    `edit` makes other logits [V] of the target's, given the answer so far.
    """
    fed = torch.tensor([list(input_ids)])
    cache = None
    output = list[int]()
    for _ in range(max_tokens):
        step = model(fed, past_key_values=cache, use_cache=True)
        fed = edit(step.logits[0, -1], output).argmax(-1).view(1, 1)
        cache = step.past_key_values
        output.append(int(fed))
    return tuple(output)
