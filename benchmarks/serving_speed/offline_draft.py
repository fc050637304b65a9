"""A draft trained offline as drafts are published: on the target's own answers to prompts of a domain's training text.

The product's trainer learns the soft targets of prompt and answer alike. No prompt of a stream is among them: streams
are drawn from held-out text.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from ...buffer.stream.trace import DraftTrace
from ...learner.disk import write_folder
from ...learner.model.draft_io import load_draft, load_target_embedding, save_draft
from ...learner.training.trainer import DraftTrainer, TrainingPlan
from ...policies.objectives.names import Objective
from ...rig.models.corpus import load_corpus
from ...rig.models.target import DRAFT_LAYERS, TargetModel, ensure_random_draft, load_tokenizer
from ...rig.progress import Report, quiet
from ...rig.prompts import PROMPT_TOKENS
from ..learning.warm import taught

_SEED = 0
_PER_BATCH = 64
#: Prompts are drawn from this many texts' worth of windows at most: reading a whole domain takes longer than training.
_WINDOWS_PER_PROMPT = 4


@dataclass(frozen=True, slots=True)
class OfflinePlan:
    """How a draft is trained; part of its folder's name."""

    steps: int  # draft length unrolled
    prompts: int = 640  # of every domain
    answer_tokens: int = 96
    passes: int = 3

    def folder(self, target: TargetModel, domains: Sequence[str]) -> Path:
        """Where the draft of these domains is kept, beside the target's other drafts."""
        name = f"{'-'.join(domains)}-{self.prompts}x{self.answer_tokens}-k{self.steps}-p{self.passes}"
        return _kept(target) / name


def ensure_untrained_draft(target: TargetModel) -> Path:
    """The random draft that training begins with, and that never pays."""
    return ensure_random_draft(target.folder, _kept(target) / "random", _SEED)


def ensure_offline_draft(
    target: TargetModel, domains: Sequence[str], plan: OfflinePlan, report: Report = quiet
) -> Path:
    """The folder of the draft; made in some minutes on one core when it is not there, else left as it is."""
    folder = plan.folder(target, domains)
    if not folder.exists():
        disable_progress_bar()  # it would be drawn across our own progress bar
        draft = load_draft(ensure_untrained_draft(target), load_target_embedding(target.folder))
        trainer = DraftTrainer(draft, TrainingPlan(steps=plan.steps, passes=1, objective=Objective.SOFT, seed=_SEED))
        model = AutoModelForCausalLM.from_pretrained(target.folder, dtype=torch.float32).eval()
        for done, traces in _batches(model, _prompts(target, domains, plan.prompts), plan):
            fit = trainer.fit(traces, [])
            report(done, f"{'+'.join(domains)}: first-position acceptance {fit.first_position_accept:.2f}")
        write_folder(folder, lambda place: save_draft(trainer.draft, place))
    return folder


def _kept(target: TargetModel) -> Path:
    return target.folder.parent.parent / "serving" / target.key


def _batches(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], plan: OfflinePlan
) -> Iterator[tuple[float, list[DraftTrace]]]:
    """Share done and the traces of a batch, every answer in each pass."""
    starts = range(0, len(prompts), _PER_BATCH)
    answers = [answered(model, prompts[at : at + _PER_BATCH], plan.answer_tokens) for at in starts]
    for number in range(plan.passes * len(answers)):
        windows = answers[number % len(answers)]
        yield (
            (number + 1) / (plan.passes * len(answers)),
            list(taught(model, DRAFT_LAYERS, windows, number * _PER_BATCH)),
        )


def _prompts(target: TargetModel, domains: Sequence[str], each: int) -> list[tuple[int, ...]]:
    """Windows of training text, `each` of every domain, shuffled."""
    corpus = load_corpus(domains)
    tokenizer = load_tokenizer(target.folder)
    draw = random.Random(_SEED)
    prompts: list[tuple[int, ...]] = []
    for domain in domains:
        found: list[tuple[int, ...]] = []
        for text in draw.sample(corpus[domain].training, len(corpus[domain].training)):
            ids = tokenizer.encode(text).ids
            found += [tuple(ids[at : at + PROMPT_TOKENS]) for at in range(0, len(ids) - PROMPT_TOKENS, PROMPT_TOKENS)]
            if len(found) >= _WINDOWS_PER_PROMPT * each:
                break
        prompts += draw.sample(found, min(each, len(found)))
    draw.shuffle(prompts)
    return prompts


@torch.inference_mode()
def answered(model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Prompts of equal length, each followed by the `tokens` tokens of its greedy answer."""
    fed = torch.tensor(prompts)
    whole = fed
    cache = None
    for _ in range(tokens):
        step = model(fed, past_key_values=cache, use_cache=True)
        fed = step.logits[:, -1:].argmax(-1)
        cache = step.past_key_values
        whole = torch.cat([whole, fed], 1)
    found: list[list[int]] = whole.tolist()
    return found
