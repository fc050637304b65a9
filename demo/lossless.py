"""Compares answers with plain greedy decoding: speculation, capture and swaps must not have changed a token."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from ..rig.models.target import greedy
from ..rig.progress import Report, quiet
from ..rig.traffic import Served


@dataclass(frozen=True, slots=True)
class Lossless:
    """The number of requests decoded again, and those to which the server gave another answer."""

    checked: int
    different: tuple[str, ...]  # request ids

    @property
    def identical(self) -> int:
        """Checked requests with every token the same."""
        return self.checked - len(self.different)


def lossless_check(
    target_folder: Path, results: Sequence[Served], max_tokens: int, *, count: int = 40, report: Report = quiet
) -> Lossless:
    """Decode `count` requests again with transformers, float32 and greedy, and compare all tokens.

    The requests are spread evenly over the run, so that they fall before, between and after the swaps. A request
    without an answer is different, and so is one with less than `max_tokens` tokens that the model did not end. Takes
    about as long as serving them one by one; nothing is read where `count` is 0.
    """
    if not count:
        return Lossless(0, ())
    disable_progress_bar()  # it would be drawn across our own progress bar
    model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32).eval()
    chosen = spread(results, count)
    different = []
    for number, result in enumerate(chosen, start=1):
        tokens = len(result.output_ids) if result.finish == "stop" else max_tokens
        if greedy(model, result.prompt.input_ids, tokens) != result.output_ids:
            different.append(result.prompt.request_id)
        report(number / len(chosen), f"{number - len(different)} of {number} identical")
    return Lossless(len(chosen), tuple(different))


def spread(results: Sequence[Served], count: int) -> list[Served]:
    """Up to `count` results, evenly spaced in the order they were sent, first and last among them."""
    ordered = sorted(results, key=lambda result: result.sent_at)
    if len(ordered) <= count:
        return ordered
    return [ordered[round(step * (len(ordered) - 1) / max(count - 1, 1))] for step in range(count)]
