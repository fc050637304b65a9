"""Runs as figures by row, and as Markdown: one table per stage, setting and start."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...policies.acceptance import Tally
from .figures import Mean, gains, recovered, requests_to_reach
from .programme import STAGES, STARTS, Rate, Setting, Stage
from .runs import Point, Run

COLUMNS = (
    "row", "learning rate", "seeds", "before the shift", "gain", "after the shift", "gain",
    "requests to 90 % of in-domain", "requests to the first row's last level", "steps", "s/step",
)  # fmt: skip
#: Stages whose gains are also given by domain.
BY_DOMAIN = ("main", "quick")


@dataclass(frozen=True, slots=True)
class Group:
    """All runs of one stage at one setting from one start; gains are over the stage's first row."""

    stage: Stage
    setting: Setting
    start: str
    runs: Sequence[Run]

    @property
    def name(self) -> str:
        """As in file names."""
        return f"{self.stage.name}-{self.setting.name}-{self.start}"

    @property
    def reference(self) -> str:
        """Name of the row the others are compared with."""
        return self.stage.rows[0].name

    def of(self, row: str) -> dict[int, Run]:
        """The row's runs by seed, in the order of seeds."""
        found = {run.job.seed: run for run in self.runs if run.job.row.name == row}
        return dict(sorted(found.items()))

    def rows(self) -> list[str]:
        """Names of the rows that were run, in the order of the stage."""
        return [row.name for row in self.stage.rows if self.of(row.name)]

    def repeats(self, other: "Group") -> bool:
        """Whether the other group holds all these runs and compares them with the same row."""
        same = (self.setting, self.start, self.reference) == (other.setting, other.start, other.reference)
        return same and {run.job.key for run in self.runs} <= {run.job.key for run in other.runs}


def groups(runs: Sequence[Run], stages: Iterable[Stage] = STAGES) -> Iterator[Group]:
    """Every stage wherever its first row and another one were run, whichever stage they were run for.

    A stage that would only repeat rows of one before it, against the same first row, is left out.
    """
    told: list[Group] = []
    for group in _possible(runs, stages):
        if len(group.rows()) > 1 and group.reference in group.rows() and not any(group.repeats(one) for one in told):
            told.append(group)
            yield group


def _possible(runs: Sequence[Run], stages: Iterable[Stage]) -> Iterator[Group]:
    for stage in stages:
        names = {row.name for row in stage.rows}
        own = [run for run in runs if run.job.row.name in names and run.job.sizes == stage.sizes]
        settings = dict.fromkeys(run.job.setting for run in own)
        for setting, start in ((setting, start) for setting in settings for start in STARTS):
            yield Group(stage, setting, start, [r for r in own if (r.job.setting, r.job.start) == (setting, start)])


def before(run: Run, domain: str | None = None) -> float:
    """Accepted drafts per round of all traffic before the shift, the first chunk, served by the initial draft, too."""
    return _pooled([point for point in run.points if point.end <= run.shift_at], domain)


def after(run: Run, domain: str | None = None) -> float:
    """Accepted drafts per round of all traffic after the shift."""
    return _pooled([point for point in run.points if point.end > run.shift_at], domain)


def overall(run: Run) -> float:
    """Accepted drafts per round of the whole stream."""
    return _pooled(run.points, None)


def last_level(run: Run) -> float:
    """Mean of the last two chunks after the shift."""
    return statistics.fmean([point.accepted for point in run.points if point.end > run.shift_at][-2:])


def markdown(runs: Sequence[Run]) -> str:
    """All tables, those of BY_DOMAIN each followed by the gains by domain."""
    parts = []
    for group in groups(runs):
        parts += [_heading(group), _table(COLUMNS, (_cells(group, row) for row in group.rows()))]
        if group.stage.name in BY_DOMAIN:
            parts += ["Gain by domain:\n", _domains(group)]
    return "\n".join(parts)


