"""What MLflow records about a version: plain values, so that a record can wait on disk as JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ...buffer.board.version import JUDGED_SCORE, PREDICTED_SCORE, PREDICTED_STANDARD_ERROR, DraftVersion
from ...buffer.code_version import code_version
from ...policies import verdict_words as words
from ...policies.judged_on import figures, sentence
from ...policies.promotion import Promotion
from ..training.plan import TrainingPlan
from ..training.trainer import FitReport
from .round_evidence import RoundEvidence

#: The tags of a run and of a model version: what people filter by. All else about a draft is a parameter of its run.
VERSION_TAG = "paceline.version"
SHA256_TAG = "paceline.sha256"
JUDGED_AGAINST_TAG = "paceline.judged_against"
VERDICT_TAG = "paceline.verdict"

#: Prefixes of the metrics: what the gate measured, and what the fit did.
GATE = "gate/"
FIT = "fit/"
LOSS = f"{FIT}loss"


class Point(NamedTuple):
    """One value of a metric; `at` is unix seconds."""

    metric: str
    value: float
    step: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that MLflow records about one version."""

    number: int
    born_at: float  # unix seconds at which it was published
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)  # one value each, at the draft's number
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)  # one value per optimiser step
    first_step: int = 0  # step of the curves' first value, counted over the learner's life
    started_at: float | None = None  # unix seconds at which its learning round began; None: not known
    curve_times: Sequence[float] = ()  # unix seconds of the curves' values; empty: not known
    by_position: Mapping[str, Sequence[float]] = field(default_factory=dict)  # one value per position, from 1
    evidence: Mapping[str, Any] | None = None  # RoundEvidence as JSON values

    @property
    def key(self) -> tuple[int, str]:
        """What identifies the version: its number and its digest, because a board that lost its data reuses numbers."""
        return self.number, self.tags.get(SHA256_TAG, "")

    @property
    def summary(self) -> list[Point]:
        """The single values, at the draft's number."""
        return [Point(key, value, self.number, self.born_at) for key, value in self.metrics.items()]

    @property
    def series(self) -> list[Point]:
        """Curves by optimiser step, at the time of each, and what is by position by position."""
        curves = [
            Point(key, value, self.first_step + step, self._time_of(step))
            for key, curve in self.curves.items()
            for step, value in enumerate(curve)
        ]
        positions = [
            Point(key, value, position, self.born_at)
            for key, values in self.by_position.items()
            for position, value in enumerate(values, 1)
        ]
        return curves + positions

    def _time_of(self, step: int) -> float:
        return self.curve_times[step] if step < len(self.curve_times) else self.born_at


def scores_of(promotion: Promotion) -> dict[str, float]:
    """The gate's figures as a version carries them on the board, without those that are not known."""
    found = dict[str, float]()
    if (measured := promotion.measured) is not None:
        low, high = measured.interval
        found |= {
            JUDGED_SCORE: measured.line_accept_length,
            "reference_accept_length": measured.reference_accept_length,
            "gain": measured.gain,
            "gain_low": low,
            "gain_high": high,
        }
    if (predicted := promotion.prediction) is not None:
        found |= {PREDICTED_SCORE: predicted.accept_length, PREDICTED_STANDARD_ERROR: predicted.standard_error}
    return {name: figure for name, figure in found.items() if math.isfinite(figure)}


def record_of(
    published: DraftVersion,
    plan: TrainingPlan,
    fit: FitReport,
    promotion: Promotion,
    *,
    born_at: float,
    first_step: int,
    learn_reason: str = "",
    evidence: RoundEvidence | None = None,
) -> RunRecord:
    """All that is known of a draft when its learning round ends.

    `first_step` counts the optimiser steps before this learning round; `born_at` is unix seconds; `learn_reason` is
    why the learning round trained.
    """
    verdict = {VERDICT_TAG: promotion.verdict.value}
    against = {} if promotion.reference is None else {JUDGED_AGAINST_TAG: str(promotion.reference)}
    return RunRecord(
        number=published.number,
        born_at=born_at,
        params=_params(published)
        | _round_params(plan, fit, promotion=promotion, learn_reason=learn_reason, evidence=evidence),
        tags={SHA256_TAG: published.sha256, **against, **verdict},
        metrics=_gate_metrics(published) | _fit_metrics(fit, evidence),
        curves={LOSS: list(fit.losses)},
        first_step=first_step,
        started_at=evidence.started_at if evidence else None,
        curve_times=list(fit.step_times),
        by_position={f"{FIT}mean_acceptance": list(fit.mean_acceptance)},
        evidence=asdict(evidence) if evidence else None,
    )


