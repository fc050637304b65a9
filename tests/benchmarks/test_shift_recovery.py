"""What pairs of runs say: when a level is served again, and whether what was served is where it was predicted."""

import math
from dataclasses import replace

import numpy as np
import pytest
from paceline.benchmarks.recovery import coverage, levels, recorded_run, table
from paceline.benchmarks.recovery.coverage import Traffic
from paceline.benchmarks.recovery.levels import WINDOW
from paceline.benchmarks.recovery.recorded_run import Conditions, RecordedRun, ServedRequest, ServedVersion
from paceline.policies.acceptance import Tally
from scipy import stats

CONDITIONS = Conditions("c" * 40, {}, 3, 80, 96, "t", {"cores": 2})


def made_run(lengths, *, versions=(), before=10, **changes) -> RecordedRun:
    """`before` requests of code, then prose with these accept lengths, each over ten rounds."""
    accepted = [5.0] * before + [10.0 * (length - 1.0) for length in lengths]
    requests = tuple(
        ServedRequest(n, "py" if n < before else "prose", Tally(drafts, 10.0)) for n, drafts in enumerate(accepted)
    )
    made = RecordedRun(CONDITIONS, "sha", requests, 0, tuple(versions), 5, 400.0)
    return replace(made, **changes)


def first_request_at_level(lengths, level) -> int | None:
    """Equal rounds: the mean of the latest WINDOW."""
    for end in range(WINDOW, len(lengths) + 1):
        if sum(lengths[end - WINDOW : end]) / WINDOW >= level:
            return end
    return None


def curve(seed: int, end: float, slope: float) -> list[float]:
    rng = np.random.default_rng(seed)
    return [min(end, 1.2 + slope * n) + float(rng.normal(0.0, 0.05)) for n in range(90)]


@pytest.mark.parametrize("seed", range(6))
def test_a_run_is_back_with_the_first_request_whose_latest_ones_accept_as_much(seed):
    slow, fast = curve(seed, 2.0, 0.012), curve(10 + seed, 2.3, 0.03)
    found = levels.paired(made_run(slow), made_run(fast))
    assert found.level == pytest.approx(0.9 * sum(fast[-WINDOW:]) / WINDOW)
    for side, lengths in ((found.before, slow), (found.after, fast)):
        expected = first_request_at_level(lengths, found.level)
        assert (side.requests is None) == (expected is None)
        # Interpolated between two requests, so up to one sooner.
        assert expected is None or expected - 1 < side.requests <= expected
        assert side.end == pytest.approx(sum(lengths[-WINDOW:]) / WINDOW)
        assert side.whole == pytest.approx(sum(lengths) / len(lengths))
    assert found.ratio == pytest.approx(found.after.requests / (found.before.requests or 90.0))


@pytest.mark.parametrize("share", [0.9, 0.7])
def test_the_level_of_the_run_before_is_the_same_whatever_the_run_after_reaches(share):
    slow = curve(1, 2.0, 0.012)
    for better in (2.3, 3.0):
        fast = curve(2, better, 0.03)
        found = levels.paired(made_run(slow), made_run(fast), share, levels.Yardstick.BEFORE)
        assert found.level == pytest.approx(share * sum(slow[-WINDOW:]) / WINDOW)
        assert found.before.requests == pytest.approx(first_request_at_level(slow, found.level), abs=1.0)
        assert found.after.requests == pytest.approx(first_request_at_level(fast, found.level), abs=1.0)
        assert not found.is_bound


def test_a_run_that_never_comes_back_bounds_the_ratio_by_all_its_requests():
    found = levels.paired(made_run([1.2] * 60), made_run([1.2] * 20 + [2.0] * 40))
    assert (found.before.requests, found.before.text(), found.is_bound) == (None, "> 60", True)
    assert found.ratio == pytest.approx(found.after.requests / 60.0)
    assert found.ratio < 1.0
    assert not levels.paired(made_run([2.0] * 60), made_run([2.0] * 60)).is_bound


