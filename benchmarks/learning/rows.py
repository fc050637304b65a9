"""What is compared: a row is the product's way of training with some fields of its BenchPlan changed.

AURORA, the reference of the main gains, is also the published system: its released loss, one pass, a buffer that is
consumed once. Two rows separate objective and system, each at equal traces and passes with its counterpart:
DEFAULT_ONCE is paceline's objective under Aurora's schedule, AURORA_AS_PRODUCT is Aurora's loss under paceline's.
AdaSPEC compares with a draft that has learned the same stream by forward KL, GTO with the draft a run starts from,
REINFORCE with the head that proposed in the recording.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ...buffer.settings.table import BY_NAME
from ...policies.objectives.baselines.names import Baseline
from ...policies.objectives.names import Objective, Weighting
from .training.plan import BenchPlan

#: Traces of the replay buffer, unless a learner is told otherwise.
REPLAY_TRACES: int = BY_NAME["REPLAY_TRACES"].default
#: All teacher entries that record.py keeps, since baselines were published with whole logits.
TOP_K = 64

#: The schedule of a system, which traces a step sees and how often: here every trace once.
ONCE: Mapping[str, Any] = {
    "passes": 1,
    "replay_share": 0.0,
    "recency_half_life_traces": 0.0,
    "replay_errors": 0.0,
}
#: An objective alone, whatever the product's defaults are; drafts of a round count 0.8^i.
PLAIN: Mapping[str, Any] = {
    **ONCE,
    "weighting": Weighting.GEOMETRIC,
    "off_path_weight": 0.0,
    "teacher_temperature": 1.0,
    "matrix_rate": 0.0,
    "context_weight": 0.0,
}


class Rate(StrEnum):
    """Where a row's learning rate comes from."""

    OBJECTIVE = "objective"  # tuned for its objective, PLAIN
    ROW = "row"  # tuned for the row itself
    PLAN = "plan"  # the two of its plan, for cold and for warm drafts
    NONE = "none"  # the initial draft, never trained


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: what it changes of BenchPlan(), and what is no part of a plan."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    rate: Rate = Rate.OBJECTIVE
    cadence: int = 0  # requests of a chunk; 0: that of the stage
    top_k: int = TOP_K  # teacher entries a capture would have kept

    def plan(self, steps: int, seed: int, rate: float | None = None) -> BenchPlan:
        """The trainer's plan; a tuned `rate` holds for cold and warm drafts alike. ConfigError for a wrong number."""
        plan = replace(BenchPlan(), **{**self.changes, "steps": steps, "seed": seed})
        return plan if rate is None else replace(plan, cold_learning_rate=rate, warm_learning_rate=rate)

    def but(self, name: str, **changes: object) -> "Row":
        """The same row under another name with more fields of its plan changed."""
        return replace(self, name=name, changes={**self.changes, **changes})

    @property
    def objective(self) -> str:
        """Name of the objective, also of a row that never trains."""
        return str(self.changes.get("objective", BenchPlan().objective))

    @property
    def tuned_as(self) -> str:
        """Under which name its rate is tuned; empty when it is not."""
        return {Rate.OBJECTIVE: self.objective, Rate.ROW: self.name}.get(self.rate, "")


def plain(name: str, objective: str, **changes: object) -> Row:
    """An objective at the same traces and passes as every other plain row."""
    return Row(name, {**PLAIN, "objective": objective, **changes})


def _as_product() -> Row:
    default = BenchPlan()
    name = f"Aurora's loss, {default.passes} passes, {default.replay_share:g} of a batch replayed"
    return replace(AURORA.but(name, **{key: getattr(default, key) for key in ONCE}), rate=Rate.ROW)


AURORA = plain("Aurora: forward_kl_accepted, consume-once", Baseline.FORWARD_KL_ACCEPTED)
#: Tuning streams are short, so these show Aurora's loss at other rates on the streams themselves.
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
OTHERS = tuple(plain(str(name), name) for name in Baseline if name != AURORA.objective)
#: Losses that raise what rejection sampling accepts, against cross-entropy to what requests were served with.
OVERLAPS = (
    SOFT,
    plain("rejection: -log alpha of LK", Objective.REJECTION),
    *(row for row in OTHERS if row.objective in {Baseline.LK_MIX, Baseline.TVD_PLUS_PLUS, Baseline.CE_L1}),
    AURORA,
    UNTRAINED,
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
TEACHERS = (SOFT, *(SOFT.but(f"soft, teacher at {t:g}", teacher_temperature=t) for t in (0.7, 0.5)))
PASSES = (COMMITTED, *(COMMITTED.but(f"committed, {n} passes", passes=n) for n in (2, 4)))
CADENCES = (COMMITTED, *(replace(COMMITTED, name=f"committed, cadence {n}", cadence=n) for n in (60, 180)))
WARM_RATES = (PRODUCT, *(PRODUCT.but(f"product, warm rate {r:g}", warm_learning_rate=r) for r in (3e-4, 3e-3)))
_WITH_ADAM = PRODUCT.but("product, AdamW alone", matrix_rate=0.0)
#: Muon for hidden matrices, at rates over AdamW's.
OPTIMISERS = (
    _WITH_ADAM,
    *(_WITH_ADAM.but(f"product, Muon at {r:g} of the rate", matrix_rate=r) for r in (1.0, 4.0)),
    PRODUCT,
    PRODUCT.but("product, 2 passes", passes=2),
    _WITH_ADAM.but("product, AdamW alone, 2 passes", passes=2),
)
#: The product as it was before it had either, and while its rate fell at once.
BEFORE_MUON_AND_PROMPTS = _WITH_ADAM.but(
    "product, AdamW alone, no rows of the context", context_weight=0.0, rate_half_life_steps=0.0
)
#: How soon the learning rate of a draft that is cold no more falls to that of warm ones.
_AT_ONCE = PRODUCT.but("product, the rate falls at once", rate_half_life_steps=0.0)
ANNEALINGS = (
    _AT_ONCE,
    *(PRODUCT.but(f"product, half-life {n:g} steps", rate_half_life_steps=n) for n in (20.0, 80.0, 160.0)),
    PRODUCT,
)
_JUDGED_ALONE = PRODUCT.but("product, no rows of the context", context_weight=0.0)
#: Whether prompts are trained on, at as many passes and at about as many seconds.
CONTEXTS = (
    _JUDGED_ALONE,
    PRODUCT,
    PRODUCT.but("product, 3 passes", passes=3),
)
