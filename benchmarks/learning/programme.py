"""What a bench runs, in which order, and about how long it takes: stages by priority, each a table of its own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .rows import (
    ANNEALINGS,
    AURORA,
    AURORA_AS_PRODUCT,
    AURORA_RATES,
    BATCHES,
    BEFORE_MUON_AND_PROMPTS,
    CADENCES,
    COMMITTED,
    CONTEXTS,
    DEFAULT_ONCE,
    MATCHED,
    OFF_PATH,
    OPTIMISERS,
    OTHERS,
    OVERLAPS,
    PASSES,
    PRODUCT,
    REPLAY,
    SHARPENED,
    SOFT,
    TEACHERS,
    TOP_KS,
    UNTRAINED,
    WARM_RATES,
    WEIGHTINGS,
    Rate,
    Row,
    plain,
)
from .setting import Setting
from .stream import Sizes, needed_per_domain

STARTS = ("cold", "warm")
#: What was tuned, on which traffic (Setting.traffic), from which start.
RateKey = tuple[str, str, str]
Rates = Mapping[RateKey, float]

#: Draft length at which rates are tuned, whatever length they are used at.
TUNED_STEPS = 5
TUNING_SEED = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a row from one start on one seed's stream."""

    row: Row
    setting: Setting
    start: str
    seed: int
    sizes: Sizes
    rate: float | None = None
    tuning: bool = False

    @property
    def key(self) -> tuple[str, Setting, str, int, Sizes]:
        """Unique among the runs of a table; a row that two stages name is run once."""
        return self.row.name, self.setting, self.start, self.seed, self.sizes

    @property
    def rate_key(self) -> RateKey:
        """Jobs with the same key train at the same rate, whatever their draft length."""
        return self.row.tuned_as, self.setting.traffic, self.start


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows that answer one question; the first is what the others are compared with."""

    name: str
    question: str
    rows: tuple[Row, ...]
    seeds: int
    settings: tuple[Setting, ...]
    starts: tuple[str, ...]
    sizes: Sizes

    def jobs(self) -> Iterator[Job]:
        """Seed by seed, without rates, so that the last seeds are dropped first when the time is over."""
        for seed in range(self.seeds):
            for setting in self.settings:
                for start in self.starts:
                    yield from (Job(row, setting, start, seed, self.sizes) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Programme:
    """What a bench runs; later stages are dropped first when the time is over."""

    stages: tuple[Stage, ...]
    tuning_sizes: Sizes
    grid: Mapping[str, tuple[float, ...]]  # start -> learning rates
    minutes: float  # for the runs, without preparation

    def of(self, names: Sequence[str]) -> "Programme":
        """These stages alone, in the order of the programme. SystemExit for an unknown name."""
        unknown = sorted(set(names) - {stage.name for stage in self.stages})
        if unknown:
            raise SystemExit(f"--stage: got {unknown}, expected some of {[stage.name for stage in self.stages]}")
        return replace(self, stages=tuple(stage for stage in self.stages if stage.name in names))

    def with_rows(self, names: Sequence[str]) -> "Programme":
        """All stages with these rows alone, and their first ones, which others are compared with; without those that
        have none of them. SystemExit for a name that no stage has.
        """
        known = {row.name for stage in self.stages for row in stage.rows}
        unknown = sorted(set(names) - known)
        if unknown:
            raise SystemExit(f"--row: got {unknown}, expected some of {sorted(known)}")
        cut = (
            replace(stage, rows=tuple(row for row in stage.rows if row == stage.rows[0] or row.name in names))
            for stage in self.stages
        )
        return replace(self, stages=tuple(stage for stage in cut if len(stage.rows) > 1))

    def at(self, settings: tuple[Setting, ...]) -> "Programme":
        """All stages at other settings than their own."""
        return replace(self, stages=tuple(replace(stage, settings=settings) for stage in self.stages))

    def begun(self, start: str) -> "Programme":
        """All stages that have this start, from it alone."""
        stages = (replace(stage, starts=(start,)) for stage in self.stages if start in stage.starts)
        return replace(self, stages=tuple(stages))

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting that needs traces, those of the tuning included."""
        own = [setting for stage in self.stages for setting in stage.settings]
        tuned = [job.setting for job in self.tuning_jobs({})]
        return tuple(dict.fromkeys([*own, *tuned]))

    def per_domain(self, domains: int) -> int:
        """Requests of every domain that its longest streams need."""
        return max(needed_per_domain(domains, stage.sizes, self.tuning_sizes) for stage in self.stages)

    def tuning_jobs(self, known: Rates) -> Iterator[Job]:
        """Tuning runs for every rate of the grid, stage by stage, except for what is in `known`."""
        wanted = {job.rate_key: job for job in self._jobs() if job.row.tuned_as}
        for key, job in wanted.items():
            row = job.row if job.row.rate is Rate.ROW else plain(job.row.objective, job.row.objective)
            setting = replace(job.setting, steps=TUNED_STEPS)
            for rate in self.grid[job.start] if key not in known else ():
                yield Job(row, setting, job.start, TUNING_SEED, self.tuning_sizes, rate, tuning=True)

    def jobs(self, rates: Rates) -> Iterator[Job]:
        """All runs, stage by stage, each once. A tuned row whose rate was not found in time is left out."""
        for job in self._jobs():
            rate = rates.get(job.rate_key)
            if rate is not None or not job.row.tuned_as:
                yield replace(job, rate=rate)

    def _jobs(self) -> Iterator[Job]:
        seen = set()
        for job in (job for stage in self.stages for job in stage.jobs()):
            if job.key not in seen:
                seen.add(job.key)
                yield job


