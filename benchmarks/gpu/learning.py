"""Does a draft learnt from these traces get more accepted by the server that wrote them?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...learner.model.draft_io import load_draft, load_target_embedding, save_draft
from ...learner.training.plan import RECIPE, Recipe, TrainingPlan
from ...learner.training.trainer import DraftTrainer, FitReport
from ...rig.place import DRAFT_STEPS
from ...rig.prompts import Prompt
from ..measure.answers import Answers, answer_all, asks, flush_cache
from ..measure.rig import Rig
from .checks import Captured, Finding, captured

#: What a draft must gain on prompts it did not learn from for the traces to count as right.
GAIN = 0.15


@dataclass(frozen=True, slots=True)
class LearningPlan:
    """How much is served, how it is learnt, and what is measured with."""

    requests: int
    measured_requests: int
    max_tokens: int
    concurrency: int
    training: tuple[TrainingPlan, Recipe]
    device: str


@dataclass(frozen=True, slots=True)
class Learned:
    """Pooled accept lengths of the same prompts before and behind the swap to the learnt draft."""

    before: float
    after: float
    traces: int
    fit: FitReport
    version: int
    pairs: tuple[Captured, ...]  # served by the learnt draft

    def finding(self) -> Finding:
        """Whether the gain is there."""
        return Finding(
            "accept length served, random draft -> learnt draft",
            f"{self.before:.3f} -> {self.after:.3f}",
            f"+{GAIN}",
            len(self.pairs),
            self.after >= self.before + GAIN,
        )


def learn_and_serve(
    rig: Rig, target: Path, draft: Path, prompts: Sequence[Prompt], plan: LearningPlan, folder: Path
) -> Learned:
    """Serve, learn from the traces, swap the result in through the board, and serve the measured prompts again.

    The measured prompts come first in `prompts` and are not learnt from. The learnt draft stays in `folder` and live.
    """
    measured, learnt = prompts[: plan.measured_requests], prompts[plan.measured_requests :][: plan.requests]
    before = _measure(rig, measured, "before", plan).tally
    answers = answer_all(rig.url, asks(learnt, "learn", plan.max_tokens), plan.concurrency).answers
    traces = [pair.trace for pair in captured(rig, answers)]
    initial = load_draft(draft, load_target_embedding(target)).to(plan.device)
    trainer = DraftTrainer(initial, plan.training[0], recipe=plan.training[1])
    fit = trainer.fit(traces, [])
    save_draft(trainer.draft, folder)
    version = rig.register(folder, f"learnt from {len(traces)} traces")
    rig.go_live(version)
    after = _measure(rig, measured, "after", plan)
    pairs = captured(rig, after.answers)
    return Learned(before.accept_length, after.tally.accept_length, len(traces), fit, version, tuple(pairs))


def _measure(rig: Rig, prompts: Sequence[Prompt], prefix: str, plan: LearningPlan) -> Answers:
    """Serve from an empty cache: a cached prefix holds the draft state of the weights before the swap."""
    rig.drained()
    flush_cache(rig.url)
    return answer_all(rig.url, asks(prompts, prefix, plan.max_tokens), plan.concurrency)


def training_plan(device: str, *, tiny: bool) -> tuple[TrainingPlan, Recipe]:
    """The demo's plan, and on a GPU more passes over larger batches."""
    if tiny or device == "cpu":
        return TrainingPlan(steps=DRAFT_STEPS, passes=6), RECIPE
    return TrainingPlan(steps=DRAFT_STEPS, passes=12), Recipe(batch_traces=16)