def test_a_window_never_begins_before_the_shift_and_needs_as_many_requests():
    tallies = made_run([1.5] * (WINDOW - 1)).after_shift
    assert len(tallies) == WINDOW - 1
    with pytest.raises(SystemExit, match=f"got {WINDOW - 1}, expected at least {WINDOW}"):
        levels.smoothed(tallies)
    assert levels.recovery(made_run([1.5] * WINDOW).after_shift, 1.0).requests == WINDOW


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"initial_draft": "other"}, "initial draft"),
        ({"conditions": replace(CONDITIONS, seed=4)}, "seed"),
        ({"conditions": replace(CONDITIONS, target="u")}, "target"),
        ({"conditions": replace(CONDITIONS, requests=90)}, "requests"),
    ],
)
def test_runs_that_have_not_the_same_start_are_no_pair(changes, what):
    run = made_run([1.5] * 60)
    with pytest.raises(SystemExit, match=f"^{what} of a pair: got "):
        levels.paired(run, replace(run, **changes))


def requests(rng, count, mean=1.0):
    """Requests of different lengths, whose acceptance differs from one to the next."""
    rounds = rng.integers(20, 40, count)
    return [Tally(float(rng.binomial(3 * n, min(max(share, 0.0), 1.0))), float(n)) for n, share in zip(
        rounds, rng.normal(mean / 3.0, 0.1, count), strict=True
    )]  # fmt: skip


def test_the_interval_is_welchs_where_requests_are_equally_long():
    rng = np.random.default_rng(0)
    judged, served = ([Tally(float(rng.integers(0, 30)), 10.0) for _ in range(count)] for count in (7, 31))
    values = [[1.0 + tally.accepted / 10.0 for tally in tallies] for tallies in (judged, served)]
    low, high = stats.ttest_ind(*values, equal_var=False).confidence_interval(0.95)
    assert coverage.half_width(judged, served) == pytest.approx((high - low) / 2.0)
    assert coverage.half_width(judged[:1] * 2, served[:1] * 2) == 0.0


def test_of_samples_of_the_same_traffic_19_in_20_are_inside():
    rng = np.random.default_rng(5)
    versions = [ServedVersion(1, tuple(requests(rng, 12)), tuple(requests(rng, 40)), (), 0.0, None) for _ in range(400)]
    found = [coverage.compared(version) for version in versions]
    inside = sum(each.is_inside for each in found)
    assert stats.binomtest(inside, 400, 0.95).pvalue > 0.01
    shifted = [replace(each, served=tuple(requests(rng, 40, 1.8))) for each in versions]
    assert sum(coverage.compared(each).is_inside for each in shifted) < 40


def test_a_change_among_the_newest_requests_of_one_draft_is_found_and_noise_and_an_older_change_are_none():
    rng = np.random.default_rng(2)
    usual, other = requests(rng, 100, 1.8), requests(rng, 60, 0.5)
    assert not coverage.has_drifted(usual, 60)
    assert not coverage.has_drifted([], 60)
    for came in (20, 40, 60):
        assert coverage.has_drifted([*usual, *other[:came]], 60)
    assert not coverage.has_drifted([*usual[:40], *other, *requests(rng, 40, 0.5)], 60)


def test_versions_are_told_apart_by_their_domains_and_by_what_watched_them():
    rng = np.random.default_rng(2)
    usual, other = (tuple(requests(rng, 90, mean)) for mean in (1.8, 0.5))
    samples = usual[:40], other[:20]
    for watched, has_drifted in (((), None), (usual, False), ((*usual, *other[:20]), True)):
        same, moved = (coverage.compared(ServedVersion(4, *samples, watched, share, None)) for share in (0.29, 0.3))
        assert same.has_drifted is moved.has_drifted is has_drifted
        assert same.traffic is (Traffic.DRIFTED if has_drifted else Traffic.SAME)
        assert moved.traffic is Traffic.MOVED


