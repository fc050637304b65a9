"""What MLflow is told about a version that came out of a round."""

import math
from collections.abc import Mapping
from dataclasses import asdict

from ...buffer.version import HELD_OUT_SCORE, DraftVersion
from ...policies.promotion import Promotion
from ..training.plan import RECIPE, TrainingPlan
from ..training.trainer import FitReport
from .code_version import code_version
from .mlflow_registry import CODE_TAG, RunRecord, version_tags


def scores_of(promotion: Promotion) -> dict[str, float]:
    """The gate's figures as a version carries them on the board."""
    low, high = promotion.interval
    return {
        HELD_OUT_SCORE: promotion.candidate_accept_length,
        "live_holdout_accept_length": promotion.live_accept_length,
        "gain": promotion.gain,
        "gain_low": low,
        "gain_high": high,
        "holdout_requests": float(promotion.requests),
    }


def record_of(
    published: DraftVersion,
    plan: TrainingPlan,
    fit: FitReport,
    promotion: Promotion,
    *,
    born_at: float,
    first_step: int,
    learn_reason: str = "",
) -> RunRecord:
    """Lineage as tags, plan and recipe as parameters, losses by optimiser step, the gate's figures at the last step.

    `first_step` counts the optimiser steps the learner took before this round; `born_at` is unix seconds;
    `learn_reason` is why the round trained at all.
    """
    learn = {"paceline.learn.reason": learn_reason} if learn_reason else {}
    gate = {"paceline.gate.verdict": promotion.verdict.value, "paceline.gate.reason": promotion.reason}
    return RunRecord(
        number=published.number,
        born_at=born_at,
        params={key: str(value) for key, value in (asdict(plan) | asdict(RECIPE)).items()},
        tags={**version_tags(published), **gate, **learn, CODE_TAG: code_version()},
        metrics=_metrics(published.scores, fit),
        curves={"loss": list(fit.losses)},
        first_step=first_step,
    )


def _metrics(scores: Mapping[str, float], fit: FitReport) -> dict[str, float]:
    found = {**scores, "first_position_accept": fit.first_position_accept, "fit_s": fit.seconds}
    # First-position acceptance is NaN on traces that no draft can start from.
    return {key: value for key, value in found.items() if math.isfinite(value)}
