"""The optimiser's side of a round: several passes over fresh traces, half of every batch replayed from a window.

Axes as in batch.py; N rows with a verdict.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ...buffer.errors import ConfigError
from ...buffer.trace import DraftTrace
from ...policies.objectives.losses import WITH_REFERENCE, WITHOUT_TEACHER, Objective, Weighting
from ..model.eagle3 import Eagle3Draft
from ..model.frozen_copy import follow, frozen
from .batch import Batch, collate, verdict_rows
from .batch_sampling import draw_batches
from .first_position import first_position
from .plan import TrainingPlan
from .scoring import score_batch
from .served_rounds import ServedRounds, collate_rounds

__all__ = ["DraftTrainer", "FitReport", "TrainingPlan"]

WARM_UP_STEPS = 10
#: A warm draft is treated as cold again only below this share of `cold_below`, so that noise does not toggle it.
COLD_AGAIN = 0.8


@dataclass(frozen=True, slots=True)
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
    learning_rate: float  # behind the warm-up
    unspeakable_labels: int  # labels outside the draft vocabulary, masked out
    unusable_traces: int  # fresh traces without a feature row that a verdict belongs to


@dataclass(slots=True)
class _Counts:
    losses: list[float]
    skipped_steps: int = 0
    unspeakable_labels: int = 0
    acceptance: tuple[float, ...] = ()


class DraftTrainer:
    """Trains one draft in place, round after round. Not for use from two threads."""

    def __init__(
        self,
        draft: Eagle3Draft,
        plan: TrainingPlan,
        reference: Eagle3Draft | None = None,
        target_versions: Sequence[str] = (),
    ) -> None:
        """`reference`, a draft of the same target, is what the objectives WITH_REFERENCE compare with: for AdaSPEC one
        distilled with forward KL, for GTO the one it starts from, for REINFORCE the one that proposed. A frozen copy
        is kept. Left out, it is `draft` as it is now; under REINFORCE as it is at the start of each fit.
        `target_versions`, oldest first, are those that traces may be of: see draws.py. Left out, all count alike.
        """
        self.draft, self.plan = draft, plan
        self._target_versions = tuple(target_versions)
        self._objective = Objective(plan.objective)
        self._low_precision = has_bfloat16(draft.device) if plan.bfloat16 is None else plan.bfloat16
        self._follows_draft = reference is None and self._objective is Objective.REINFORCE
        compared = draft if reference is None else reference
        self._reference = frozen(compared) if self._objective in WITH_REFERENCE else None
        self._average = frozen(draft) if plan.ema_decay else None
        self._optimiser = torch.optim.AdamW(
            draft.parameters(), lr=plan.cold_learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self._random = torch.Generator().manual_seed(plan.seed)
        self._applied_steps = 0
        self._is_cold = True

    def fit(self, fresh: Sequence[DraftTrace], window: Sequence[DraftTrace]) -> FitReport:
        """Pass `plan.passes` times over `fresh` in random order; fill every batch up from `window`, oldest first.

        Traces that no verdict can be drafted from are left out. Changes the draft, the optimiser and the random
        state; a step whose loss or gradient is not finite changes none of the weights.
        """
        started = time.perf_counter()
        usable, replayable = _usable(fresh), _usable(window)
        first = first_position(self.draft, usable)
        self._choose_regime(first.share)
        if self._follows_draft:
            self._reference = frozen(self.draft)
        counts = _Counts([])
        for traces in draw_batches(usable, replayable, self.plan, self._random, self._target_versions):
            self._step(traces, counts)
        return FitReport(
            losses=tuple(counts.losses),
            steps=len(counts.losses),
            skipped_steps=counts.skipped_steps,
            seconds=time.perf_counter() - started,
            first_position_accept=first.accept,
            first_position_attainable=first.attainable,
            mean_acceptance=counts.acceptance,
            is_cold=self._is_cold,
            weighting=self._weighting,
            learning_rate=self._learning_rate,
            unspeakable_labels=counts.unspeakable_labels,
            unusable_traces=len(fresh) - len(usable),
        )

    @property
    def served(self) -> Eagle3Draft:
        """What to serve: a frozen moving average of the draft's weights where the plan keeps one, else the draft.

        It changes with every applied step. The average starts as the draft this trainer was given, or as a state
        that was saved without one.
        """
        return self.draft if self._average is None else self._average

    def save(self, path: Path) -> None:
        """Write all that continuing needs beside the target's embedding. Not atomic; see disk.write_folder.

        On a CPU the continuation is equal bit by bit; a GPU's gradient sums have no fixed order.
        """
        state = {
            "draft": self.draft.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "random": self._random.get_state(),
            "applied_steps": self._applied_steps,
            "is_cold": self._is_cold,
        }
        if self._reference is not None and not self._follows_draft:
            state["reference"] = self._reference.state_dict()
        if self._average is not None:
            state["average"] = self._average.state_dict()
        torch.save(state, path)

    def load(self, path: Path) -> None:
        """Continue from a saved state. ConfigError, and no change, when the file is not one of a draft like this."""
        try:
            state = torch.load(path, map_location=self.draft.device, weights_only=True)
            shapes = {name: tensor.shape for name, tensor in state["draft"].items()}
        except Exception as error:  # torch raises many types for a bad file: each of them is the same ConfigError
            raise ConfigError(f"{path}: got {error}, expected a state written by DraftTrainer.save") from error
        own = {name: tensor.shape for name, tensor in self.draft.state_dict().items()}
        if shapes != own:
            raise ConfigError(f"{path}: got tensors {shapes}, expected {own}; it belongs to another draft")
        self.draft.load_state_dict(state["draft"])
        if self._reference is not None:
            # A state saved under an objective without one: the draft it goes on from is the one to compare with.
            self._reference.load_state_dict(state.get("reference", state["draft"]))
        if self._average is not None:
            self._average.load_state_dict(state.get("average", state["draft"]))
        self._optimiser.load_state_dict(state["optimiser"])
        self._random.set_state(state["random"].cpu())
        self._applied_steps, self._is_cold = state["applied_steps"], state["is_cold"]

    def keep_regime(self, before: "DraftTrainer") -> None:
        """Be cold or warm as the trainer `before` this one was: what lies between the two thresholds depends on it."""
        self._is_cold = before._is_cold  # noqa: SLF001 - of the same class

    @property
    def _weighting(self) -> Weighting:
        if self.plan.weighting is not None:
            return Weighting(self.plan.weighting)
        return Weighting.SURVIVAL if self._is_cold else Weighting.GEOMETRIC

    @property
    def _learning_rate(self) -> float:
        return self.plan.cold_learning_rate if self._is_cold else self.plan.warm_learning_rate

    @property
    def _kl_weight(self) -> float:
        halvings = self._applied_steps / self.plan.kl_decay_steps if self.plan.kl_decay_steps else 0.0
        return self.plan.kl_weight * math.pow(0.5, halvings)

    def _choose_regime(self, share: float) -> None:
        """Cold until FirstPosition.share reaches `cold_below`; NaN leaves the regime as it is."""
        if share >= self.plan.cold_below:
            self._is_cold = False
        elif share < COLD_AGAIN * self.plan.cold_below:
            self._is_cold = True

    def _step(self, traces: Sequence[DraftTrace], counts: _Counts) -> None:
        batch, rounds, plan = self._collated(traces), self._rounds(traces), self.plan
        with torch.autocast(self.draft.device.type, torch.bfloat16, enabled=self._low_precision):
            scores = score_batch(
                self.draft,
                batch,
                plan.steps,
                self._weighting,
                self._objective,
                kl_weight=self._kl_weight,
                reference=self._reference,
                rounds=rounds,
                off_path_weight=plan.off_path_weight,
            )
        counts.unspeakable_labels += scores.unspeakable_labels
        self._optimiser.zero_grad(set_to_none=True)
        scores.loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.draft.parameters(), self.plan.grad_clip)
        if not torch.isfinite(scores.loss.detach() + norm):
            counts.skipped_steps += 1
            return
        self._apply()
        counts.losses.append(scores.loss.item())
        counts.acceptance = tuple(scores.acceptance_S.tolist())

    def _collated(self, traces: Sequence[DraftTrace]) -> Batch:
        """The traces with what the objective asks of them, and no more: a teacher costs a copy of its top-K."""
        return collate(
            traces,
            self.draft.device,
            soft=self._objective not in WITHOUT_TEACHER or self.plan.kl_weight > 0.0,
            as_served=self._objective is not Objective.FORWARD_KL_ACCEPTED,
            verdicts=self._objective is Objective.REINFORCE,
            teacher_temperature=self.plan.teacher_temperature,
        )

    def _rounds(self, traces: Sequence[DraftTrace]) -> ServedRounds | None:
        """The served rounds that the plan scores beside the committed text; None: it scores none."""
        plan, is_mixed = self.plan, self._objective is Objective.ON_POLICY_MIX
        if not is_mixed and not plan.off_path_weight:
            return None
        device, temperature = self.draft.device, plan.teacher_temperature
        return collate_rounds(traces, device, plan.steps, rejected_only=not is_mixed, teacher_temperature=temperature)

    def _apply(self) -> None:
        self._applied_steps += 1
        for group in self._optimiser.param_groups:
            group["lr"] = self._learning_rate * min(1.0, self._applied_steps / WARM_UP_STEPS)
        self._optimiser.step()
        if self._average is not None:
            follow(self._average, self.draft, self.plan.ema_decay)


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies in bfloat16 by instructions of its own; elsewhere it would only be slower."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 - no public name


def _usable(traces: Sequence[DraftTrace]) -> list[DraftTrace]:
    return [trace for trace in traces if len(verdict_rows(trace))]
