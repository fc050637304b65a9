"""What pairs of runs say, as Markdown."""

import math
import statistics
from collections.abc import Iterable, Sequence

from ...learner.round.prediction import MOST_REQUESTS
from ...policies.readings.traffic_move import MOVED_SHARE
from ...rig.ratio import ratio
from .coverage import Traffic, of_runs, summed_up
from .levels import LOWER_SHARES, SHARE, WINDOW, Pair, Recovery, Yardstick, paired
from .recorded_run import RecordedRun

Runs = tuple[RecordedRun, RecordedRun]

_RECOVERY = (
    "seed", "level", "before: requests", "end", "all after the shift", "after: requests", "end", "all after the shift",
    "requests, after over before",
)  # fmt: skip
_COVERAGE = (
    "side", "traffic", "versions", "served inside the interval", "median absolute error", "median half width",
    "median absolute error of the board's figure", "served inside the board's interval",
)  # fmt: skip

_LEVELS = ("level", "before: requests, median", "after: requests, median", "after over before", "bounds")


_LEVEL = (
    f"The level of a seed is {SHARE:.0%} of the accept length, bonus token included, that {Yardstick.BETTER} "
    f"has over its last {WINDOW} requests. It is reached with the first request after the shift at which the accept "
    f"length of the latest {WINDOW} is as high; no window begins before the shift.\n"
)
_LOWER = (
    "The same with lower shares of that accept length. Requests differ in how well they can be drafted, and the same "
    "ones come at the same place in both runs, so a row of easy ones may take both over a high level together.\n"
)
_OWN = (
    f"The same where the level is a share of what {Yardstick.BEFORE} has over its last {WINDOW} requests: there the "
    "level of a seed is the same whatever the run after reaches, and a run before is always back in the end.\n"
)
_INTERVAL = (
    f"Predicted is the replay of a version's weights on the newest requests, {MOST_REQUESTS} at most, that had come "
    "when it was published and that it had not learnt. The interval of 95 % holds the noise of both samples, "
    "requests being what is drawn. Listed apart are versions of which the traffic changed: those whose requests, "
    f"predicted by and then served, are of other domains ({MOVED_SHARE:.0%} would have to be of another one for the "
    "two to agree), and those among whose requests the learner's drift test finds a change, in replays with a draft "
    "three versions older, which learnt from none of them (it cannot be asked of the first versions). The figure on "
    "the board is what each side predicted there, and its interval what `paceline versions` shows beside the error.\n"
)


def markdown(command: str, runs: Sequence[Runs]) -> str:
    """The whole page; at least one pair."""
    pairs = [paired(*both) for both in runs]
    recovered = [_LEVEL, _table(_RECOVERY, map(_recovery_cells, pairs)), _ratios(pairs)]
    lower = [_LOWER, _levels(Yardstick.BETTER, runs)]
    own = [_OWN, _levels(Yardstick.BEFORE, runs)]
    predicted = [_INTERVAL, _table(_COVERAGE, _coverage_lines(runs)), _left_out(runs)]
    return "\n".join([
        _heading(command, runs),
        "## Requests until the level is served again\n", *recovered,
        "## Requests until lower levels\n", *lower,
        "## Requests until levels of the run before\n", *own,
        "## Predicted against served\n", *predicted,
    ])  # fmt: skip


def _heading(command: str, runs: Sequence[Runs]) -> str:
    first, missing = [run.conditions for run in runs[0]], sum(run.missing for both in runs for run in both)
    seeds = ", ".join(str(before.conditions.seed) for before, _ in runs)
    before, after = (
        each.commit[:12] + "".join(f" {key}={value}" for key, value in sorted(each.settings.items())) for each in first
    )
    return (
        f"`{command}`, on {dict(first[0].machine)}; before: {before}; after: {after}; {first[0].requests} requests of "
        f"{first[0].max_tokens} tokens, half of them code, then prose; seeds {seeds}; requests without a trace: "
        f"{missing}.\n"
    )


def _recovery_cells(pair: Pair) -> list[str]:
    bound = " (bound)" if pair.is_bound else ""
    sides = [cell for side in _sides(pair) for cell in _side_cells(side)]
    return [str(pair.seed), f"{pair.level:.2f}", *sides, f"{pair.ratio:.2f}{bound}"]


def _sides(pair: Pair) -> tuple[Recovery, Recovery]:
    return pair.before, pair.after


def _side_cells(side: Recovery) -> list[str]:
    return [side.text(), f"{side.end:.2f}", f"{side.whole:.2f}"]


def _ratios(pairs: Sequence[Pair]) -> str:
    bounds = sum(pair.is_bound for pair in pairs)
    requests = ratio([pair.after.at_least for pair in pairs], [pair.before.at_least for pair in pairs])
    whole = ratio([pair.after.whole for pair in pairs], [pair.before.whole for pair in pairs])
    note = f" {bounds} of them are bounds, taken as they stand: a run never reached its level." if bounds else ""
    return (
        f"Requests, after over before: {requests.text()}.{note} Accept length of all requests after the shift, after "
        f"over before: {whole.text()}. First the geometric mean with its t-interval over pairs.\n"
    )


def _levels(yardstick: Yardstick, runs: Sequence[Runs]) -> str:
    return _table(_LEVELS, (_level_cells(share, yardstick, runs) for share in (SHARE, *LOWER_SHARES)))


def _level_cells(share: float, yardstick: Yardstick, runs: Sequence[Runs]) -> list[str]:
    pairs = [paired(*both, share, yardstick) for both in runs]
    before, after = ([side.at_least for side in sides] for sides in zip(*map(_sides, pairs), strict=True))
    medians = [f"{statistics.median(side):.0f}" for side in (before, after)]
    return [f"{share:.0%}", *medians, ratio(after, before).text(), str(sum(pair.is_bound for pair in pairs))]


def _coverage_lines(runs: Sequence[Runs]) -> Iterable[list[str]]:
    for name, side in zip(("before", "after"), zip(*runs, strict=True), strict=True):
        versions, _ = of_runs(side)
        for traffic in Traffic:
            found = summed_up([each for each in versions if each.traffic is traffic])
            share = f" ({found.inside / found.versions:.0%})" if found.versions else ""
            lengths = (found.median_error, found.median_half_width, found.median_board_error)
            inside, own = f"{found.inside} of {found.versions}{share}", "–"  # noqa: RUF001 - a dash in a table
            if found.with_interval:
                share = f"{found.inside_it / found.with_interval:.0%}"
                own = f"{found.inside_it} of {found.with_interval} ({share})"
            yield [name, str(traffic), str(found.versions), inside, *map(_figure, lengths), own]


def _left_out(runs: Sequence[Runs]) -> str:
    parts = []
    for name, side in zip(("before", "after"), zip(*runs, strict=True), strict=True):
        _, reasons = of_runs(side)
        served = sum(len(run.versions) for run in side)
        never = sum(run.published - 1 for run in side) - served
        counts = [f"never served: {never}", *(f"{why}: {count}" for why, count in sorted(reasons.items()))]
        parts.append(f"{name}: {', '.join(counts)}")
    return f"Versions left out, but for the initial ones: {'; '.join(parts)}.\n"


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"  # noqa: RUF001 - a dash in a table


def _table(columns: Sequence[str], lines: Iterable[list[str]]) -> str:
    rows = [columns, ["---"] * len(columns), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
