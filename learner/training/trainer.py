"""The optimiser's side of a learning round: several passes over fresh traces, part of every batch replayed."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from ...buffer.errors import ConfigError
from ...buffer.stream.trace import DraftTrace
from ...policies.objectives.names import Objective, Weighting
from ...policies.objectives.table import OBJECTIVES
from ..model.draft import Draft
from .batch import collate, summed_weights, verdict_rows, verdict_rows_by_step
from .batch_sampling import draw_batches, log_replay_weights
from .device_memory import PartBound, has_bfloat16
from .first_position import first_position
from .optimiser import DraftOptimiser
from .plan import RECIPE, Recipe, TrainingPlan, context_weight
from .rank_group import RankGroup, joined
from .regime import Regime
from .scoring import BatchScores, score_batch

__all__ = ["DraftTrainer", "FitReport", "TrainingPlan"]

GRAD_CLIP = 1.0
WARM_UP_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """What one fit did."""

    losses: tuple[float, ...]  # one per optimiser step that was applied
    steps: int  # optimiser steps applied
    skipped_steps: int  # not applied, since loss or gradient was not finite
    seconds: float
    first_position_accept: float  # on the fresh traces before training; NaN when none could be drafted from
    first_position_attainable: float  # see first_position.py
    mean_acceptance: tuple[float, ...]  # mean A by draft step over the last batch; empty without a step
    is_cold: bool  # whether the draft was trained as a cold one
    weighting: str
    context_weight: float  # of rows of the context, against those with a verdict; 0: they were left out
    learning_rate: float  # that a further step would have, without the warm-up
    out_of_vocabulary_labels: int  # labels outside the draft vocabulary, masked out
    unusable_traces: int  # fresh traces without a feature row that a verdict belongs to
    part_tokens: int  # of a batch, at most, through the device at once; below the plan's where those did not fit
    #: Unix seconds at which each applied step was done; fits are equal whenever they were made.
    step_times: tuple[float, ...] = field(default=(), compare=False)


@dataclass(slots=True, kw_only=True)
class _Counts:
    losses: list[float]
    skipped_steps: int = 0
    step_times: list[float] = field(default_factory=list)
    out_of_vocabulary_labels: int = 0
    acceptance: tuple[float, ...] = ()


class DraftTrainer:
    """Trains one draft in place, one learning round after the other. Not for use from two threads."""

    def __init__(
        self,
        draft: Draft,
        plan: TrainingPlan,
        target_versions: Sequence[str] = (),
        recipe: Recipe = RECIPE,
    ) -> None:
        """`target_versions`, oldest first, are those that traces may be of: see batch_sampling.py. Without them all
        traces count alike. They may be set again between two fits; nothing else changes with the target.
        """
        self.draft = draft
        self.plan = plan
        self.recipe = recipe
        self.target_versions = tuple(target_versions)
        self._low_precision = has_bfloat16(draft.device)
        self._optimiser = DraftOptimiser(draft, recipe.matrix_rate, low_precision=self._low_precision)
        self._random = torch.Generator().manual_seed(plan.seed)
        self._bound = PartBound(plan.batch_tokens)
        self._applied_steps = 0
        self._regime = Regime()
        self._context_weight = 0.0
        #: Called with the step that has ended and how many this fit has.
        self.on_step: Callable[[int, int], object] = lambda _step, _steps: None

    def fit(
        self, fresh: Sequence[DraftTrace], replay: Sequence[DraftTrace], part_tokens: int | None = None
    ) -> FitReport:
        """Pass `plan.passes` times over `fresh` in random order; fill every batch up from `replay`, oldest first.

        `part_tokens`: what is known to fit into the device's memory at once; the plan's without.

        Traces that no verdict can be drafted from are left out. Changes the draft, the optimiser and the random
        state; a step whose loss or gradient is not finite changes none of the weights. What torch raises when not even
        one trace fits into the device's memory is raised; the draft is then of no use. As one of several ranks this
        blocks until all have come; see rank_group.py.
        """
        ranks = joined()
        with ranks.fitting(self, fresh, replay, part_tokens) if ranks else nullcontext():
            return self._fit(fresh, replay, part_tokens)

    def _fit(self, fresh: Sequence[DraftTrace], replay: Sequence[DraftTrace], part_tokens: int | None) -> FitReport:
        started = time.perf_counter()
        self._bound = PartBound(part_tokens or self.plan.batch_tokens)
        usable = _usable(fresh)
        replayable = _usable(replay)
        first = first_position(self.draft, usable, self._bound)
        self._regime.choose(first.share, self.recipe)
        self._context_weight = context_weight(self.plan.context_weight, first.share)
        counts = _Counts(losses=[])
        batches = list(
            draw_batches(
                usable,
                replayable,
                passes=self.plan.passes,
                recipe=self.recipe,
                random=self._random,
                log_weights_N=self._replay_log_weights(replayable),
                targets=self.target_versions,
            )
        )
        for step, traces in enumerate(batches, 1):
            self._step(traces, counts)
            self.on_step(step, len(batches))
        return FitReport(
            losses=tuple(counts.losses),
            steps=len(counts.losses),
            skipped_steps=counts.skipped_steps,
            seconds=time.perf_counter() - started,
            first_position_accept=first.accept,
            first_position_attainable=first.attainable,
            mean_acceptance=counts.acceptance,
            is_cold=self._regime.is_cold,
            weighting=self._weighting,
            context_weight=self._context_weight,
            learning_rate=self._regime.learning_rate(self.recipe),
            out_of_vocabulary_labels=counts.out_of_vocabulary_labels,
            unusable_traces=len(fresh) - len(usable),
            part_tokens=self._bound.tokens,
            step_times=tuple(counts.step_times),
        )

    def save(self, path: Path | BinaryIO) -> None:
        """Write all that continuing needs except the target's embedding. Not atomic; see disk.write_folder.

        On a CPU the continuation is equal bit by bit; a GPU's gradient sums have no fixed order.
        """
        state = {
            "draft": self.draft.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "random": self._random.get_state(),
            "applied_steps": self._applied_steps,
            **self._regime.state(),
        }
        torch.save(state, path)

    def load(self, path: Path | BinaryIO) -> None:
        """Continue from a saved state. ConfigError, and no change, when the file is not one of a draft like this.

        Of a recipe that moved other weights by Muon, weights and regime go on, and the optimiser starts afresh.
        """
        try:
            state = torch.load(path, map_location=self.draft.device, weights_only=True)
            shapes = {name: tensor.shape for name, tensor in state["draft"].items()}
        except Exception as error:  # torch raises many types for a bad file: each of them is the same ConfigError
            raise ConfigError(f"{path}: got {error}, expected a state written by DraftTrainer.save") from error
        own = {name: tensor.shape for name, tensor in self.draft.state_dict().items()}
        if shapes != own:
            raise ConfigError(f"{path}: got tensors {shapes}, expected {own}; it belongs to another draft")
        self.draft.load_state_dict(state["draft"])
        goes_on = self._optimiser.load_state_dict(state["optimiser"])
        self._random.set_state(state["random"].cpu())
        self._applied_steps = state["applied_steps"] if goes_on else 0
        self._regime.load(state)

    def keep_regime(self, before: "DraftTrainer") -> None:
        """Take over cold or warm from `before`, and what is left of the cold learning rate."""
        self._regime = replace(before._regime)  # noqa: SLF001 - of the same class

    @property
    def _weighting(self) -> Weighting:
        return self._regime.weighting

    def _replay_log_weights(self, replay: Sequence[DraftTrace]) -> Tensor | None:
        return log_replay_weights(replay, self.target_versions)

    def _score(self, traces: Sequence[DraftTrace]) -> BatchScores:
        spec = OBJECTIVES[Objective(self.plan.objective)]
        weight = self._context_weight
        batch = collate(traces, self.draft.device, soft=spec.needs_teacher, with_context=weight > 0.0)
        with self._autocast():
            return score_batch(
                self.draft, batch, steps=self.plan.steps, weighting=self._weighting, spec=spec, context_weight=weight
            )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.draft.device.type, torch.bfloat16, enabled=self._low_precision)

    def _step(self, traces: Sequence[DraftTrace], counts: _Counts) -> None:
        scores = self._find_gradient(traces)
        counts.out_of_vocabulary_labels += scores.out_of_vocabulary_labels
        norm = nn.utils.clip_grad_norm_(self.draft.parameters(), GRAD_CLIP)
        if not torch.isfinite(scores.loss.detach() + norm):
            counts.skipped_steps += 1
            return
        self._apply()
        counts.losses.append(scores.loss.item())
        counts.step_times.append(time.time())
        counts.acceptance = tuple(scores.acceptance_S.tolist())

    def _find_gradient(self, traces: Sequence[DraftTrace]) -> BatchScores:
        """Add up the gradient of a batch over its parts; a part counts as much as its rows."""
        all_rows_S = verdict_rows_by_step(traces, self.plan.steps)
        weight = self._context_weight
        all_weights = summed_weights(traces, weight)

        def backward(part: Sequence[DraftTrace]) -> BatchScores:
            scores = self._score(part)
            rows_S = verdict_rows_by_step(part, self.plan.steps)
            loss = scores.loss * (summed_weights(part, weight) / all_weights)
            loss.backward()  # type: ignore[no-untyped-call]
            share_S = torch.from_numpy(rows_S / np.maximum(all_rows_S, 1)).to(scores.acceptance_S)
            return BatchScores(loss.detach(), scores.acceptance_S * share_S, scores.out_of_vocabulary_labels)

        ranks = joined()
        own = ranks.share(traces) if ranks else traces
        found = self._bound.map(backward, own, restart=self._optimiser.zero_grad, most_traces=len(traces))
        scores = BatchScores(
            sum((scores.loss for scores in found), torch.zeros((), device=self.draft.device)),
            sum((scores.acceptance_S for scores in found), torch.zeros(self.plan.steps, device=self.draft.device)),
            sum(scores.out_of_vocabulary_labels for scores in found),
        )
        return self._added_up(ranks, scores) if ranks else scores

    def _added_up(self, ranks: RankGroup, own: BatchScores) -> BatchScores:
        """Sum gradients and scores over the ranks; one without a trace of the batch adds nothing."""
        for weight in self.draft.parameters():
            if weight.grad is None and weight.requires_grad:
                weight.grad = torch.zeros_like(weight)
        ranks.add_up([*(weight.grad for weight in self.draft.parameters() if weight.grad is not None)])
        loss, left_out, *acceptance_S = ranks.totals(
            [own.loss.item(), own.out_of_vocabulary_labels, *own.acceptance_S.tolist()]
        )
        return BatchScores(torch.tensor(loss), torch.tensor(acceptance_S), round(left_out))

    def _apply(self) -> None:
        self._applied_steps += 1
        rate = self._regime.learning_rate(self.recipe)
        self._optimiser.step(rate * min(1.0, self._applied_steps / WARM_UP_STEPS))
        self._regime.record_step()


def _usable(traces: Sequence[DraftTrace]) -> list[DraftTrace]:
    return [trace for trace in traces if len(verdict_rows(trace))]
