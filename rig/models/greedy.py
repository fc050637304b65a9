"""Plain greedy decoding with transformers: what a served answer must be, token by token."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel


@torch.inference_mode()
def greedy(model: PreTrainedModel, input_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
    """The `max_tokens` tokens that follow `input_ids`, each the most probable one; EOS ends nothing."""
    fed, cache, output = torch.tensor([list(input_ids)]), None, []
    for _ in range(max_tokens):
        step = model(fed, past_key_values=cache, use_cache=True)
        fed, cache = step.logits[:, -1:].argmax(-1), step.past_key_values
        output.append(int(fed))
    return tuple(output)