_GREEDY, _SAMPLED = Setting(0.0, 5), Setting(0.7, 5)
_REJECTION = Setting(0.7, 5, rejection=True)
_LENGTHS = (Setting(0.0, 3), _GREEDY, Setting(0.0, 10), _SAMPLED)
_USUAL = Sizes(before_shift=150, after_shift=60, cadence=20)
_MIDDLE = Sizes(before_shift=100, after_shift=40, cadence=20)
_SHORT = Sizes(before_shift=60, after_shift=40, cadence=20)
_MAIN = (AURORA, PRODUCT, DEFAULT_ONCE, UNTRAINED)
_SYSTEM_QUESTION = "objectives under the product's schedule"
_AT_EQUAL_SYSTEM = (AURORA_AS_PRODUCT, PRODUCT)


def _ablation(
    name: str,
    question: str,
    rows: tuple[Row, ...],
    settings: Iterable[Setting] = (_GREEDY,),
    starts: tuple[str, ...] = ("warm",),
    sizes: Sizes = _MIDDLE,
) -> Stage:
    return Stage(name, question, rows, 3, tuple(settings), starts, sizes)


QUICK = Programme(
    stages=(
        Stage("quick", "the main rows on short streams", (*_MAIN, COMMITTED), 2, (_GREEDY,), STARTS, _SHORT),
        Stage("quick-system", _SYSTEM_QUESTION, _AT_EQUAL_SYSTEM, 2, (_GREEDY,), STARTS, _SHORT),
    ),
    tuning_sizes=Sizes(30, 10, 10),
    grid={"cold": (3e-3, 8e-3), "warm": (3e-4, 1e-3)},
    minutes=4.0,
)
FULL = Programme(
    stages=(
        Stage("main", "paceline against Aurora", _MAIN, 5, (_GREEDY, _SAMPLED), STARTS, _USUAL),
        Stage("system", _SYSTEM_QUESTION, _AT_EQUAL_SYSTEM, 3, (_GREEDY,), STARTS, _USUAL),
        _ablation("aurora-rates", "Aurora's loss at other rates", AURORA_RATES, starts=STARTS, sizes=_USUAL),
        _ablation("off-path", "rows after the rejection", OFF_PATH, _LENGTHS),
        _ablation("weighting", "how much a later draft of a round counts", WEIGHTINGS, starts=STARTS),
        _ablation("batch", "traces of one optimiser step", BATCHES, starts=STARTS),
        _ablation("labels", "objectives; at temperature 0.7", (AURORA, COMMITTED, SOFT, MATCHED), (_SAMPLED,), STARTS),
        _ablation("sharpened", "hard labels and soft ones on greedy text", SHARPENED),
        _ablation("top-k", "teacher entries; greedy runs read none", TOP_KS, (_SAMPLED,)),
        _ablation("passes", "passes over a chunk that is consumed once", PASSES, starts=STARTS),
        _ablation("replay", "a replay buffer, and which of its traces", REPLAY),
        _ablation("cadence", "requests between two rounds", CADENCES, starts=("cold",)),
        _ablation("warm-rate", "the product's learning rate for warm drafts", WARM_RATES, sizes=_SHORT),
        _ablation("teacher", "a teacher sharper than it was served", TEACHERS, (_SAMPLED,), sizes=_SHORT),
        _ablation("objectives", "what others train on", (AURORA, COMMITTED, *OTHERS), sizes=_SHORT),
        _ablation("objectives-sampled", "at temperature 0.7", (AURORA, SOFT, *OTHERS), (_SAMPLED,), sizes=_SHORT),
        _ablation(
            "rejection", "losses on the overlap, under rejection sampling", OVERLAPS, (_REJECTION,), STARTS, _SHORT
        ),
    ),
    tuning_sizes=Sizes(60, 20, 20),
    grid={"cold": (3e-3, 8e-3), "warm": (3e-4, 1e-3, 3e-3)},
    minutes=43.0,
)
#: With what is run when it is named alone, since all stages together are to end within 45 minutes.
NAMED = replace(
    FULL,
    stages=(
        *FULL.stages,
        _ablation("optimiser", "how hidden matrices move", OPTIMISERS, starts=STARTS),
        _ablation("annealing", "how the rate falls from cold to warm", ANNEALINGS, starts=STARTS, sizes=_USUAL),
        Stage(
            "earlier",
            "the product before it had Muon and prompts",
            (AURORA, BEFORE_MUON_AND_PROMPTS, PRODUCT),
            5,
            (_GREEDY,),
            STARTS,
            _USUAL,
        ),
        _ablation("context", "prompts beside what has a verdict", CONTEXTS, (_GREEDY, _SAMPLED), STARTS, _USUAL),
    ),
)
#: By name, for tables of runs from anywhere.
STAGES = (*NAMED.stages, *QUICK.stages)
