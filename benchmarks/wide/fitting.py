"""The trainer's fit against a bare PyTorch loop over batches that are built already: the same steps of one draft."""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ...buffer.stream.trace import DraftTrace, FeatureDtype, Sampling, VerdictRule, VerifyRounds
from ...learner.model.eagle3 import Eagle3Draft
from ...learner.model.eagle3_config import Eagle3Config
from ...learner.training.batch import Batch, collate
from ...learner.training.device_memory import has_bfloat16
from ...learner.training.optimiser import DraftOptimiser
from ...learner.training.plan import RECIPE, TrainingPlan
from ...learner.training.scoring import BatchScores, score_batch
from ...learner.training.trainer import GRAD_CLIP, WARM_UP_STEPS, DraftTrainer, FitReport
from ...policies.objectives.names import Objective, Weighting
from ...policies.objectives.table import OBJECTIVES
from ...rig.ratio import Ratio, ratio
from ..measure.paired import in_rounds

SEED = 0
CONTEXT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Tokens per second of processor time, the medians, and the shares of paired rounds."""

    hidden: int
    tokens: int  # of all batches of a fit
    share: Ratio  # of the bare loop's speed
    tokens_per_s: float
    bare_tokens_per_s: float

    def line(self) -> str:
        """One row of the table."""
        speeds = f"{self.tokens_per_s:.1f} | {self.bare_tokens_per_s:.1f}"
        return f"| {self.hidden} | {self.tokens} | {speeds} | {self.share.text()} |"


class _Recorder(DraftTrainer):
    """Remembers the parts that went through the device at once, in their order."""

    parts: list[Sequence[DraftTrace]]

    def _score(self, traces: Sequence[DraftTrace]) -> BatchScores:
        self.parts.append(traces)
        return super()._score(traces)


def against_bare(hidden: int, vocabulary: int, *, traces: int, tokens: int, rounds: int) -> Fitting:
    """Fit `traces` traces of `tokens` tokens, and do its steps bare; exits when both do not find the same losses."""
    fresh = random_traces(hidden, vocabulary, traces, tokens)
    draft = random_draft(hidden, vocabulary)
    plan = TrainingPlan(seed=SEED)
    recorder = _Recorder(copy.deepcopy(draft), plan)
    recorder.parts = []
    report = recorder.fit(fresh, [])
    spec = OBJECTIVES[Objective(plan.objective)]
    asked = {"soft": spec.needs_teacher, "with_context": report.context_weight > 0.0}
    batches = [collate(part, draft.device, **asked) for part in recorder.parts]
    check_same(report.losses, bare_loop(copy.deepcopy(draft), batches, plan, report))
    trained = sum(len(trace.tokens) for part in recorder.parts for trace in part)

    def fit_s() -> float:
        trainer = DraftTrainer(copy.deepcopy(draft), plan)
        return _seconds(lambda: trainer.fit(fresh, []))

    def bare_s() -> float:
        other = copy.deepcopy(draft)
        return _seconds(lambda: bare_loop(other, batches, plan, report))

    seconds = in_rounds({"fit": fit_s, "bare": bare_s}, rounds, SEED)
    own, bare = (sorted(seconds[name])[rounds // 2] for name in ("fit", "bare"))
    return Fitting(
        hidden=hidden,
        tokens=trained,
        share=ratio(seconds["bare"], seconds["fit"]),
        tokens_per_s=trained / own,
        bare_tokens_per_s=trained / bare,
    )


def bare_loop(draft: Eagle3Draft, batches: Sequence[Batch], plan: TrainingPlan, report: FitReport) -> list[float]:
    """An optimiser step per batch, as `report`'s fit made them; the losses."""
    spec = OBJECTIVES[Objective(plan.objective)]
    weighting = Weighting(report.weighting)
    low_precision = has_bfloat16(draft.device)
    optimiser = DraftOptimiser(draft, RECIPE.matrix_rate, low_precision=low_precision)
    losses = []
    for step, batch in enumerate(batches, 1):
        optimiser.zero_grad()
        with torch.autocast(draft.device.type, torch.bfloat16, enabled=low_precision):
            scores = score_batch(
                draft, batch, steps=plan.steps, weighting=weighting, spec=spec, context_weight=report.context_weight
            )
        loss = scores.loss
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(draft.parameters(), GRAD_CLIP)
        optimiser.step(report.learning_rate * min(1.0, step / WARM_UP_STEPS))
        losses.append(loss.item())
    return losses


def check_same(losses: Sequence[float], bare: Sequence[float]) -> None:
    """Exit unless the bare loop did the fit's steps: then the times are of the same work."""
    if len(losses) != len(bare) or not np.allclose(losses, bare, rtol=1e-4):
        raise SystemExit(f"losses of the bare loop: got {list(bare)}, expected those of the fit, {list(losses)}")


def random_traces(hidden: int, vocabulary: int, traces: int, tokens: int) -> list[DraftTrace]:
    """Greedy traces without a rejection, three drafts a round, with random bfloat16 features of three layers."""
    random = np.random.default_rng(SEED)
    return [_trace(number, random, width=hidden * 3, vocabulary=vocabulary, tokens=tokens) for number in range(traces)]


def _trace(number: int, random: np.random.Generator, *, width: int, vocabulary: int, tokens: int) -> DraftTrace:
    ids = random.integers(vocabulary, size=tokens, dtype=np.int32)
    starts = np.arange(CONTEXT - 1, tokens - 4, 4, dtype=np.int32)
    drafted = ids[starts[:, None] + 1 + np.arange(3)]
    best = ids[starts[:, None] + 1 + np.arange(4)][..., None]
    rounds = VerifyRounds(
        starts=starts,
        drafted=drafted,
        accepted=np.full(len(starts), 3, np.int32),
        teacher_ids=best,
        teacher_logprobs=np.zeros(best.shape, np.float16),
    )
    features = torch.from_numpy(random.standard_normal((tokens, width), np.float32)).to(torch.bfloat16)
    return DraftTrace(
        trace_id=f"{number:032x}",
        request_id=f"request-{number}",
        replica="width",
        tenant="",
        target="target",
        target_version="0",
        draft_version=0,
        verdict_rule=VerdictRule.GREEDY,
        sampling=Sampling(),
        born_at=0.0,
        offset=0,
        tokens=ids,
        context_len=CONTEXT,
        rounds=rounds,
        features=features.view(torch.uint16).numpy(),
        feature_dtype=FeatureDtype.BFLOAT16,
        replay_exact=True,
        finish="length",
    )


def _seconds(work: object) -> float:
    began_s = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - began_s


def random_draft(hidden: int, vocabulary: int) -> Eagle3Draft:
    """A draft on the CPU, with torch's own initial weights."""
    heads = hidden // 128
    config = Eagle3Config(
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        head_dim=128,
        vocab_size=vocabulary,
        draft_vocab_size=vocabulary,
    )
    draft = Eagle3Draft(config, torch.empty(vocabulary, hidden))
    draft.embedding_WH = draft.lm_head.weight.detach()
    return draft
