"""Does the server that wrote the traces accept more from a draft that learned from them?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...learner.model.draft_io import load_draft, load_target_embedding, save_draft
from ...learner.training.plan import RECIPE, Recipe, TrainingPlan
from ...learner.training.trainer import DraftTrainer, FitReport
from ...rig.deployment import DRAFT_STEPS
from ...rig.prompts import Prompt
from ..measure.answers import Answers, answer_all, asks, flush_cache
from ..measure.measured_server import DraftWeights, MeasuredServer
from .checks import Captured, Finding, captured

#: What a draft must gain on prompts it did not learn from.
GAIN = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningPlan:
    """How much is served, how the draft learns, and how it is measured."""

    requests: int
    measured_requests: int
    max_tokens: int
    concurrency: int
    training: tuple[TrainingPlan, Recipe]
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Pooled accept lengths of the same prompts before and after the swap to the learned draft."""

    before: float
    after: float
    traces: int
    fit: FitReport
    version: int
    pairs: tuple[Captured, ...]  # served by the learned draft

    def finding(self) -> Finding:
        """Whether the gain is there."""
        return Finding(
            name="accept length served, random draft -> learned draft",
            found=f"{self.before:.3f} -> {self.after:.3f}",
            wanted=f"+{GAIN}",
            cases=len(self.pairs),
            is_right=self.after >= self.before + GAIN,
        )


def learn_and_serve(
    server: MeasuredServer, target: Path, *, draft: Path, prompts: Sequence[Prompt], plan: LearningPlan, folder: Path
) -> Learned:
    """Serve, learn from the traces, swap the result in through the board, and serve the measured prompts again.

    The first of `prompts` are measured and not learned from. The learned draft stays in `folder`, and live.
    """
    measured = prompts[: plan.measured_requests]
    learned = prompts[plan.measured_requests :][: plan.requests]
    before = _measure(server, measured, "before", plan).tally
    answers = answer_all(server.url, asks(learned, "learn", plan.max_tokens), plan.concurrency).answers
    traces = [pair.trace for pair in captured(server, answers)]
    initial = load_draft(draft, load_target_embedding(target)).to(plan.device)
    trainer = DraftTrainer(initial, plan.training[0], recipe=plan.training[1])
    fit = trainer.fit(traces, [])
    save_draft(trainer.draft, folder)
    version = server.register(DraftWeights.of(folder), f"learned from {len(traces)} traces")
    server.go_live(version)
    after = _measure(server, measured, "after", plan)
    pairs = captured(server, after.answers)
    return Learned(
        before=before.accept_length,
        after=after.tally.accept_length,
        traces=len(traces),
        fit=fit,
        version=version,
        pairs=tuple(pairs),
    )


def _measure(server: MeasuredServer, prompts: Sequence[Prompt], prefix: str, plan: LearningPlan) -> Answers:
    """Serve from an empty cache, because a cached prefix holds draft state of the weights before the swap."""
    server.drained()
    flush_cache(server.url)
    return answer_all(server.url, asks(prompts, prefix, plan.max_tokens), plan.concurrency)


def training_plan(device: str, *, tiny: bool) -> tuple[TrainingPlan, Recipe]:
    """How the draft is trained; with larger batches on a GPU."""
    if tiny or device == "cpu":
        return TrainingPlan(steps=DRAFT_STEPS, passes=6), RECIPE
    return TrainingPlan(steps=DRAFT_STEPS, passes=12), Recipe(batch_traces=16)
