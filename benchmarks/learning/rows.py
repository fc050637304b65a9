"""What is compared: objectives at equal traces and equal passes, the product as a system, and ablations.

A row is an objective with a schedule. AURORA is both the reference of every gain and the system of the field: its
released loss, one pass, a buffer that is consumed once. AdaSPEC and GTO compare with the draft a run starts from;
REINFORCE with the head that proposed while the traces were recorded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from paceline.learner.plan import TrainingPlan
from paceline.policies.objective import Objective, Weighting

from learning.lab import Setting
from learning.stream import Sizes

STARTS = ("cold", "warm")
#: Traces kept for replay, as learner.config has it.
WINDOW_TRACES = 200
#: All teacher entries that record.py keeps: what others train on was published with whole logits.
TOP_K = 64


@dataclass(frozen=True, slots=True)
class Row:
    """An objective and how it is scheduled; without `plan` the rate is tuned, one pass, nothing is replayed."""

    name: str
    objective: str
    weighting: str | None = Weighting.GEOMETRIC
    passes: int = 1  # 0: the initial draft, never trained
    replay_share: float = 0.0
    cadence: int = 0  # 0: that of the sizes
    top_k: int = TOP_K
    kl_weight: float = 0.0
    is_product: bool = False  # TrainingPlan() as it stands, learning rates included

    def plan(self, steps: int, seed: int, rate: float | None) -> TrainingPlan:
        """The trainer's plan; a tuned `rate` holds for cold and warm drafts alike."""
        if self.is_product:
            return TrainingPlan(steps=steps, seed=seed)
        plan = TrainingPlan(
            steps=steps,
            seed=seed,
            passes=max(self.passes, 1),
            replay_share=self.replay_share,
            objective=self.objective,
            weighting=self.weighting,
            kl_weight=self.kl_weight,
        )
        return plan if rate is None else replace(plan, cold_learning_rate=rate, warm_learning_rate=rate)

    @property
    def is_tuned(self) -> bool:
        """Whether the run takes the tuned rate of its objective."""
        return self.passes > 0 and not self.is_product


AURORA = Row("Aurora: forward_kl_accepted, consume-once", Objective.FORWARD_KL_ACCEPTED)
PRODUCT = Row(
    "paceline: the product's default", TrainingPlan().objective, passes=TrainingPlan().passes, is_product=True
)
UNTRAINED = Row("no training", Objective.COMMITTED, passes=0)
COMMITTED = Row("committed", Objective.COMMITTED)
SCHEDULED = replace(COMMITTED, name="committed, survival while cold", weighting=None)
SOFT = Row("soft", Objective.SOFT)
MATCHED = Row("matched", Objective.MATCHED)
MAIN = (AURORA, PRODUCT, UNTRAINED, COMMITTED, SCHEDULED, SOFT, MATCHED)
OTHERS = tuple(
    Row(str(objective), objective)
    for objective in Objective
    if objective not in {row.objective for row in MAIN} | {Objective.TARGET_ONLY, Objective.REJECTION}
)
#: Passes and replay apart, cadence, weighting, teacher entries: each beside COMMITTED or SOFT, at their tuned rate.
ABLATIONS = (
    replace(COMMITTED, name="committed, survival", weighting=Weighting.SURVIVAL),
    replace(COMMITTED, name="committed, 4 passes", passes=4),
    replace(COMMITTED, name="committed, 1 pass, half replayed", replay_share=0.5),
    replace(COMMITTED, name="committed, 4 passes, half replayed", passes=4, replay_share=0.5),
    replace(COMMITTED, name="committed, cadence 20", cadence=20),
    replace(COMMITTED, name="committed, cadence 100", cadence=100),
    replace(COMMITTED, name="committed, KL 0.1", kl_weight=0.1),
    *(replace(SOFT, name=f"soft, top-{top_k}", top_k=top_k) for top_k in (0, 1, 4, 8, 16)),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a row from one start on one seed's stream."""

    row: Row
    setting: Setting
    start: str
    seed: int
    rate: float | None = None
    tuning: bool = False


@dataclass(frozen=True, slots=True)
class Programme:
    """What a bench runs; later stages are given up first when the time is over."""

    settings: tuple[Setting, ...]
    sizes: Sizes
    tuning_sizes: Sizes
    rates: Mapping[str, tuple[float, ...]]  # start -> grid
    stages: tuple[tuple[tuple[Row, ...], int], ...]  # rows and their seeds
    minutes: float  # for the runs, preparing apart

    def tuning_jobs(self) -> Iterator[Job]:
        """Every tuned objective of every setting and start, at every rate of the grid, in the order of the stages."""
        for row in {row.objective: row for rows, _ in self.stages for row in rows if row.is_tuned}.values():
            basic = Row(str(row.objective), row.objective)
            for setting in self.settings:
                for start in STARTS:
                    for rate in self.rates[start]:
                        yield Job(basic, setting, start, 0, rate, tuning=True)

    def jobs(self, rates: Mapping[tuple[str, str, str], float]) -> Iterator[Job]:
        """All runs, stage by stage and seed by seed, so that what is given up is the last seeds of the last stage.

        A tuned row whose rate was not found, the time for tuning being over, is left out.
        """
        for rows, seeds in self.stages:
            for seed in range(seeds):
                for setting in self.settings:
                    for start in STARTS:
                        for row in rows:
                            rate = rates.get((row.objective, setting.name, start))
                            if rate is not None or not row.is_tuned:
                                yield Job(row, setting, start, seed, rate if row.is_tuned else None)


QUICK = Programme(
    settings=(Setting(0.0, 5),),
    sizes=Sizes(60, 40, 20),
    tuning_sizes=Sizes(30, 10, 10),
    rates={"cold": (3e-3, 8e-3), "warm": (3e-4, 1e-3)},
    stages=(((AURORA, PRODUCT, UNTRAINED, COMMITTED, SOFT), 2),),
    minutes=4.0,
)
FULL = Programme(
    settings=(Setting(0.0, 5), Setting(0.7, 5)),
    sizes=Sizes(200, 120, 40),
    tuning_sizes=Sizes(80, 40, 40),
    rates={"cold": (1e-3, 3e-3, 8e-3), "warm": (3e-4, 1e-3, 3e-3)},
    stages=((MAIN, 5), (OTHERS, 3), (ABLATIONS, 3)),
    minutes=45.0,
)
