"""A head that has already learned: from all domains but those that traffic may shift to.

Of a chat model it learns from the traces of those domains. Of a small target it learns from training text: the target
reads windows of it, and its hidden rows and its top-K at temperature 1 make traces of one token per round. Either way
the product's own trainer learns with the soft objective. Axes: B windows, T tokens, D feature width.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ...buffer.stream.trace import DraftTrace, FeatureDtype, Sampling, VerdictRule, VerifyRounds
from ...learner.disk import write_folder
from ...learner.model.draft import Draft
from ...learner.model.draft_io import load_draft, load_target_embedding, save_draft
from ...learner.training.trainer import DraftTrainer, TrainingPlan
from ...policies.objectives.names import Objective
from ...rig.models.corpus import load_corpus
from ...rig.models.target import DRAFT_LAYERS, load_tokenizer
from ...rig.progress import Report, quiet
from ...rig.trace_file import read_traces
from .lab import Lab
from .programme import Setting

WINDOWS = 2000
WINDOW_TOKENS = 96
STEPS = 5
TEACHERS = 8
SEED = 0
#: What the head of a chat model learns from, and how often.
CHAT_SETTING = Setting(0.0, 3)
CHAT_PASSES = 2
_PER_FIT = 100


def ensure_warm_head(lab: Lab, shifted: str, report: Report = quiet) -> Path:
    """The folder of the head; trained when it is not there: a minute, on a chat model's traces ten.

    FileNotFoundError where those are not recorded.
    """
    folder = lab.warm_head(shifted)
    if not folder.exists():
        draft = load_draft(lab.random_head(SEED), load_target_embedding(lab.target.folder)).to(lab.device)
        (_learn_traces if lab.is_chat else _learn_text)(lab, shifted, draft, report)
        write_folder(folder, lambda place: save_draft(draft, place))
    return folder


def _learn_traces(lab: Lab, shifted: str, draft: Draft, report: Report) -> None:
    known = _known(lab, shifted)
    traces = [trace for domain in known for trace in read_traces(lab.trace_file(CHAT_SETTING, domain))]
    random.Random(SEED).shuffle(traces)
    trainer = DraftTrainer(draft, TrainingPlan(steps=CHAT_SETTING.steps, passes=CHAT_PASSES, seed=SEED))
    trainer.on_step = lambda step, steps: report(step / steps, f"step {step} of {steps}")
    trainer.fit(traces, [])


def _learn_text(lab: Lab, shifted: str, draft: Draft, report: Report) -> None:
    trainer = DraftTrainer(draft, TrainingPlan(steps=STEPS, passes=1, objective=Objective.SOFT, seed=SEED))
    windows = _windows(lab, _known(lab, shifted))
    model = AutoModelForCausalLM.from_pretrained(lab.target.folder, dtype=torch.float32).to(lab.device).eval()
    for begin in range(0, len(windows), _PER_FIT):
        fit = trainer.fit(list(taught(model, DRAFT_LAYERS, windows[begin : begin + _PER_FIT], begin)), [])
        done = min(begin + _PER_FIT, len(windows)) / len(windows)
        report(done, f"first-position acceptance {fit.first_position_accept:.2f}")


def _known(lab: Lab, shifted: str) -> list[str]:
    return [domain for domain in lab.domains if domain not in lab.unknown(shifted)]


def _windows(lab: Lab, domains: Sequence[str]) -> list[list[int]]:
    """Windows of training text, the domains in equal numbers, shuffled."""
    tokenizer = load_tokenizer(lab.target.folder)
    draw = random.Random(SEED)
    corpus = load_corpus(domains)
    windows = []
    for domain in domains:
        wanted = WINDOWS // len(domains)
        found = list[list[int]]()
        for text in draw.sample(corpus[domain].training, len(corpus[domain].training)):
            ids = tokenizer.encode(text).ids
            found += [ids[at : at + WINDOW_TOKENS] for at in range(0, len(ids) - WINDOW_TOKENS + 1, WINDOW_TOKENS)]
            if len(found) >= 4 * wanted:  # a few long texts would be the whole domain
                break
        windows += draw.sample(found, min(wanted, len(found)))
    draw.shuffle(windows)
    return windows


@torch.inference_mode()
def taught(
    model: PreTrainedModel, layers: Sequence[int], windows: Sequence[Sequence[int]], first: int
) -> Iterator[DraftTrace]:
    """Windows of equal length as traces: features are the outputs of `layers`; they are named from `first` on."""
    tokens_BT = torch.tensor(windows, device=model.device)
    out = model(tokens_BT, output_hidden_states=True, use_cache=False)
    features_BTD = torch.cat([out.hidden_states[layer + 1] for layer in layers], -1).float().cpu().numpy()
    best = torch.log_softmax(out.logits.float(), -1).cpu().topk(TEACHERS)
    for row, tokens_T in enumerate(tokens_BT.cpu().numpy().astype(np.int32)):
        ids_TK = best.indices[row].numpy().astype(np.int32)
        yield text_trace(
            f"text-{first + row}",
            tokens_T=tokens_T,
            features_TD=features_BTD[row],
            teacher_ids_TK=ids_TK,
            teacher_logprobs_TK=best.values[row].numpy(),
        )


def text_trace(
    name: str,
    *,
    tokens_T: np.ndarray,
    features_TD: np.ndarray,
    teacher_ids_TK: np.ndarray,
    teacher_logprobs_TK: np.ndarray,
) -> DraftTrace:
    """Text as a trace: every token from the second on is judged by the token before it, and nothing was drafted."""
    rounds = VerifyRounds(
        starts=np.arange(len(tokens_T) - 1, dtype=np.int32),
        drafted=np.zeros((len(tokens_T) - 1, 0), np.int32),
        accepted=np.zeros(len(tokens_T) - 1, np.int32),
        teacher_ids=teacher_ids_TK[:-1, None],
        teacher_logprobs=teacher_logprobs_TK[:-1, None].astype(np.float16),
    )
    return DraftTrace(
        trace_id=name, request_id=name, replica="", tenant="", target="", target_version="", draft_version=-1,
        verdict_rule=VerdictRule.TARGET_ONLY, sampling=Sampling(temperature=1.0), born_at=0.0, offset=0,
        tokens=tokens_T, context_len=1, rounds=rounds, features=features_TD, feature_dtype=FeatureDtype.FLOAT32,
        replay_exact=False, finish="",
    )  # fmt: skip
