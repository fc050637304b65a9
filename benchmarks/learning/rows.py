"""What is compared: a row is the product's TrainingPlan with some fields changed.

AURORA is both the reference of the main gains and the system of the field: its released loss, one pass, a buffer that
is consumed once. Two rows take objective and system apart, each at equal traces and equal passes with its counterpart:
DEFAULT_ONCE is paceline's objective under Aurora's schedule, AURORA_AS_PRODUCT is Aurora's loss under paceline's.
AdaSPEC and GTO compare with the draft a run starts from; REINFORCE with the head that proposed in the recording.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ...learner.training.plan import TrainingPlan
from ...policies.objectives.losses import Objective, Weighting

#: Traces kept for replay, as learner.config has it.
WINDOW_TRACES = 200
#: All teacher entries that record.py keeps: what others train on was published with whole logits.
TOP_K = 64

#: Where the schedule of a system is: which traces a step sees, how often, and which weights are served. Once over.
ONCE: Mapping[str, Any] = {
    "passes": 1,
    "replay_share": 0.0,
    "recency_half_life_traces": 0.0,
    "replay_errors": 0.0,
    "ema_decay": 0.0,
}
#: Nothing beside an objective, whatever the product's defaults are; drafts of a round count 0.8^i.
PLAIN: Mapping[str, Any] = {
    **ONCE,
    "weighting": Weighting.GEOMETRIC,
    "kl_weight": 0.0,
    "kl_decay_steps": 0,
    "off_path_weight": 0.0,
    "teacher_temperature": 1.0,
}


class Rate(StrEnum):
    """Where a row's learning rate is from."""

    OBJECTIVE = "objective"  # tuned for its objective, PLAIN
    ROW = "row"  # tuned for the row itself
    PLAN = "plan"  # the two of its plan, for cold and for warm drafts
    NONE = "none"  # the initial draft, never trained


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: what it changes of TrainingPlan(), and what lies outside a plan."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    rate: Rate = Rate.OBJECTIVE
    cadence: int = 0  # requests of a chunk; 0: that of the stage
    top_k: int = TOP_K  # teacher entries a capture would have kept

    def plan(self, steps: int, seed: int, rate: float | None = None) -> TrainingPlan:
        """The trainer's plan; a tuned `rate` holds for cold and warm drafts alike. ConfigError for a wrong number."""
        plan = replace(TrainingPlan(), **{**self.changes, "steps": steps, "seed": seed})
        return plan if rate is None else replace(plan, cold_learning_rate=rate, warm_learning_rate=rate)

    def but(self, name: str, **changes: object) -> "Row":
        """The same row under another name with more fields of its plan changed."""
        return replace(self, name=name, changes={**self.changes, **changes})

    @property
    def objective(self) -> str:
        """Name of the objective, also of a row that never trains."""
        return str(self.changes.get("objective", TrainingPlan().objective))

    @property
    def tuned_as(self) -> str:
        """Under which name its rate is tuned; empty when it is not."""
        return {Rate.OBJECTIVE: self.objective, Rate.ROW: self.name}.get(self.rate, "")


def plain(name: str, objective: str, **changes: object) -> Row:
    """An objective at equal traces and equal passes with every other such row."""
    return Row(name, {**PLAIN, "objective": objective, **changes})


def _as_product() -> Row:
    default = TrainingPlan()
    name = f"Aurora's loss, {default.passes} passes, {default.replay_share:g} of a batch replayed"
    return replace(AURORA.but(name, **{key: getattr(default, key) for key in ONCE}), rate=Rate.ROW)


AURORA = plain("Aurora: forward_kl_accepted, consume-once", Objective.FORWARD_KL_ACCEPTED)
#: Tuning streams are short: what Aurora's loss would have had on the streams themselves at other rates.
AURORA_RATES = (
    AURORA,
    *(
        replace(AURORA.but(f"Aurora at {r:g}", cold_learning_rate=r, warm_learning_rate=r), rate=Rate.PLAN)
        for r in (3e-4, 1e-3, 3e-3, 8e-3)
    ),
)
AURORA_AS_PRODUCT = _as_product()
PRODUCT = Row("paceline: the product's default", rate=Rate.PLAN)
DEFAULT_ONCE = Row("default objective, 1 pass, consume-once", ONCE)
UNTRAINED = Row("no training", rate=Rate.NONE)
COMMITTED = plain("committed", Objective.COMMITTED)
SOFT = plain("soft", Objective.SOFT)
MATCHED = plain("matched", Objective.MATCHED)
OTHERS = tuple(
    plain(str(objective), objective)
    for objective in Objective
    if objective not in {AURORA.objective, COMMITTED.objective, SOFT.objective, MATCHED.objective}
    and objective not in {Objective.TARGET_ONLY, Objective.REJECTION}  # MATCHED is the one that fits the traces
)

OFF_PATH = (COMMITTED, COMMITTED.but("committed, off-path 1", off_path_weight=1.0))
BATCHES = (COMMITTED, *(COMMITTED.but(f"committed, batches of {n}", batch_traces=n) for n in (1, 2, 8)))
SHARPENED = (
    COMMITTED,
    AURORA,
    *(AURORA.but(f"soft labels of the committed text, teacher at {t:g}", teacher_temperature=t) for t in (0.5, 0.25)),
)
REPLAYED = COMMITTED.but("committed, half of a batch replayed", replay_share=0.5)
REPLAY = (
    REPLAYED,
    COMMITTED,
    REPLAYED.but("replayed, half-life 50 traces", recency_half_life_traces=50.0),
    REPLAYED.but("replayed, errors 4", replay_errors=4.0),
)
WEIGHTINGS = (
    COMMITTED,
    COMMITTED.but("committed, survival", weighting=Weighting.SURVIVAL),
    *(COMMITTED.but(f"committed, survival below {at:g}", weighting=None, cold_below=at) for at in (0.3, 0.5)),
)
TOP_KS = (SOFT, *(replace(SOFT, name=f"soft, top-{k}", top_k=k) for k in (16, 4, 1, 0)), COMMITTED)
ANCHORS = (
    COMMITTED,
    COMMITTED.but("committed, KL 0.1", kl_weight=0.1),
    COMMITTED.but("committed, KL 0.1 decaying over 20 steps", kl_weight=0.1, kl_decay_steps=20),
)
TEACHERS = (SOFT, *(SOFT.but(f"soft, teacher at {t:g}", teacher_temperature=t) for t in (0.7, 0.5)))
PASSES = (COMMITTED, *(COMMITTED.but(f"committed, {n} passes", passes=n) for n in (2, 4)))
CADENCES = (COMMITTED, *(replace(COMMITTED, name=f"committed, cadence {n}", cadence=n) for n in (60, 180)))
AVERAGES = (PRODUCT, *(PRODUCT.but(f"product, average {decay:g} served", ema_decay=decay) for decay in (0.9, 0.98)))
WARM_RATES = (PRODUCT, *(PRODUCT.but(f"product, warm rate {r:g}", warm_learning_rate=r) for r in (3e-4, 3e-3)))