def figures(group: Group, row: str) -> dict[str, object]:
    """A row's figures as plain values, for JSON."""
    runs = group.of(row)
    return {
        "stage": group.stage.name, "setting": group.setting.name, "start": group.start, "row": row,
        "over": group.reference, "seeds": sorted(runs),
        "before": [before(run) for run in runs.values()], "after": [after(run) for run in runs.values()],
        "gain_before_percent": _gain(group, row, before).text(1),
        "gain_after_percent": _gain(group, row, after).text(1),
    }  # fmt: skip


def _heading(group: Group) -> str:
    sizes = group.stage.sizes
    return (
        f"### {group.stage.name}: {group.stage.question}\n\n"
        f"{group.setting.name}, {group.start} head; {sizes.before_shift} requests, then {sizes.after_shift} of the "
        f"shifted domain, {sizes.cadence} per chunk; gains over: {group.reference}\n"
    )


def _cells(group: Group, row: str) -> list[str]:
    runs = list(group.of(row).values())
    job = runs[0].job
    steps = statistics.fmean(run.steps for run in runs)
    rate = f"{job.rate:g}" if job.rate else {Rate.NONE: "none"}.get(job.row.rate, "its plan's")
    pace = f"{sum(run.seconds for run in runs) / sum(run.steps for run in runs):.3f}" if steps else "none"
    return [
        row, rate, str(len(runs)),
        Mean.of(list(map(before, runs))).text(), _percent(_gain(group, row, before)),
        Mean.of(list(map(after, runs))).text(), _percent(_gain(group, row, after)),
        _requests([recovered(_ends(run), _values(run), run.shift_at) for run in runs]),
        _requests(_to_reference_level(group, row)), f"{steps:.0f}", pace,
    ]  # fmt: skip


def _gain(group: Group, row: str, figure: Callable[[Run], float]) -> Mean:
    """Relative gain over the reference, in percent, paired by seed."""
    own = group.of(row)
    others = group.of(group.reference)
    seeds = sorted(own.keys() & others.keys())
    gain = gains([figure(own[seed]) for seed in seeds], [figure(others[seed]) for seed in seeds])
    return Mean(100.0 * gain.value, 100.0 * gain.half_width, gain.seeds)


def _percent(gain: Mean) -> str:
    return f"**{gain.text(0)} %**" if gain.excludes_zero else f"{gain.text(0)} %"


def _to_reference_level(group: Group, row: str) -> list[float | None]:
    own = group.of(row)
    others = group.of(group.reference)
    found = []
    for seed in sorted(own.keys() & others.keys()):
        points = [point for point in own[seed].points if point.end > own[seed].shift_at]
        ends = [point.end - own[seed].shift_at for point in points]
        found.append(requests_to_reach(ends, [point.accepted for point in points], last_level(others[seed])))
    return found


def _requests(found: Sequence[float | None]) -> str:
    reached = [requests for requests in found if requests is not None]
    return f"{Mean.of(reached).text(0)} ({len(reached)} of {len(found)})"


def _domains(group: Group) -> str:
    domains = sorted({domain for run in group.runs for point in run.points for domain in point.tallies})
    names = [name for name in group.rows() if name != group.reference]
    lines = [[name, *(_percent(_gain(group, name, _in(domain))) for domain in domains)] for name in names]
    return _table(("row", *domains), lines)


def _in(domain: str) -> Callable[[Run], float]:
    return lambda run: _pooled(run.points, domain)


def _pooled(points: Sequence[Point], domain: str | None) -> float:
    tallies = [tally for point in points for name, tally in point.tallies.items() if domain in {None, name}]
    return sum(tallies, Tally()).accept_length - 1.0


def _ends(run: Run) -> list[int]:
    return [point.end for point in run.points]


def _values(run: Run) -> list[float]:
    return [point.accepted for point in run.points]


def _table(columns: Sequence[str], lines: Iterable[list[str]]) -> str:
    rows = [columns, ["---"] * len(columns), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
