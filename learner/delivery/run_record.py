"""What MLflow records about a version: plain values, so that a record can wait on disk as JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from ...buffer.version import JUDGED_SCORE, DraftVersion
from ...policies.judged_on import figures, sentence
from ...policies.promotion import Promotion
from ..training.plan import RECIPE, TrainingPlan
from ..training.trainer import FitReport
from .code_version import code_version

VERSION_TAG = "paceline.version"
SHA256_TAG = "paceline.sha256"
CODE_TAG = "paceline.code_version"
#: How many requests judged the version, their age, and their labels beside those of the newest traffic.
JUDGED_ON_TAG = "paceline.judged_on"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Everything MLflow records about one version."""

    number: int
    born_at: float  # unix seconds
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)  # one value each, at the last step
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)  # one value per step
    first_step: int = 0  # step of the curves' first value, counted over the learner's life

    @property
    def key(self) -> tuple[int, str]:
        """What identifies the version: its number and its digest, because a board that lost its data reuses numbers."""
        return self.number, self.tags.get(SHA256_TAG, "")

    def points(self) -> list[tuple[str, float, int]]:
        """(metric, value, step); single values are at the last step of the curves."""
        last = max((len(curve) for curve in self.curves.values()), default=1) - 1
        curves = [(key, value, step) for key, curve in self.curves.items() for step, value in enumerate(curve)]
        found = curves + [(key, value, max(last, 0)) for key, value in self.metrics.items()]
        return [(key, value, self.first_step + step) for key, value, step in found]


def scores_of(promotion: Promotion) -> dict[str, float]:
    """The gate's figures as a version carries them on the board, without those that are not known."""
    measured = promotion.measured
    if measured is None:
        return {}
    low, high = measured.interval
    found = {
        JUDGED_SCORE: measured.line_accept_length,
        "reference_accept_length": measured.reference_accept_length,
        "gain": measured.gain,
        "gain_low": low,
        "gain_high": high,
    }
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
) -> RunRecord:
    """Lineage as tags, plan and recipe as parameters, losses by optimiser step, the gate's figures at the last step.

    `first_step` counts the optimiser steps before this learning round; `born_at` is unix seconds; `learn_reason` is
    why the learning round trained.
    """
    learn = {"paceline.learn.reason": learn_reason} if learn_reason else {}
    gate = {"paceline.gate.verdict": promotion.verdict.value, "paceline.gate.reason": promotion.reason}
    gate |= {} if promotion.ground is None else {"paceline.gate.ground": promotion.ground.value}
    gate |= {} if promotion.reference is None else {"paceline.gate.reference": str(promotion.reference)}
    return RunRecord(
        number=published.number,
        born_at=born_at,
        params={key: str(value) for key, value in (asdict(plan) | asdict(RECIPE)).items()},
        tags={**version_tags(published), **gate, **learn, CODE_TAG: code_version()},
        metrics=_metrics(_figures(published), fit),
        curves={"loss": list(fit.losses)},
        first_step=first_step,
    )


def record_from_board(version: DraftVersion, born_at: float) -> RunRecord:
    """What the board alone knows about a version that no learner recorded: the initial draft, or an operator's."""
    # Every learner publishes the initial draft with the same code; what made an operator's is unknown.
    code = {CODE_TAG: code_version()} if version.parent is None else {}
    return RunRecord(version.number, born_at, tags=version_tags(version) | code, metrics=_figures(version))


def version_tags(version: DraftVersion) -> dict[str, str]:
    """Lineage of a version as tags, the same on run and model version."""
    first, last = version.trained_on
    judged = {} if version.judged_on is None else {JUDGED_ON_TAG: sentence(version.judged_on)}
    judged |= {"paceline.trained_targets": ",".join(version.trained_targets)} if version.trained_targets else {}
    return {
        "paceline.parent": "" if version.parent is None else str(version.parent),
        "paceline.target": version.target,
        "paceline.target_version": version.target_version,
        "paceline.drafter": version.drafter,
        "paceline.objective": version.objective,
        "paceline.window_first": first,
        "paceline.window_last": last,
        SHA256_TAG: version.sha256,
        "paceline.weights_uri": version.weights_uri,
        **judged,
    }


def _figures(version: DraftVersion) -> dict[str, float]:
    return {**version.scores, **({} if version.judged_on is None else figures(version.judged_on))}


def _metrics(scores: Mapping[str, float], fit: FitReport) -> dict[str, float]:
    found = {**scores, "first_position_accept": fit.first_position_accept, "fit_s": fit.seconds}
    # First-position acceptance is NaN on traces that no draft can start from.
    return {key: value for key, value in found.items() if math.isfinite(value)}
