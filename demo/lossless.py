"""Checks that speculation, capture and swaps changed no token: plain greedy decoding of the same prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from ..rig.progress import Report, quiet
from ..rig.traffic import Served


@dataclass(frozen=True, slots=True)
class Lossless:
    """How many requests were decoded again, and which of them the server answered otherwise."""

    checked: int
    different: tuple[str, ...]  # request ids

    @property
    def identical(self) -> int:
        """Checked requests with every token the same."""
        return self.checked - len(self.different)


def lossless_check(
    target_folder: Path, results: Sequence[Served], max_tokens: int, *, count: int = 40, report: Report = quiet
) -> Lossless:
    """Decode `count` requests again with transformers, float32 and greedy, and compare all `max_tokens` tokens.

    The requests are spread evenly over the run, so that they fall before, between and behind the swaps. One that
    was not answered, or not to its end, is different. Takes about as long as serving them one by one.
    """
    disable_progress_bar()  # it would be drawn through the demo's own
    model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32).eval()
    chosen = spread(results, count)
    different = []
    for number, result in enumerate(chosen, start=1):
        if greedy(model, result.prompt.input_ids, max_tokens) != result.output_ids:
            different.append(result.prompt.request_id)
        report(number / len(chosen), f"{number - len(different)} of {number} identical")
    return Lossless(len(chosen), tuple(different))


def spread(results: Sequence[Served], count: int) -> list[Served]:
    """Up to `count` results, evenly spaced in the order they were sent, first and last among them."""
    ordered = sorted(results, key=lambda result: result.sent_at)
    if len(ordered) <= count:
        return ordered
    return [ordered[round(step * (len(ordered) - 1) / max(count - 1, 1))] for step in range(count)]


@torch.inference_mode()
def greedy(model: PreTrainedModel, input_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
    """The `max_tokens` most probable tokens, one after the other, behind `input_ids`; EOS ends nothing."""
    fed, cache, output = torch.tensor([list(input_ids)]), None, []
    for _ in range(max_tokens):
        step = model(fed, past_key_values=cache, use_cache=True)
        fed, cache = step.logits[:, -1:].argmax(-1), step.past_key_values
        output.append(int(fed))
    return tuple(output)
