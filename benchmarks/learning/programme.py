"""What the learning bench compares: rows, in stages by priority, each a table of its own.

A row is the product's way of training with some fields of its TrainingPlan and Recipe changed, or Aurora's (aurora.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ...learner.training.plan import RECIPE, Recipe, TrainingPlan
from ...policies.objectives.names import Objective
from .stream import Sizes, needed_per_domain

STARTS = ("cold", "warm")
#: What was tuned, on which traffic (Setting.traffic), from which start.
RateKey = tuple[str, str, str]
Rates = Mapping[RateKey, float]

#: Draft length at which rates are tuned, for longer drafts too.
TUNED_STEPS = 5
TUNING_SEED = 0
_REJECTION = "rejection"


@dataclass(frozen=True, slots=True)
class Setting:
    """A temperature, a draft length, and a verdict rule. ValueError for rejection sampling of greedy requests."""

    temperature: float
    steps: int  # draft length
    rejection: bool = False  # drafts are drawn and verified by rejection sampling; above temperature 0 alone

    def __post_init__(self) -> None:
        if self.rejection and not self.temperature:
            raise ValueError("rejection sampling: got temperature 0, expected one above it")

    @property
    def name(self) -> str:
        """As in file names and tables."""
        return f"{self.traffic}-k{self.steps}"

    @property
    def traffic(self) -> str:
        """All but the draft length; learning rates are tuned for it."""
        return f"t{self.temperature:g}{f'-{_REJECTION}' * self.rejection}"

    @classmethod
    def named(cls, name: str) -> "Setting":
        """The setting called `name`, as t0.7-k5 or t0.7-rejection-k5; ValueError when it is no such name."""
        traffic, steps = name.removeprefix("t").split("-k")
        temperature, _, rule = traffic.partition("-")
        if rule not in {"", _REJECTION}:
            raise ValueError(f"verdict rule: got {rule!r}, expected {_REJECTION!r} or none")
        return cls(float(temperature), int(steps), rejection=bool(rule))


class Rate(StrEnum):
    """Where a row's learning rate comes from."""

    TUNED = "tuned"  # on the tuning stream, for the row
    PLAN = "plan"  # the two of the product's recipe, for cold and for warm drafts
    NONE = "none"  # the initial draft, never trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table: what it changes of the product's plan and recipe."""

    name: str
    plan: Mapping[str, Any] = field(default_factory=dict, hash=False)
    recipe: Mapping[str, Any] = field(default_factory=dict, hash=False)
    rate: Rate = Rate.PLAN
    cadence: int = 0  # requests of a chunk; 0: that of the stage
    is_aurora: bool = False  # trained by aurora.py

    def training_plan(self, steps: int, seed: int) -> TrainingPlan:
        """The trainer's plan for drafts of `steps`."""
        return replace(TrainingPlan(), **{**self.plan, "steps": steps, "seed": seed})

    def training_recipe(self, rate: float | None) -> Recipe:
        """The trainer's recipe; a tuned `rate` holds for cold and warm drafts alike."""
        rates = {} if rate is None else {"cold_learning_rate": rate, "warm_learning_rate": rate}
        return replace(RECIPE, **{**self.recipe, **rates})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run: a row from one start on one seed's stream."""

    row: Row
    setting: Setting
    start: str
    seed: int
    sizes: Sizes
    shifted: str = ""  # the domain that traffic shifts to; empty: the last one
    rate: float | None = None
    tuning: bool = False

    @property
    def key(self) -> tuple[str, Setting, str, int, Sizes, str]:
        """Unique among the runs of a table; a row that two stages name is run once."""
        return self.row.name, self.setting, self.start, self.seed, self.sizes, self.shifted

    @property
    def rate_key(self) -> RateKey:
        """Jobs with the same key train at the same rate, whatever their draft length."""
        return self.row.name, self.setting.traffic, self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Rows that answer one question; the first is what the others are compared with."""

    name: str
    question: str
    rows: tuple[Row, ...]
    settings: tuple[Setting, ...]
    sizes: Sizes
    seeds: int = 3
    starts: tuple[str, ...] = STARTS
    shifts: tuple[str, ...] = ("",)  # the domains that traffic shifts to, one after the other; empty: the last one

    def jobs(self) -> Iterator[Job]:
        """Seed by seed, without rates, so that the last seeds are dropped first when the time is over."""
        for seed in range(self.seeds):
            for setting in self.settings:
                for start in self.starts:
                    for shifted in self.shifts:
                        for row in self.rows:
                            yield Job(
                                row=row, setting=setting, start=start, seed=seed, sizes=self.sizes, shifted=shifted
                            )


@dataclass(frozen=True, slots=True)
class Programme:
    """What a bench runs; later stages are dropped first when the time is over."""

    stages: tuple[Stage, ...]
    tuning_sizes: Sizes
    grid: Mapping[str, tuple[float, ...]]  # start -> learning rates
    minutes: float  # for the runs, without preparation

    def of(self, names: Sequence[str]) -> "Programme":
        """Return these stages alone, in the order of the programme. SystemExit for an unknown name."""
        unknown = sorted(set(names) - {stage.name for stage in self.stages})
        if unknown:
            raise SystemExit(f"--stage: got {unknown}, expected some of {[stage.name for stage in self.stages]}")
        return replace(self, stages=tuple(stage for stage in self.stages if stage.name in names))

    def shifting_to(self, domains: Sequence[str]) -> "Programme":
        """Return all stages with shifts to these domains alone."""
        return replace(self, stages=tuple(replace(stage, shifts=tuple(domains)) for stage in self.stages))

    def at(self, settings: tuple[Setting, ...]) -> "Programme":
        """Return all stages at other settings than their own."""
        return replace(self, stages=tuple(replace(stage, settings=settings) for stage in self.stages))

    @property
    def warm_shifts(self) -> tuple[str, ...]:
        """The domains that its warm heads have not learnt."""
        warm = [stage for stage in self.stages if "warm" in stage.starts]
        return tuple(dict.fromkeys(shifted for stage in warm for shifted in stage.shifts))

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting that needs traces, those of the tuning included."""
        own = [setting for stage in self.stages for setting in stage.settings]
        tuned = [job.setting for job in self.tuning_jobs()]
        return tuple(dict.fromkeys([*own, *tuned]))

    def per_domain(self, domains: int) -> int:
        """Requests of every domain that its longest streams need."""
        return max(needed_per_domain(domains, stage.sizes, self.tuning_sizes) for stage in self.stages)

    def tuning_jobs(self) -> Iterator[Job]:
        """Tuning runs for every rate of the grid, stage by stage."""
        wanted = {job.rate_key: job for job in self._jobs() if job.row.rate is Rate.TUNED}
        for job in wanted.values():
            setting = replace(job.setting, steps=min(TUNED_STEPS, job.setting.steps))
            for rate in self.grid[job.start]:
                yield replace(job, setting=setting, seed=TUNING_SEED, sizes=self.tuning_sizes, rate=rate, tuning=True)

    def jobs(self, rates: Rates) -> Iterator[Job]:
        """All runs, stage by stage, each once. A tuned row whose rate was not found in time is left out."""
        for job in self._jobs():
            if job.row.rate is not Rate.TUNED:
                yield job
            elif job.rate_key in rates:
                yield replace(job, rate=rates[job.rate_key])

    def _jobs(self) -> Iterator[Job]:
        seen = set()
        for job in (job for stage in self.stages for job in stage.jobs()):
            if job.key not in seen:
                seen.add(job.key)
                yield job