def test_versions_that_cannot_be_compared_are_counted_with_the_reason():
    some, none = (Tally(5.0, 10.0), Tally(8.0, 10.0)), (Tally(5.0, 10.0), Tally())
    versions = [
        ServedVersion(1, some, some, (), 0.0, 1.7, 0.01),
        ServedVersion(2, none, some, (), None, None),
        ServedVersion(3, some, some[:1], (), 0.0, None),
    ]
    found, left_out = coverage.of_runs([made_run([1.5] * 30, versions=versions)])
    assert left_out == {"judged on fewer than two requests": 1, "served fewer than two requests": 1}
    summed = coverage.summed_up(found)
    assert (summed.versions, summed.inside, summed.median_error) == (1, 1, 0.0)
    assert summed.median_board_error == pytest.approx(0.05)
    assert (summed.with_interval, summed.inside_it) == (1, 1)
    steady = (Tally(8.0, 10.0), Tally(8.0, 10.0))  # served without noise: the board's own is all there is
    boards = [(1.7, 0.06, 1), (1.7, 0.05, 0), (1.7, None, None), (None, None, None)]
    for on_board, error, inside in boards:
        found, _ = coverage.of_runs(
            [made_run([1.5] * 30, versions=[ServedVersion(1, some, steady, (), 0.0, on_board, error)])]
        )
        own = coverage.summed_up(found)
        assert (own.with_interval, own.inside_it) == ((0, 0) if inside is None else (1, inside))
    empty = coverage.summed_up([])
    assert (empty.versions, empty.inside, math.isnan(empty.median_error)) == (0, 0, True)


def test_the_page_has_every_pair_and_names_what_was_left_out():
    some = (Tally(5.0, 10.0), Tally(8.0, 10.0), Tally(2.0, 10.0))
    slow = made_run([1.2] * 40 + [2.0] * 40, versions=[ServedVersion(1, some, some, some, 0.1, 1.6)])
    fast = made_run([1.2] * 10 + [2.0] * 70, versions=[ServedVersion(2, some[:1], some, (), 1.0, None)])
    other = replace(CONDITIONS, seed=4)
    pairs = [(slow, fast), (replace(slow, conditions=other), replace(fast, conditions=other))]
    text = table.markdown("make bench-shift", pairs)
    lines = text.splitlines()
    (row,) = [line for line in lines if line.startswith("| 3 | 1.80 | ")]
    before, after = (
        first_request_at_level([1.2] * 40 + [2.0] * 40, 1.8),
        first_request_at_level([1.2] * 10 + [2.0] * 70, 1.8),
    )
    assert row.split(" | ")[2:4] == [str(before), "2.00"]
    assert row.split(" | ")[5:7] == [str(after), "2.00"]
    assert "seeds 3, 4; requests without a trace: 0." in text
    low, own = [line.split(" | ") for line in lines if line.startswith("| 70% | ")]
    assert own == low  # both runs end at the same length
    lower = [first_request_at_level([1.2] * n + [2.0] * (80 - n), 1.4) for n in (40, 10)]
    got = [int(cell) for cell in low[1:3]]
    assert all(expected - 1 <= requests <= expected for requests, expected in zip(got, lower, strict=True))
    assert float(low[3].split()[0]) == pytest.approx(got[1] / got[0], abs=0.001)
    assert low[4] == "0 |"
    assert "| before | no change | 2 | 2 of 2 (100%) | 0.000 | " in text
    assert "| after | no change | 0 | 0 of 0 | – | – | – |" in text  # noqa: RUF001 - a dash in a table
    assert "before: never served: 6; after: never served: 6, judged on fewer than two requests: 2" in text


def test_a_run_is_kept_and_taken_up_under_the_same_conditions_alone(tmp_path):
    run = made_run([1.5] * 30, versions=[ServedVersion(1, (Tally(1.0, 2.0),), (Tally(3.5, 4.0),), (), 0.5, None)])
    assert recorded_run.kept(tmp_path, CONDITIONS) is None
    recorded_run.save(tmp_path, run)
    assert recorded_run.kept(tmp_path, CONDITIONS) == run
    with pytest.raises(SystemExit, match=r"run\.json: got .*seed=3.*, expected .*seed=7"):
        recorded_run.kept(tmp_path, replace(CONDITIONS, seed=7))
    (tmp_path / recorded_run.FILE).write_text("{")
    with pytest.raises(SystemExit, match="expected a run of this bench"):
        recorded_run.kept(tmp_path, CONDITIONS)
