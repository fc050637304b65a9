"""What the demo reads from the board, the buffer and the heartbeats, on the in-memory twins."""

import pytest
from paceline.buffer.config import BufferConfig
from paceline.buffer.testing.memory_board import MemoryVersionBoard
from paceline.buffer.testing.memory_stream import MemoryTraceBuffer
from paceline.demo.view import TraceLine
from paceline.demo.watch import CURVE_REQUESTS, Swap, Watch, curves
from paceline.policies.acceptance import Tally
from paceline.rig.drained import drained
from paceline.rig.prompts import Prompt
from paceline.rig.traffic import Arrival, Served


@pytest.fixture
def board() -> MemoryVersionBoard:
    return MemoryVersionBoard()


@pytest.fixture
def buffer() -> MemoryTraceBuffer:
    return MemoryTraceBuffer(BufferConfig(speculator="test"))


@pytest.fixture
def watch(board: MemoryVersionBoard, buffer: MemoryTraceBuffer) -> Watch:
    return Watch(buffer, board, "r0", "l0")


def served(domain: str, accepted: int, *arrivals: float) -> Served:
    came = tuple(Arrival(at, number) for number, at in enumerate(arrivals, start=1))
    return Served(Prompt("p", domain, (1,)), 0.0, came, (1,), "length", Tally(accepted, 10), 0)


def reading(**changes: object) -> dict[str, object]:
    return {"at": 100.0, "captured": 9, "delivered": 7, "dropped": {"tap_full": 2}, "open": 0, "queued": 0} | changes


def test_silent_members_have_no_reading_and_nothing_is_drained(watch: Watch) -> None:
    assert (watch.replica(), watch.learner(), watch.swaps()) == ({}, {}, [])
    assert not drained(watch.replica)()
    assert watch.traces().captured == 0


def test_every_trace_stands_in_one_column(watch: Watch, board, buffer, make_trace) -> None:
    board.beat("replica:r0", reading(), 60.0)
    ids = buffer.append([make_trace(seed, trace_id=str(seed)) for seed in range(7)])
    buffer.claim("learner", 6)
    for entry_id, outcome in zip(ids, ("learned", "learned", "held_out", "duplicate", "rested"), strict=False):
        buffer.ack([entry_id], outcome)
    set_aside = {"duplicate": 1, "trimmed": 0, "dead_lettered": 0}
    assert watch.traces() == TraceLine(
        9, 7, {"tap_full": 2}, learned=2, held_out=1, rested=1, pending=2, set_aside=set_aside
    )
    assert watch.traces().is_accounted


@pytest.mark.parametrize(("captured", "delivered"), [(10, 7), (8, 7), (9, 6)])
def test_books_that_do_not_balance_are_seen(captured: int, delivered: int) -> None:
    line = TraceLine(
        captured, delivered, {"tap_full": 2}, learned=2, held_out=1, rested=1, pending=2, set_aside={"duplicate": 1}
    )
    assert not line.is_accounted


@pytest.mark.parametrize(
    ("told", "is_drained"),
    [
        ([{"at": 74.0}, {"at": 75.0}], False),  # both of before the question
        ([{"at": 75.5}, {"at": 75.5}], False),  # one reading, seen twice: its turn may have begun before the question
        ([{"at": 75.5}, {"at": 76.5}], True),
        ([{"at": 75.5, "open": 1}, {"at": 76.5}], True),
        ([{"at": 75.5}, {"at": 76.5, "open": 1}], False),
        ([{"at": 75.5}, {"at": 76.5, "queued": 3}], False),
        ([{"at": 75.5}, {"at": 76.5, "open": 1}, {"at": 77.5}], True),
    ],
)
def test_drained_means_nothing_open_and_nothing_queued_in_a_turn_begun_behind_the_question(
    watch: Watch, board, told: list[dict], is_drained: bool
) -> None:
    ask = drained(watch.replica, lambda: 75.0)
    for changes in told:
        board.beat("replica:r0", reading(**changes), 60.0)
        answer = ask()
    assert answer is is_drained


def test_a_learner_is_learning_while_it_says_so_and_when_enough_traces_wait(
    watch: Watch, board, buffer, make_trace
) -> None:
    assert not watch.is_learning(2)
    board.beat("learner:l0", {"kind": "learning"}, 60.0)
    assert watch.is_learning(2)
    board.beat("learner:l0", {"kind": "published"}, 60.0)
    buffer.append([make_trace(0, trace_id="a")])
    assert not watch.is_learning(2)
    buffer.append([make_trace(1, trace_id="b")])
    assert watch.is_learning(2)


def test_a_swap_stalls_the_requests_that_streamed_while_it_committed(watch: Watch, board) -> None:
    told = {"number": 3, "commit_ms": 500.0, "stage_ms": 1.0, "running": 2, "at": 12.0}
    board.beat("replica:r0", reading(swaps=[told]), 60.0)
    (swap,) = watch.swaps()
    assert swap == Swap(3, 500.0, 2, 12.0)
    assert swap.stall_ms([served("py", 0, 11.0, 11.25, 12.5), served("py", 0, 1.0, 9.0)]) == 1250.0


def test_a_curve_has_a_point_for_every_full_dozen_of_its_domain() -> None:
    py = [served("py", 0)] * CURVE_REQUESTS + [served("py", 10)] * CURVE_REQUESTS + [served("py", 99)]
    mixed = [result for pair in zip(py, [served("prose", 5)] * len(py), strict=True) for result in pair]
    assert curves(mixed) == {"py": [1.0, 2.0], "prose": [1.5, 1.5]}


def test_the_state_counts_what_is_done_and_shows_the_last_stall(watch: Watch, board) -> None:
    told = {"number": 3, "commit_ms": 500.0, "running": 2, "at": 12.0}
    board.beat("replica:r0", reading(swaps=[told]), 60.0)
    state = watch.state("py", [served("py", 0, 11.0, 12.5)], 40)
    assert (state.phase, state.requests_done, state.requests_total) == ("py", 1, 40)
    assert (state.live, state.versions, state.swaps, state.stall_ms) == (None, [], 1, 1500.0)