_PLAN = TrainingPlan()
#: Every trace once, as Aurora's buffer is consumed.
_ONCE = {"replay_share": 0.0}

PRODUCT = Row(name="paceline: the product's default")
UNTRAINED = Row(name="no training", rate=Rate.NONE)
#: The published system: its released loss, one pass, a buffer that is consumed once.
AURORA = Row(name="Aurora: its loss, consume-once", plan={"passes": 1}, recipe=_ONCE, rate=Rate.TUNED, is_aurora=True)
#: Objective and system apart: Aurora's loss under the product's schedule, the product's under Aurora's.
AURORA_AS_PRODUCT = Row(
    name=f"Aurora's loss, {_PLAN.passes} passes, {RECIPE.replay_share:g} of a batch replayed",
    rate=Rate.TUNED,
    is_aurora=True,
)
DEFAULT_ONCE = Row(name="default objective, 1 pass, consume-once", plan={"passes": 1}, recipe=_ONCE)
OBJECTIVES = tuple(
    Row(name=f"objective {name}", plan={"objective": name}) for name in Objective if name != _PLAN.objective
)
PASSES = tuple(Row(name=f"{passes} passes", plan={"passes": passes}) for passes in (1, 2, 8) if passes != _PLAN.passes)
BATCHES = tuple(Row(name=f"batches of {traces} traces", recipe={"batch_traces": traces}) for traces in (1, 2, 8))
CADENCES = tuple(Row(name=f"a round every {requests} requests", cadence=requests) for requests in (60, 180))
WARM_RATES = tuple(Row(name=f"warm rate {rate:g}", recipe={"warm_learning_rate": rate}) for rate in (2e-4, 1e-3, 3e-3))
NO_CONTEXT = Row(name="no rows of the context", plan={"context_weight": 0.0})
NO_REPLAY = Row(name="no replay buffer", recipe=_ONCE)

