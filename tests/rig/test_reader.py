"""What a reader sees of a speculator, on the in-memory buffer and board."""

import pytest
from fleet import publish
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.config import BufferConfig
from paceline.policies.acceptance import Tally
from paceline.rig.prompts import Prompt
from paceline.rig.reader import SpeculatorReader, Swap, TraceAccount, drain_check
from paceline.rig.traffic import Arrival, Served
from said import said
from twins.memory_board import MemoryVersionBoard
from twins.memory_stream import MemoryTraceBuffer


@pytest.fixture
def board() -> MemoryVersionBoard:
    return MemoryVersionBoard()


@pytest.fixture
def buffer() -> MemoryTraceBuffer:
    return MemoryTraceBuffer(BufferConfig(speculator="test"))


@pytest.fixture
def reader(board: MemoryVersionBoard, buffer: MemoryTraceBuffer) -> SpeculatorReader:
    return SpeculatorReader(buffer, board, "r0", "l0")


def streamed(*arrivals: float) -> Served:
    came = tuple(Arrival(at, number) for number, at in enumerate(arrivals, start=1))
    return Served(
        prompt=Prompt("p", "py", (1,)),
        sent_at=0.0,
        arrivals=came,
        output_ids=(1,),
        finish="length",
        tally=Tally(0, 10),
        retractions=0,
    )


def status(**changes: object) -> MemberStatus:
    traces = {"captured": 9, "delivered": 7, "dropped": {"tap_full": 2}}
    return said({"at": 100.0, "traces": traces, "open": 0, "queued": 0} | changes)


def test_members_without_a_heartbeat_have_an_empty_status_and_nothing_is_drained(reader: SpeculatorReader) -> None:
    assert reader.replica_status() == reader.learner_status() == MemberStatus()
    assert reader.swaps() == []
    assert not drain_check(reader.replica_status)()
    account = reader.traces()
    assert (account.captured, account.delivered, account.dropped, account.is_balanced) == (None, None, None, False)
    assert (reader.live(), reader.versions()) == (None, [])


def test_every_trace_is_counted_once(reader: SpeculatorReader, board, buffer, make_trace) -> None:
    board.beat("replica:r0", status(), 60.0)
    ids = buffer.append([make_trace(seed, trace_id=str(seed)) for seed in range(7)])
    buffer.claim("learner", 6)
    for entry_id, outcome in zip(ids, ("learned", "learned", "held_out", "duplicate", "rested"), strict=False):
        buffer.ack([entry_id], outcome)
    set_aside = {"duplicate": 1, "trimmed": 0, "dead_lettered": 0}
    assert reader.traces() == TraceAccount(
        captured=9,
        delivered=7,
        dropped={"tap_full": 2},
        learned=2,
        held_out=1,
        rested=1,
        pending=2,
        set_aside=set_aside,
    )
    assert reader.traces().is_balanced


def test_a_server_whose_heartbeat_expired_has_its_last_account_with_its_age(buffer) -> None:
    now = [100.0]
    board = MemoryVersionBoard(clock=lambda: now[0])
    reader = SpeculatorReader(buffer, board, "r0", "l0")
    board.beat("replica:r0", status(), 10.0)
    assert (reader.traces().captured, reader.traces().silent_s) == (9, 0.0)
    now[0] = 130.0
    account = reader.traces()
    assert reader.replica_status() == MemberStatus()
    assert (account.captured, account.delivered, account.dropped) == (9, 7, {"tap_full": 2})
    assert account.silent_s == 30.0


@pytest.mark.parametrize(("captured", "delivered"), [(10, 7), (8, 7), (9, 6)])
def test_an_account_that_does_not_add_up_is_not_balanced(captured: int, delivered: int) -> None:
    account = TraceAccount(
        captured=captured,
        delivered=delivered,
        dropped={"tap_full": 2},
        learned=2,
        held_out=1,
        rested=1,
        pending=2,
        set_aside={"duplicate": 1},
    )
    assert not account.is_balanced


@pytest.mark.parametrize(
    ("statuses", "is_drained"),
    [
        ([{"at": 74.0}, {"at": 75.0}], False),  # both from before the question
        ([{"at": 75.5}, {"at": 75.5}], False),  # one heartbeat, seen twice: its turn may have begun before the question
        ([{"at": 75.5}, {"at": 76.5}], True),
        ([{"at": 75.5, "open": 1}, {"at": 76.5}], True),
        ([{"at": 75.5}, {"at": 76.5, "open": 1}], False),
        ([{"at": 75.5}, {"at": 76.5, "queued": 3}], False),
        ([{"at": 75.5}, {"at": 76.5, "open": 1}, {"at": 77.5}], True),
    ],
)
def test_drained_means_nothing_open_and_nothing_queued_in_a_turn_begun_after_the_question(
    reader: SpeculatorReader, board, statuses: list[dict], is_drained: bool
) -> None:
    check = drain_check(reader.replica_status, lambda: 75.0)
    for changes in statuses:
        board.beat("replica:r0", status(**changes), 60.0)
        answer = check()
    assert answer is is_drained


def test_a_learner_is_learning_while_its_status_says_so_and_when_enough_traces_wait(
    reader: SpeculatorReader, board, buffer, make_trace
) -> None:
    assert not reader.is_learning(2)
    board.beat("learner:l0", MemberStatus(kind="learning"), 60.0)
    assert reader.is_learning(2)
    board.beat("learner:l0", MemberStatus(kind="published"), 60.0)
    buffer.append([make_trace(0, trace_id="a")])
    assert not reader.is_learning(2)
    buffer.append([make_trace(1, trace_id="b")])
    assert reader.is_learning(2)


def test_a_swap_stalls_the_requests_that_streamed_while_it_committed(reader: SpeculatorReader, board) -> None:
    reported = {"number": 3, "commit_ms": 500.0, "stage_ms": 1.0, "running": 2, "at": 12.0}
    board.beat("replica:r0", status(swaps=[reported]), 60.0)
    (swap,) = reader.swaps()
    assert swap == Swap(3, 500.0, 2, 12.0)
    assert swap.stall_ms([streamed(11.0, 11.25, 12.5), streamed(1.0, 9.0)]) == 1250.0


def test_the_quiet_wait_is_that_of_a_time_as_long_half_way_to_the_next_swap() -> None:
    swap = Swap(3, 500.0, 2, 12.0)
    came = [streamed(12.5, 13.75, 14.5), streamed(11.0, 12.25), streamed(14.25, 19.0)]
    assert swap.quiet_ms(came, 16.0) == 1250.0  # 13.5 .. 14 s
    assert swap.quiet_ms(came, 36.0) is None


def test_swaps_that_no_longer_fit_into_a_heartbeat_are_remembered(reader: SpeculatorReader, board) -> None:
    seen = []
    for first, last in ((1, 3), (3, 5), (5, 5)):
        swaps = [
            {"number": n, "stage_ms": 2.0, "commit_ms": 1.0, "running": n, "at": 10.0 + n}
            for n in range(first, last + 1)
        ]
        board.beat("replica:r0", status(swaps=swaps), 60.0)
        seen.append([swap.number for swap in reader.swaps()])
    assert seen == [[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]


def test_the_weights_of_a_learnt_draft_are_found_and_not_those_of_the_first(
    reader: SpeculatorReader, board, tmp_path
) -> None:
    assert reader.learnt_weights() is None
    for number, parent in ((0, None), (1, 0)):
        folder = tmp_path / str(number)
        publish(board, number, parent=parent, weights_uri=folder.as_uri())
        assert reader.learnt_weights() == (None if number == 0 else folder)
