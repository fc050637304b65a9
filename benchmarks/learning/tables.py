"""Runs as figures by row, and as Markdown."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from paceline.policies.acceptance import Tally

from learning.figures import Mean, gains, recovered, requests_to_reach
from learning.rows import AURORA, MAIN, STARTS
from learning.runs import Point, Run

COLUMNS = (
    "row", "learning rate", "seeds", "before the shift", "over Aurora", "behind the shift", "over Aurora",
    "requests to 90 % of in-domain", "requests to Aurora's last level", "steps", "s/step",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """All runs of one setting and one start."""

    setting: str
    start: str
    runs: Sequence[Run]

    def of(self, row: str) -> dict[int, Run]:
        """The row's runs by seed, in the order of seeds."""
        found = {run.job.seed: run for run in self.runs if run.job.row.name == row}
        return dict(sorted(found.items()))

    def rows(self) -> list[str]:
        """Names of the rows, the most accepted before the shift first."""
        names = dict.fromkeys(run.job.row.name for run in self.runs)
        return sorted(names, key=lambda name: -statistics.fmean(map(before, self.of(name).values())))


def groups(runs: Sequence[Run]) -> Iterator[Group]:
    """By setting and start, in the order they came."""
    for setting in dict.fromkeys(run.job.setting.name for run in runs):
        for start in STARTS:
            found = [run for run in runs if (run.job.setting.name, run.job.start) == (setting, start)]
            if found:
                yield Group(setting, start, found)


def before(run: Run, domain: str | None = None) -> float:
    """Accepted drafts per round of all traffic before the shift, the first chunk, served by the initial draft, too."""
    return _pooled([point for point in run.points if point.end <= run.shift_at], domain)


def behind(run: Run, domain: str | None = None) -> float:
    """Accepted drafts per round of all traffic behind the shift."""
    return _pooled([point for point in run.points if point.end > run.shift_at], domain)


def overall(run: Run) -> float:
    """Accepted drafts per round of the whole stream."""
    return _pooled(run.points, None)


def last_level(run: Run) -> float:
    """Mean of the last two chunks behind the shift."""
    return statistics.fmean([point.accepted for point in run.points if point.end > run.shift_at][-2:])


def markdown(runs: Sequence[Run]) -> str:
    """A table for every setting and start, each followed by the gains by domain."""
    parts = []
    for group in groups(runs):
        parts += [
            f"### {group.setting}, {group.start} head\n",
            _table(COLUMNS, (_cells(group, row) for row in group.rows())),
        ]
        parts += ["Gain over Aurora by domain, percent:\n", _domains(group)]
    return "\n".join(parts)


def figures(group: Group, row: str) -> dict[str, object]:
    """A row's figures as plain values, for JSON."""
    runs = group.of(row)
    return {
        "setting": group.setting, "start": group.start, "row": row, "seeds": sorted(runs),
        "before": [before(run) for run in runs.values()], "behind": [behind(run) for run in runs.values()],
        "gain_before_percent": _gain(group, row, before).text(1),
        "gain_behind_percent": _gain(group, row, behind).text(1),
    }  # fmt: skip


def _cells(group: Group, row: str) -> list[str]:
    runs = list(group.of(row).values())
    job, steps = runs[0].job, statistics.fmean(run.steps for run in runs)
    rate = "product's" if job.row.is_product else f"{job.rate:g}" if job.rate else "none"
    pace = f"{sum(run.seconds for run in runs) / sum(run.steps for run in runs):.3f}" if steps else "none"
    return [
        row, rate, str(len(runs)),
        Mean.of(list(map(before, runs))).text(), _percent(_gain(group, row, before)),
        Mean.of(list(map(behind, runs))).text(), _percent(_gain(group, row, behind)),
        _requests([recovered(_ends(run), _values(run), run.shift_at) for run in runs]),
        _requests(_to_auroras_level(group, row)), f"{steps:.0f}", pace,
    ]  # fmt: skip


def _gain(group: Group, row: str, figure: Callable[[Run], float]) -> Mean:
    """Relative gain over Aurora, in percent, paired by seed."""
    own, others = group.of(row), group.of(AURORA.name)
    seeds = sorted(own.keys() & others.keys())
    gain = gains([figure(own[seed]) for seed in seeds], [figure(others[seed]) for seed in seeds])
    return Mean(100.0 * gain.value, 100.0 * gain.half_width, gain.seeds)


def _percent(gain: Mean) -> str:
    return f"**{gain.text(0)} %**" if gain.excludes_zero else f"{gain.text(0)} %"


def _to_auroras_level(group: Group, row: str) -> list[float | None]:
    own, others = group.of(row), group.of(AURORA.name)
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
    names = [row.name for row in MAIN if row is not AURORA and group.of(row.name)]
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