_GREEDY = Setting(0.0, 5)
_SAMPLED = Setting(0.7, 5)
_USUAL = Sizes(before_shift=150, after_shift=60, cadence=20)
_SHORT = Sizes(before_shift=60, after_shift=40, cadence=20)
_SAMPLED_REJECTION = Setting(0.7, 5, rejection=True)

# A trace of a greedy request holds the target's best token alone, and Aurora's loss needs its distribution: stages
# with Aurora have sampled traffic.
QUICK = Programme(
    stages=(
        Stage(
            name="quick",
            question="the main rows on short streams",
            rows=(AURORA, PRODUCT, DEFAULT_ONCE, UNTRAINED),
            settings=(_SAMPLED,),
            sizes=_SHORT,
            seeds=2,
        ),
    ),
    tuning_sizes=Sizes(30, 10, 10),
    grid={"cold": (3e-3, 8e-3), "warm": (3e-4, 1e-3)},
    minutes=4.0,
)
FULL = Programme(
    stages=(
        Stage(
            name="main",
            question="paceline against Aurora",
            rows=(AURORA, PRODUCT, AURORA_AS_PRODUCT, DEFAULT_ONCE, UNTRAINED),
            settings=(_SAMPLED,),
            sizes=_USUAL,
            seeds=5,
        ),
        Stage(
            name="objectives",
            question="what the product can train on",
            rows=(PRODUCT, *OBJECTIVES),
            settings=(_GREEDY, _SAMPLED, _SAMPLED_REJECTION),
            sizes=_SHORT,
        ),
        Stage(
            name="schedule",
            question="passes, batches, replay, prompts",
            rows=(PRODUCT, *PASSES, *BATCHES, NO_REPLAY, NO_CONTEXT),
            settings=(_GREEDY,),
            sizes=_USUAL,
        ),
        Stage(
            name="cadence",
            question="requests between two rounds",
            rows=(PRODUCT, *CADENCES),
            settings=(_GREEDY,),
            sizes=_USUAL,
            starts=("cold",),
        ),
        Stage(
            name="warm-rate",
            question="the learning rate of warm drafts",
            rows=(PRODUCT, *WARM_RATES),
            settings=(_GREEDY,),
            sizes=_SHORT,
            starts=("warm",),
        ),
    ),
    tuning_sizes=Sizes(60, 20, 20),
    grid={"cold": (3e-3, 8e-3), "warm": (3e-4, 1e-3, 3e-3)},
    minutes=43.0,
)
#: Of a chat model. Nothing was tuned on the last stream: it was named for judging before anything was measured.
_STREAMS = ("code", "tools", "talk", "logic", "explain", "summary", "languages", "json")
_ONE_STREAM = Sizes(before_shift=0, after_shift=56, cadence=14)
_CHAT_GREEDY = Setting(0.0, 3)
_CHAT_SAMPLED = Setting(0.7, 3)
ADAMW = Row(name="AdamW for all weights", recipe={"matrix_rate": 0.0})
CHAT = Programme(
    stages=(
        Stage(
            name="streams",
            question="what a draft that has learnt four streams gains by learning one of the others",
            rows=(UNTRAINED, PRODUCT),
            settings=(_CHAT_GREEDY,),
            sizes=_ONE_STREAM,
            starts=("warm",),
            shifts=_STREAMS,
        ),
        Stage(
            name="streams-sampled",
            question="the same at temperature 0.7, and what Aurora gains",
            rows=(UNTRAINED, PRODUCT, AURORA),
            settings=(_CHAT_SAMPLED,),
            sizes=_ONE_STREAM,
            starts=("warm",),
            shifts=_STREAMS,
        ),
        Stage(
            name="chat-recipe",
            question="which of the defaults win on a chat model",
            rows=(PRODUCT, ADAMW, *PASSES, *BATCHES, *WARM_RATES, NO_REPLAY, NO_CONTEXT),
            settings=(_CHAT_GREEDY,),
            sizes=_ONE_STREAM,
            shifts=("explain", "tools"),
        ),
    ),
    tuning_sizes=Sizes(0, 16, 8),
    grid={"cold": (3e-3, 8e-3), "warm": (3e-4, 1e-3, 3e-3, 8e-3)},  # a draft of other streams is cold on a new one
    minutes=240.0,
)
#: By target; see lab.open_lab.
PROGRAMMES = {"tiny": FULL, "smollm2": CHAT}
#: By name, for tables of runs from anywhere.
STAGES = (*FULL.stages, *QUICK.stages, *CHAT.stages)
