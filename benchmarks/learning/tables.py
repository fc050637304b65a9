"""Runs as figures by row, and as Markdown: one table per stage, setting and start.

A stage whose traffic shifts to one stream after the other has a line for each row and a column for each stream.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from ...policies.acceptance import Tally
from ...policies.paired import Paired
from ...policies.prequential import LineFinding, PrequentialRules, PrequentialTest
from .figures import Mean, gains, recovered, requests_to_reach
from .programme import STAGES, STARTS, Rate, Setting, Stage
from .runs import Point, Run

COLUMNS = (
    "row", "learning rate", "seeds", "before the shift", "gain", "after the shift", "gain",
    "requests to 90 % of in-domain", "requests to the first row's last level", "steps", "s/step",
)  # fmt: skip
#: Stages whose gains are also given by domain.
BY_DOMAIN = ("main", "quick")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All runs of one stage at one setting from one start; gains are over the stage's first row."""

    stage: Stage
    setting: Setting
    start: str
    shifted: str  # of Job
    runs: Sequence[Run]

    @property
    def name(self) -> str:
        """As in file names."""
        return "-".join(filter(None, (self.stage.name, self.setting.name, self.start, self.shifted)))

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
        for setting, start, shifted in product(settings, STARTS, stage.shifts):
            wanted = (setting, start, shifted)
            found = [run for run in own if (run.job.setting, run.job.start, run.job.shifted) == wanted]
            yield Group(stage=stage, setting=setting, start=start, shifted=shifted, runs=found)


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
    for _, same in groupby(groups(runs), lambda group: (group.stage.name, group.setting, group.start)):
        each = list(same)
        if any(group.shifted for group in each):
            parts += [_heading(each[0]), *_by_stream(each)]
            continue
        parts += [_heading(each[0]), _table(COLUMNS, (_cells(each[0], row) for row in each[0].rows()))]
        if each[0].stage.name in BY_DOMAIN:
            parts += ["Gain by domain:\n", _domains(each[0])]
    return "\n".join(parts)


def last_half(run: Run) -> float:
    """Accepted drafts per round of the later half of the traffic after the shift."""
    after_it = [point for point in run.points if point.end > run.shift_at]
    return _pooled(after_it[len(after_it) // 2 :], None)


def _by_stream(groups: Sequence[Group]) -> Iterator[str]:
    """What each row gains on every stream, and when the product's gate would let it serve."""
    reference = groups[0].reference
    others = [row for row in groups[0].rows() if row != reference]
    for title, figure in (("all requests", after), ("the later half", last_half)):
        first = [Mean.of(list(map(figure, group.of(reference).values()))).text() for group in groups]
        lines = [[f"{reference}: accepted", *first, ""]]
        for row in others:
            gains_percent = [_gain(group, row, figure) for group in groups]
            median = statistics.median(gain.value for gain in gains_percent)
            lines.append([row, *map(_percent, gains_percent), f"{median:.0f} %"])
        yield _table((title, *(group.shifted for group in groups), "median"), lines)
    proofs = [[row, *(_requests(_to_proof(group, row)) for group in groups)] for row in others]
    yield _table(("requests until it is proven", *(group.shifted for group in groups)), proofs)


def _to_proof(group: Group, row: str) -> list[int | None]:
    """By seed, how many requests the product's gate compares with the group's first row before it finds a gain."""
    own = group.of(row)
    others = group.of(group.reference)
    return [requests_to_proof(own[seed], others[seed]) for seed in sorted(own.keys() & others.keys())]


def requests_to_proof(run: Run, reference: Run) -> int | None:
    """Requests after the shift until the gate's test has shown that `run` gains on `reference`; None: it never has.

    Both were measured on the same requests, each chunk before it was learnt: what the product's learner compares.
    """
    test = PrequentialTest(PrequentialRules())
    for ours, theirs in zip(run.points, reference.points, strict=True):
        if ours.end > run.shift_at:
            test.observe([Paired("", tally, theirs.requests[name]) for name, tally in ours.requests.items()])
            if test.verdict().finding is LineFinding.GAINS:
                return ours.end - run.shift_at
    return None


def figures(group: Group, row: str) -> dict[str, object]:
    """A row's figures as plain values, for JSON."""
    runs = group.of(row)
    return {
        "stage": group.stage.name, "setting": group.setting.name, "start": group.start, "shifted": group.shifted,
        "row": row,
        "over": group.reference, "seeds": sorted(runs),
        "before": [before(run) for run in runs.values()], "after": [after(run) for run in runs.values()],
        "gain_before_percent": _gain(group, row, before).text(1),
        "gain_after_percent": _gain(group, row, after).text(1),
    }  # fmt: skip


def _heading(group: Group) -> str:
    sizes = group.stage.sizes
    before_it = f"{sizes.before_shift} requests, then " if sizes.before_shift else ""
    seeds = len({run.job.seed for run in group.runs})
    return (
        f"### {group.stage.name}: {group.stage.question}\n\n"
        f"{group.setting.name}, {group.start} head; {before_it}{sizes.after_shift} requests of the shifted domain, "
        f"{sizes.cadence} per chunk; seeds: {seeds}; gains over: {group.reference}\n"
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
    domains = sorted({domain for run in group.runs for point in run.points for domain in point.by_domain})
    names = [name for name in group.rows() if name != group.reference]
    lines = [[name, *(_percent(_gain(group, name, _in(domain))) for domain in domains)] for name in names]
    return _table(("row", *domains), lines)


def _in(domain: str) -> Callable[[Run], float]:
    return lambda run: _pooled(run.points, domain)


def _pooled(points: Sequence[Point], domain: str | None) -> float:
    tallies = [tally for point in points for name, tally in point.by_domain.items() if domain in {None, name}]
    return sum(tallies, Tally()).accept_length - 1.0


def _ends(run: Run) -> list[int]:
    return [point.end for point in run.points]


def _values(run: Run) -> list[float]:
    return [point.accepted for point in run.points]


def _table(columns: Sequence[str], lines: Iterable[list[str]]) -> str:
    rows = [columns, ["---"] * len(columns), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
