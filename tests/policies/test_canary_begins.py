"""How requests begin, beside live ones and by history: what waits, what counts, and how seldom a shift is a canary."""

import math
from functools import partial

import numpy as np
import pytest
from paceline.buffer.board.reason import Reason, ReasonCode
from paceline.policies.acceptance import Tally
from paceline.policies.canary_begins import BeginTests
from paceline.policies.canary_blocks import BLOCK_BEGINS

ERROR, SHIFT_ERROR = 0.02, 0.05
LENGTHS = (4, 8)
NONE = Tally()


def made() -> BeginTests:
    return BeginTests(LENGTHS, ERROR, SHIFT_ERROR)


def add_live(tests: BeginTests, name: str, accepted: int, *, is_history: bool = False, rounds: int = 4) -> None:
    tests.add_live(name, NONE, Tally(accepted, rounds), ended=True, is_history=is_history)


def add_canary(tests: BeginTests, name: str, accepted: int, at: float = 0.0) -> None:
    tests.add_canary(name, NONE, Tally(accepted, 4), ended=True, at=at)


def judged(tests: BeginTests, known_until: float = math.inf) -> Reason | None:
    tests.compare(known_until)
    return tests.accusation()


def with_history(rng: np.random.Generator, count: int = 60) -> BeginTests:
    """Most of history accepts eight of twelve drafts."""
    tests = made()
    for i in range(count):
        add_live(tests, f"before-{i}", int(rng.binomial(12, 0.66)), is_history=True)
    return tests


def test_history_alone_accuses_while_no_live_request_of_now_is_known() -> None:
    tests = with_history(np.random.default_rng(0))
    for i in range(8):
        add_canary(tests, f"dead-{i}", 0)
    reason = judged(tests)
    assert (reason.code, reason.figures["begin_rounds"]) == (ReasonCode.CANARY_HARMS, 4)
    assert reason.figures["beside"] == "so far"


def test_once_a_live_request_of_now_is_known_history_waits_for_what_speaks_beside_it() -> None:
    tests = with_history(np.random.default_rng(0))
    for i in range(8):
        add_canary(tests, f"dead-{i}", 0)
    add_live(tests, "live-0", 0)
    assert judged(tests) is None
    for i in range(1, 8):  # they begin as the canary's do: the traffic has changed
        add_live(tests, f"live-{i}", 0)
    assert judged(tests) is None
    beside = with_history(np.random.default_rng(0))
    for i in range(8):
        add_canary(beside, f"dead-{i}", 0)
        add_live(beside, f"live-{i}", 8)
    assert judged(beside) is not None


def test_begins_of_the_canary_wait_until_the_live_arm_is_known_so_far() -> None:
    tests = with_history(np.random.default_rng(0))
    for i in range(8):
        add_live(tests, f"live-{i}", 8)
        add_canary(tests, f"dead-{i}", 0, at=10.0)
    assert judged(tests, known_until=10.0) is None
    assert judged(tests, known_until=10.1) is not None


def test_a_block_that_both_arms_have_filled_ends_with_the_next_live_begin() -> None:
    tests, beside = made(), lambda: [len(test.beside._begins) for test in tests._tests]
    for i in range(2 * BLOCK_BEGINS):
        add_canary(tests, f"c-{i}", 2)
    tests.compare(math.inf)
    for i in range(BLOCK_BEGINS):
        add_live(tests, f"live-{i}", 2)
        tests.compare(math.inf)
        assert beside() == [2 * BLOCK_BEGINS + i + 1] * 2
    add_canary(tests, "last", 2)
    tests.compare(math.inf)
    assert beside() == [3 * BLOCK_BEGINS + 1] * 2
    add_live(tests, "first", 2)
    tests.compare(math.inf)
    assert beside() == [1, 1]


def test_without_history_a_canary_is_accused_beside_live_ones_alone() -> None:
    tests = made()
    for i in range(24):
        add_live(tests, f"live-{i}", 6 + i % 3)
        add_canary(tests, f"dead-{i}", 0)
    assert judged(tests).figures["beside"] == "beside it"


def test_a_begin_that_is_reported_again_counts_once_and_one_of_history_stays_history() -> None:
    once, twice = made(), made()
    for tests in (once, twice):
        for i in range(6):
            began = partial(tests.add_live, f"live-{i}", Tally(0, 3), Tally(8, 4), ended=False, is_history=False)
            for _ in range(1 if tests is once else 3):
                began()
            tests.add_live(f"live-{i}", NONE, Tally(14, 8), ended=True, is_history=False)
            tests.add_live(f"old-{i}", Tally(0, 3), Tally(1, 4), ended=False, is_history=True)
            tests.add_live(f"old-{i}", NONE, Tally(1, 8), ended=True, is_history=False)
            add_canary(tests, f"c-{i}", i)
        tests.compare(math.inf)
    states = [
        [(t.beside.log_capital, t.by_history.highest_log_capital) for t in tests._tests] for tests in (once, twice)
    ]
    assert states[0] == states[1]
    # Six live begins of either length, six of the canary; those of history are beside nothing.
    assert [len(t.beside._begins) for t in once._tests] == [12, 12]
    assert [len(t.by_history._live) for t in once._tests] == [12, 12]


def tried(rng: np.random.Generator, hard: float, *, canary: float = 1.0) -> BeginTests:
    """One canary that comes as traffic shifts to requests that accept `hard`; beats bring eight begins of each arm."""
    tests = with_history(rng)
    for beat in range(12):
        for i in range(8):
            add_live(tests, f"live-{beat}-{i}", int(rng.binomial(12, hard)))
            add_canary(tests, f"canary-{beat}-{i}", int(rng.binomial(12, hard * canary)), at=beat)
        tests.compare(beat + 0.5)
    return tests


def test_a_shift_is_hardly_ever_taken_for_a_worse_draft_though_history_accuses_it() -> None:
    rng, accused, by_history = np.random.default_rng(3), 0, 0
    for _ in range(100):
        tests = tried(rng, 0.3)
        accused += bool(tests.accusation())
        by_history += tests._tests[0].by_history.highest_log_capital > math.log(250)
    assert by_history >= 90
    assert accused <= 5


@pytest.mark.parametrize("hard", [0.66, 0.3])
def test_a_dead_canary_is_accused_at_a_shift_and_without_one(hard: float) -> None:
    rng = np.random.default_rng(4)
    assert all(tried(rng, hard, canary=0.0).accusation() for _ in range(20))


def test_between_equal_drafts_on_steady_traffic_the_error_is_kept() -> None:
    rng, trials = np.random.default_rng(5), 200
    accused = sum(bool(tried(rng, 0.66).accusation()) for _ in range(trials))
    assert accused / trials <= ERROR + 3 * math.sqrt(ERROR / trials)