def record_from_board(version: DraftVersion, born_at: float) -> RunRecord:
    """What the board alone knows about a version that no learner recorded: the initial draft, or an operator's."""
    # Every learner publishes the initial draft with the same code; what made an operator's is unknown.
    code = {"code_version": code_version()} if version.parent is None else {}
    tags = {SHA256_TAG: version.sha256}
    return RunRecord(
        number=version.number,
        born_at=born_at,
        params=_params(version) | code,
        tags=tags,
        metrics=_gate_metrics(version),
    )


def _params(version: DraftVersion) -> dict[str, str]:
    """Lineage of a version; what is not known is left out."""
    found = {
        "draft": str(version.number),
        "parent": "" if version.parent is None else str(version.parent),
        "target": version.target,
        "target_version": version.target_version,
        "trained_targets": ",".join(version.trained_targets),
        "drafter": version.drafter,
        "objective": version.objective,
        "window_first": version.trained_on[0],
        "window_last": version.trained_on[1],
        "judged_on": "" if version.judged_on is None else sentence(version.judged_on),
    }
    return {name: value for name, value in found.items() if value}


def _round_params(
    plan: TrainingPlan, fit: FitReport, *, promotion: Promotion, learn_reason: str, evidence: RoundEvidence | None
) -> dict[str, str]:
    found = {
        **{name: str(value) for name, value in asdict(plan).items()},
        "regime": "cold" if fit.is_cold else "warm",
        "weighting": fit.weighting,
        "learning_rate": f"{fit.learning_rate:g}",
        "code_version": code_version(),
        "gate_reason": words.sentence(promotion.reason),
        "judged_against": "" if promotion.reference is None else str(promotion.reference),
        "gate_ground": "" if promotion.ground is None else promotion.ground.value,
        "learn_reason": learn_reason,
    }
    if evidence is not None:
        refit = evidence.refit
        found |= {"round": str(refit.rounds_trained + 1), "learner": evidence.learner}
        found |= {"device": refit.device, "threads": str(refit.threads)}
    return {name: value for name, value in found.items() if value}


def _gate_metrics(version: DraftVersion) -> dict[str, float]:
    found = {**version.scores, **({} if version.judged_on is None else figures(version.judged_on))}
    return {f"{GATE}{name}": value for name, value in found.items()}


def _fit_metrics(fit: FitReport, evidence: RoundEvidence | None) -> dict[str, float]:
    found: dict[str, float] = {
        "steps": fit.steps,
        "skipped_steps": fit.skipped_steps,
        "seconds": fit.seconds,
        # The two are NaN on traces that no draft can start from.
        "first_position_accept": fit.first_position_accept,
        "first_position_attainable": fit.first_position_attainable,
        "is_cold": float(fit.is_cold),
        "learning_rate": fit.learning_rate,
        "context_weight": fit.context_weight,
        "out_of_vocabulary_labels": fit.out_of_vocabulary_labels,
        "unusable_traces": fit.unusable_traces,
        "part_tokens": fit.part_tokens,
    }
    if evidence is not None:
        refit = evidence.refit
        found |= {"fresh_traces": len(refit.learned), "held_out_traces": len(refit.held_out)}
        found |= {"replayed_traces": len(refit.replayed)}
    return {f"{FIT}{name}": float(value) for name, value in found.items() if math.isfinite(value)}
