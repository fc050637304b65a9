"""The shift bench without training: what a learner sees of a shift, ways to train, alarms, canaries, rests, tables."""

import argparse
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from paceline.benchmarks import shift
from paceline.benchmarks.gating import canaried, guarded, recovery, rested, shift_report, ways
from paceline.benchmarks.gating import line as line_module
from paceline.benchmarks.gating.line import Job
from paceline.benchmarks.gating.matrix import Matrix
from paceline.benchmarks.gating.streams import CHUNKS, NEW, StreamedRequest, StreamPlan, plans
from paceline.buffer.version import VersionState
from paceline.policies.acceptance import Tally
from paceline.policies.learn_schedule import LearnRules
from training import training_traces

TOKENS, PER_ROUND, SHIFT = 39, 2, 6


def made(length_of, *, chunks: int = CHUNKS, requests: int = 40, stream: str = "shift", seed: int = 0) -> Matrix:
    """A line whose version v has `length_of(v, chunk)` tokens accepted per round, give or take; c from SHIFT on."""
    rng = np.random.default_rng(seed)
    block_N = np.repeat(np.arange(chunks * PER_ROUND), requests // PER_ROUND).astype(np.int32)
    versions = chunks * PER_ROUND
    ease_N = rng.uniform(0.6, 1.4, len(block_N))
    accepted_VNR = np.full((versions, len(block_N), 40), -1, np.int8)
    for v in range(versions):
        for n, block in enumerate(block_N):
            accepted = rounds_of(rng, ease_N[n] * (length_of(v, block // PER_ROUND) - 1.0))
            accepted_VNR[v, n, : len(accepted)] = accepted
    counted = accepted_VNR >= 0
    names = np.array(["ada"] * len(block_N))
    return Matrix(
        np.where(counted, accepted_VNR, 0).sum(2).astype(np.int32), counted.sum(2).astype(np.int32), block_N,
        np.arange(len(block_N)) % 10 == 0, np.ones(len(block_N), bool), names,
        np.array([NEW if block >= SHIFT * PER_ROUND else "py" for block in block_N]), PER_ROUND,
        {"stream": stream, "seed": seed, "fits": [(10, 0.5)] * (versions - 1)}, accepted_VNR,
    )  # fmt: skip


def rounds_of(rng, mean: float) -> list[int]:
    """Accepted drafts of rounds that commit TOKENS tokens; each of three drafts is accepted as often."""
    found: list[int] = []
    while sum(found) + len(found) < TOKENS:
        left = TOKENS - sum(found) - len(found) - 1
        found.append(min(int(rng.binomial(3, mean / 3)), left))
    return found


def shifting(v: int, chunk: int) -> float:
    """Known traffic is learnt from 1.7 on; new traffic from 1.4 on, a tenth with every block of it."""
    return min(1.7 + 0.05 * v if chunk < SHIFT else 1.4 + 0.1 * max(v - SHIFT * PER_ROUND, 0), 2.2)


def plan_named(name: str) -> StreamPlan:
    return next(plan for plan in plans() if plan.name == name)


@pytest.fixture(scope="module")
def line() -> Matrix:
    return made(shifting)


def test_rounds_of_a_request_are_those_that_were_scored(line):
    rounds = line.rounds(3, 200)
    assert Tally(sum(rounds), len(rounds)) == line.tally(3, 200)
    unscored = replace(line, rounds_VN=np.where(np.arange(len(line.block_N)) == 200, -1, line.rounds_VN))
    with pytest.raises(LookupError):
        unscored.rounds(3, 200)


def test_a_shift_is_seen_in_the_round_that_meets_it_and_known_traffic_shows_none(line):
    assert recovery.first_moved(line) == SHIFT
    assert recovery.first_moved(made(lambda v, c: 2.2)) is None
    assert recovery.first_moved(made(lambda v, c: 1.4 if c < SHIFT else 2.2)) is None  # better than before


def test_traffic_has_just_moved_for_four_rounds():
    watch, rng = ways.ShiftWatch(), np.random.default_rng(0)
    seen = []
    for chunk in range(CHUNKS):
        watch.observe(rng.normal(1.2 if chunk < SHIFT else 0.5, 0.2, 40).tolist())
        seen.append(watch.has_moved)
    assert seen == [False] * SHIFT + [True] * 4 + [False] * (CHUNKS - SHIFT - 4)
    assert watch.moved_at == 40 * SHIFT


@pytest.mark.parametrize(
    ("replayed", "moved_at", "kept"),
    [
        (ways.Replayed.ALL, 7, range(10)),
        (ways.Replayed.SINCE, 7, [7, 8, 9]),
        (ways.Replayed.BALANCED, 7, [4, 5, 6, 7, 8, 9]),
        (ways.Replayed.BALANCED, 2, range(10)),
        (ways.Replayed.BALANCED, 10, []),
        (ways.Replayed.SINCE, None, range(10)),
    ],
)
def test_what_is_replayed_once_traffic_has_moved(make_trace, replayed, moved_at, kept):
    buffer = [(number, make_trace(number, trace_id=str(number))) for number in range(10)]
    chosen = ways.Way("", replayed=replayed).chosen(buffer, moved_at)
    assert [trace.trace_id for trace in chosen] == [str(number) for number in kept]


def test_a_way_trains_otherwise_only_while_traffic_has_just_moved():
    way = ways.Way("", passes=8, rate=3.0)
    assert way.plan(1, has_moved=False) == ways.Way("").plan(1, has_moved=True)
    assert way.plan(1, has_moved=True).passes == 8
    assert way.recipe(has_moved=True).warm_learning_rate == pytest.approx(3 * 5e-4)
    assert way.recipe(has_moved=False).warm_learning_rate == pytest.approx(5e-4)


def test_today_s_way_serves_the_newest_draft_and_small_rounds_the_line_after_every_block(line):
    today, small = recovery.todays(line), recovery.of_small_rounds(line)
    assert (today.accepted[7], today.rounds[7]) == tuple(
        int(n) for n in (line.served(14, 7).accepted, line.served(14, 7).rounds)
    )
    halves = [sum((line.tally(v, n) for n in np.flatnonzero(line.block_N == v)), Tally()) for v in (14, 15)]
    assert small.accepted[7] == sum(half.accepted for half in halves)
    assert today.steps == [20] * (CHUNKS - 1) + [10]
    assert today.moved_at == SHIFT


@pytest.fixture
def small(make_trace, make_draft, monkeypatch) -> tuple[Job, list[StreamedRequest], Matrix]:
    """A line of a tiny draft over four chunks of eight requests, with a shift that is seen in the third."""
    for module in (line_module, recovery):
        monkeypatch.setattr(module, "initial_draft", lambda *_: make_draft(0))
    monkeypatch.setattr(recovery, "first_moved", lambda _: 2)
    job = Job(replace(plan_named("shift"), shares=({},) * 4), 0, PER_ROUND)
    traces = training_traces(make_trace, range(32), rounds=6)
    named = [replace(t, trace_id=f"py-{n}", request_id=f"py-{n}") for n, t in enumerate(traces)]
    requests = [StreamedRequest(trace, number // 8) for number, trace in enumerate(named)]
    return job, requests, line_module.trained_line(None, job, requests, lambda *_: None)


def test_a_way_that_is_today_s_trains_today_s_line_again_from_what_was_kept_before_the_shift(small, tmp_path):
    job, requests, matrix = small
    today = recovery.todays(matrix)
    for _ in range(2):  # trained up to the shift, then read from the state that this left
        again = recovery.trained(None, job, requests, matrix, ways.Way("again"), tmp_path, lambda *_: None)
        assert (again.accepted, again.rounds) == (today.accepted, today.rounds)
        assert again.steps == [*today.steps[:3], 0]  # nothing is served by what the last chunk would teach
        assert [path.name for path in tmp_path.iterdir()] == ["shift-0-before-2.state"]


def test_ways_train_otherwise_from_the_shift_on_alone(small, tmp_path, monkeypatch):
    job, requests, matrix = small
    monkeypatch.setattr(ways.ShiftWatch, "has_moved", True)
    today = recovery.todays(matrix)
    more = recovery.trained(None, job, requests, matrix, ways.Way("", passes=8), tmp_path, lambda *_: None)
    assert more.steps[:3] == [*today.steps[:2], 2 * today.steps[2]]
    assert more.rounds[:3] == today.rounds[:3]


def test_a_learner_at_rest_learns_nothing_of_the_chunk_that_it_wakes_by(small, tmp_path):
    job, requests, matrix = small
    rested_line = recovery.trained(
        None, job, requests, matrix, ways.Way("", is_at_rest=True), tmp_path, lambda *_: None
    )
    assert rested_line.steps[2:] == [0, 0]


def test_recovery_is_counted_in_requests_and_in_steps(line):
    today = recovery.todays(line)
    flat = msgspec.structs.replace(
        today, accepted=[100] * SHIFT + [20, 60, 100] + [100] * 5, rounds=[100] * CHUNKS, steps=[5] * CHUNKS
    )
    assert shift_report.reached(flat, flat) == pytest.approx(40 + 40 + 30)  # 0.9 is three quarters of the way
    assert shift_report.spent(flat.steps, flat, 110.0) == 10  # the rounds on its first two chunks
    assert shift_report.reached(msgspec.structs.replace(flat, accepted=[0] * CHUNKS), flat) is None
    assert shift_report.reached(msgspec.structs.replace(flat, stream="stationary"), flat) is None


def test_alarms_leave_a_line_alone_that_accepts_less_and_roll_one_back_that_accepts_nothing(line):
    on, off = guarded.guarded(line), guarded.guarded(line, is_on=False)
    assert on.rolled_back == ()
    assert on.accepted == off.accepted
    assert 1.2 < on.lowest < 1.6
    harshest = shift_report.harshest(line)
    assert harshest.served(SHIFT * PER_ROUND, SHIFT).accepted == 0
    assert harshest.served(SHIFT * PER_ROUND + 2, SHIFT + 1) == line.served(SHIFT * PER_ROUND + 2, SHIFT + 1)
    assert harshest.served(0, SHIFT - 1) == line.served(0, SHIFT - 1)
    found = guarded.guarded(harshest)
    assert found.rolled_back == (SHIFT,)
    assert found.lowest == 1.0


def test_an_equal_canary_is_left_alone_and_a_dead_one_is_out_within_two_hundred_rounds():
    steady = made(lambda v, c: 2.0)
    rng = np.random.default_rng(0)
    equal = canaried.tried(steady, 3, 6, rng)
    assert (equal.state, equal.ground) == (VersionState.CANARY, "")
    assert equal.rounds > 500
    dead = canaried.tried(steady, 3, 6, rng, guarded.dead_version(steady, 0))
    assert dead.state is VersionState.ROLLED_BACK
    assert dead.ground in {"begins of its requests", "silent_death"}
    assert dead.rounds <= 200


def test_a_rest_begins_once_a_line_gains_no_more_and_what_it_forgoes_is_counted():
    plateau = made(lambda v, c: 2.0)
    found = rested.rested(plateau, LearnRules())
    assert (found.began, found.woke) == (5, None)
    assert found.forgone.rounds == sum(plateau.served(0, chunk).rounds for chunk in range(6, CHUNKS))
    assert found.served == found.forgone
    falls = rested.rested(made(lambda v, c: 2.0 if c < 9 else 1.2), LearnRules())
    assert (falls.began, falls.woke) == (5, 9)
    gains = rested.rested(made(lambda v, c: 1.3 + 0.05 * v), LearnRules())
    assert (gains.began, gains.forgone) == (None, Tally())


def test_the_report_has_a_table_for_every_question(line):
    found = [recovery.todays(line), recovery.of_small_rounds(line)]
    text = shift_report.markdown({"command": "--seeds 1", "machine": {"cores": 2}}, [line], found, canaries=1)
    assert "| shift | today's | 1 |" in text
    assert "| 0.10% | " in text
    assert "| shift | nothing | 1 | 1 | 1.00 |" in text
    assert "| shift | equal, +0 rounds from the shift | 1 |" in text
    assert "seeds 0." in text


def test_a_part_of_the_report_is_made_alone(line):
    text = shift_report.markdown({"command": "--parts canaries", "machine": {}}, [line], [], 1, ("canaries",))
    assert [row for row in text.splitlines() if row.startswith("##")] == [f"## {shift_report.PARTS['canaries']}"]
    assert shift.parts("canaries,floors") == ("floors", "canaries")
    with pytest.raises(argparse.ArgumentTypeError, match="got canary, expected some of ways, floors"):
        shift.parts("canary")
