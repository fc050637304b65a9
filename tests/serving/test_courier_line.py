"""The line between scheduler and courier: in order and bounded; a courier that died or hangs is replaced."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from itertools import pairwise

import numpy as np
import pytest
from paceline.buffer.board.member_status import MemberStatus, TracesSaid
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.keys import BOOT
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.buffer.stream.trace import Sampling, VerdictRule
from paceline.serving import config
from paceline.serving.breaker import Breaker
from paceline.serving.capture.courier_process import LOOK_S, MAX_BACKOFF_S, MAX_SILENCE_S, CourierProcess
from paceline.serving.capture.courier_sender import MAX_RUNNING, CourierSender
from paceline.serving.capture.lost_requests import MAX_LOST
from paceline.serving.courier.receiver import RECEIPT_S, CourierReceiver
from paceline.serving.courier.split import split
from paceline.serving.wire.counts import DropReason
from paceline.serving.wire.messages import (
    BEST_IDS,
    FEATURES,
    LARGE_BYTES,
    READ_IDS,
    VERDICTS,
    PrefillHead,
    Resume,
    VerifyHead,
    to_wire,
)
from paceline.serving.wire.request_forward import Commit, RequestFacts, TeacherWidth
from waiting import until

FACTS = RequestFacts(tenant="", sampling=Sampling(), verdict_rule=VerdictRule.GREEDY)


def prefill(name):
    arrays = {READ_IDS: np.arange(3, dtype=np.int32), FEATURES: np.zeros((3, 4), np.float32)}
    return to_wire(
        PrefillHead(
            request_ids=(name,),
            draft_version=0,
            target_version="0",
            commits=(Commit(0, (7,), ""),),
            facts=(FACTS,),
            spans=((0, 0, 3),),
        ),
        arrays,
    )


def verify(name, finish="length"):
    arrays = {
        VERDICTS: np.asarray([[7, 8, 9, 3, 2]], np.int32),
        FEATURES: np.zeros((2, 4), np.float32),
        BEST_IDS: np.zeros((1, 3), np.int32),
    }
    return to_wire(
        VerifyHead(
            request_ids=(name,),
            draft_version=0,
            target_version="0",
            commits=(Commit(1, (8, 5), finish),),
            is_greedy=(True,),
        ),
        arrays,
    )


@pytest.fixture
def endpoint(tmp_path):
    return f"ipc://{tmp_path}/line"


class Clock:
    """Stands still unless a test moves it."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def line(endpoint, clock):
    """Both ends in one process."""
    resumed = []
    sender = CourierSender(endpoint, 4000)
    receiver = CourierReceiver(endpoint, resumed.append, clock)
    yield sender, receiver, resumed
    sender.close()
    receiver.close()


def taken(receiver, count):
    """Wait for `count` forwards; with them, which requests were lost."""
    forwards, lost = [], set()
    for _ in range(2000):
        for received in receiver.take(0.005):
            forwards += received.forwards
            lost |= received.lost.keys()
        if len(forwards) >= count:
            return [forward.head.request_ids[0] for forward in forwards], lost
    pytest.fail(f"got {len(forwards)} forwards, expected {count}")


def test_forwards_arrive_in_order_with_the_status(line):
    sender, receiver, _ = line
    for name in "abc":
        assert sender.offer([prefill(name)])
    sender.report(MemberStatus(draft_version=5))
    assert sender.offer([prefill("d")])
    assert taken(receiver, 4) == (["a", "b", "c", "d"], set())
    assert receiver.status == MemberStatus(draft_version=5)


def test_large_arrays_cross_the_line_without_a_copy_and_are_let_go_once_they_are_sent(endpoint, clock):
    head = PrefillHead(
        request_ids=("a",),
        draft_version=0,
        target_version="0",
        commits=(Commit(0, (7,), ""),),
        facts=(FACTS,),
        spans=((0, 0, 3),),
    )
    rows = np.random.default_rng(0).integers(0, 255, (3, LARGE_BYTES), np.uint8)
    held, wanted, arrived = weakref.ref(rows), rows.tolist(), []
    with contextlib.closing(CourierSender(endpoint, 8 * LARGE_BYTES)) as sender:
        assert sender.offer([to_wire(head, {READ_IDS: np.arange(3, dtype=np.int32), FEATURES: rows})])
        assert sender.sent_bytes > 3 * LARGE_BYTES
        assert not sender.has_room(5 * LARGE_BYTES)
        del rows
        assert held() is not None  # nobody listens yet: what waits is the array itself
        with contextlib.closing(CourierReceiver(endpoint, lambda _: None, clock)) as receiver:
            until(lambda: arrived.extend(receiver.take(0.005)) or arrived, "the message")
            (share,) = split(arrived[0].forwards[0], TeacherWidth(1, 1))
            assert share.features.tolist() == wanted
            until(lambda: held() is None, "the array to be let go")
            receiver.acknowledge(TracesSaid(), "")
            until(lambda: sender.has_room(8 * LARGE_BYTES), "the receipt of all of it")


def test_a_server_that_ends_while_large_arrays_wait_ends_at_once():
    program = """
import numpy as np, sys
from paceline.serving.capture.courier_sender import CourierSender
from paceline.serving.wire.messages import FEATURES, PrefillHead, to_wire
from paceline.serving.wire.request_forward import Commit
sender = CourierSender(sys.argv[1], 1 << 30)
head = PrefillHead(
    request_ids=("a",),
    draft_version=0,
    target_version="0",
    commits=(Commit(0, (7,), ""),),
    facts=(),
    spans=((0, 0, 3),),
)
assert sender.offer([to_wire(head, {FEATURES: np.zeros(1 << 20, np.uint8)})])
sender.resume()
assert sender.offer([to_wire(head, {FEATURES: np.zeros(1 << 20, np.uint8)})])
"""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", program, f"ipc://{folder}/line"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600.0, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_line_loses_whole_forwards_names_their_requests_and_recovers_once_it_is_read(line):
    sender, receiver, _ = line
    are_sent = [sender.offer([prefill(f"r{i}")]) for i in range(60)]
    fits = are_sent.index(False)
    assert 5 < fits < 60
    assert not any(are_sent[fits:])
    assert taken(receiver, fits) == ([f"r{i}" for i in range(fits)], set())
    receiver.acknowledge(TracesSaid(), "")
    until(lambda: sender._socket.poll(0), "the receipt")
    assert sender.offer([prefill("late")])
    assert taken(receiver, 1) == (["late"], {f"r{i}" for i in range(fits, 60)})


def test_requests_that_a_fault_lost_are_told_from_those_that_found_the_line_full(line):
    sender, receiver, _ = line
    sender.lose(["faulty", "both"])
    sender.refuse([prefill(name).head for name in ("both", "full")])
    sender.offer([prefill("a")])
    arrived = []
    until(lambda: arrived.extend(receiver.take(0.005)) or arrived, "the message")
    assert arrived[0].lost == dict.fromkeys(("faulty", "both"), DropReason.FAULT) | {"full": DropReason.QUEUE_FULL}


@pytest.mark.guarantee("bounded-memory")
def test_a_courier_that_does_not_read_lets_nothing_grow(line):
    sender, receiver, _ = line
    while sender.offer([prefill("first")]):
        pass
    most_bytes = sender._unread_bytes() + 5000  # one status beyond what is full
    for number in range(3000):
        sender.report(MemberStatus(draft_version=number, capture_reason="x" * 1000))
        sender.refuse([prefill(f"r{number}").head, verify(f"r{number}").head])
    assert sender._unread_bytes() < most_bytes
    for number in range(3000, 3000 + MAX_LOST + 500):
        sender.offer([prefill(f"r{number}"), verify(f"r{number}", finish="")])
    assert len(sender._lost.named) == MAX_LOST
    assert len(sender._begun) < 100
    lost, unnamed = set(), 0

    def is_last_status_here():
        nonlocal unnamed
        for received in receiver.take(0.0):
            lost.update(received.lost)
            unnamed += sum(received.lost_unnamed.values())
        receiver.acknowledge(TracesSaid(), "")
        sender.report(MemberStatus(capture_reason="last"))
        return receiver.status == MemberStatus(capture_reason="last")

    until(is_last_status_here, "the newest status")
    assert len(lost - {"first"}) + unnamed == 3000 + MAX_LOST + 500  # each request once, and by name or number
    assert not sender._lost
    until(lambda: sender.read_receipts() and not sender._begun, "the receipt of that")


def test_the_next_courier_is_sent_the_position_of_the_last_one(line):
    sender, receiver, resumed = line
    assert sender.offer([prefill("running"), prefill("ended"), verify("ended")])
    assert taken(receiver, 3)[1] == set()
    receiver.acknowledge(TracesSaid(captured=2), "")
    until(sender.read_receipts, "the receipt")
    sender.offer([prefill("unseen")])  # after the receipt, and ended before the death: only the sender knows of it
    sender.offer([verify("unseen")])
    sender.resume()
    sender.offer([prefill("next")])
    names = []
    while "next" not in names:  # what waited on the old line may have come through or not
        names += taken(receiver, 1)[0]
    assert resumed == [Resume(TracesSaid(captured=2), ("running",), 1)]


def test_a_courier_that_dies_before_it_reads_its_position_passes_it_on(line):
    sender, receiver, _ = line
    assert sender.offer([prefill("a")])
    taken(receiver, 1)
    receiver.acknowledge(TracesSaid(captured=1), "")
    until(sender.read_receipts, "the receipt")
    sender.offer([prefill("b")])
    assert sender.resume() == Resume(TracesSaid(captured=1), ("a", "b"), 1)
    sender.offer([prefill("c"), verify("c")])
    assert sender.resume() == Resume(TracesSaid(captured=1), ("a", "b"), 2)


def test_a_receipt_is_repeated_so_that_silence_means_a_hang(line, clock):
    sender, receiver, _ = line

    def receipts():
        for _ in range(3):
            receiver.acknowledge(TracesSaid(captured=1), "")
        return sender.read_receipts()

    until(receipts, "the first receipt")
    assert receipts() == 1
    clock.now_s += RECEIPT_S
    until(lambda: receipts() > 1, "the same receipt again")
    assert receipts() == 2


def test_requests_that_never_report_their_end_are_forgotten_at_last(line):
    sender, _, _ = line
    for number in range(MAX_RUNNING + 3):
        sender._follow(prefill(f"r{number}").head)
    assert len(sender._running) == MAX_RUNNING
    assert "r2" not in sender._running
    assert f"r{MAX_RUNNING + 2}" in sender._running


def settings_for(redis_url):
    return config.ServingConfig(redis_url=redis_url, buffer=BufferConfig(), replica="rep")


@pytest.fixture
def courier(redis_url, redis_client, monkeypatch, clock):
    monkeypatch.setenv("PACELINE_REDIS_URL", redis_url)
    process = CourierProcess(
        settings_for(redis_url),
        "boot",
        breaker=Breaker(),
        status=lambda: MemberStatus(draft_version=7),
        is_canary_out=lambda: False,
        clock=clock,
    )
    process._spawn()  # without the thread: the test looks after it itself
    yield process
    process.stop()


@pytest.fixture
def status(courier, redis_client):
    board = RedisVersionBoard(redis_client, BufferConfig())

    def read(of=courier):
        of.look()
        return board.heartbeats().get("replica:rep", MemberStatus())

    return read


def is_acknowledged(courier, status):
    """Whether the first delivery has reached the board, and the sender as well."""
    receipt = courier.sender._receipt
    return status.account.delivered == 1 and receipt is not None and receipt.counts.delivered == 1


def restarts(said):
    return said.courier.restarts if said.courier else 0


def kill(courier):
    courier._process.kill()
    courier._process.wait()


def hang(courier, clock):
    """Suspend the courier until it is killed for it; every look finds it so many seconds later."""
    hung = courier._process
    os.kill(hung.pid, signal.SIGSTOP)
    until(lambda: os.waitid(os.P_PID, hung.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG), "the courier to stop")
    for _ in range(int(MAX_SILENCE_S / LOOK_S) + 2):
        clock.now_s += LOOK_S
        courier.look()
    assert hung.wait(240.0) == -signal.SIGKILL


@pytest.mark.guarantee("courier-hangs")
@pytest.mark.parametrize("end", ["kill", "hang"])
def test_a_courier_that_ends_at_work_is_replaced_and_every_trace_is_accounted_for(
    courier, clock, status, redis_client, end
):
    buffer = RedisTraceBuffer(redis_client, BufferConfig())
    for name in ("a", "b"):
        courier.sender.offer([prefill(name)])
    courier.sender.offer([verify("a")])
    until(lambda: is_acknowledged(courier, status()), "the first trace, in the heartbeat and in a receipt")
    assert (status().account.captured, status().draft_version, status().courier.fault) == (2, 7, "")
    first = courier._process.pid
    if end == "kill":
        kill(courier)
    else:
        hang(courier, clock)
    courier.look()
    clock.now_s += LOOK_S
    courier.look()
    assert courier._process.pid != first
    courier.sender.offer([verify("b")])  # its beginning died with the courier
    courier.sender.offer([prefill("c")])
    courier.sender.offer([verify("c")])
    until(lambda: status().account.delivered == 2, "the trace after the death")
    after = status()
    assert (after.account.captured, after.account.dropped, after.open) == (3, {"courier_died": 1}, 0)
    assert after.courier.restarts == 1
    assert after.courier.fault.startswith("ended with -9")
    assert ("no receipt for 60 s" in after.courier.fault) == (end == "hang")
    assert [entry.trace.request_id for entry in buffer.claim("c", 9)] == ["a", "c"]


def test_a_server_that_was_suspended_with_its_courier_kills_nobody(courier, clock, status):
    until(lambda: status().boot, "the first heartbeat")
    for _ in range(3):
        clock.now_s += 10 * MAX_SILENCE_S
        courier.look()
    assert courier._process.poll() is None
    assert not courier._is_hung


@pytest.mark.guarantee("courier-dies-at-once")
def test_couriers_that_die_at_once_are_started_ever_less_often_and_the_status_says_so(
    courier, clock, status, monkeypatch
):
    until(lambda: status().boot, "the first heartbeat")
    kill(courier)
    starts_at_s = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        while clock.now_s < 300.0:
            courier.look()
            if courier._process is not None:
                starts_at_s.append(clock.now_s)
                courier._process.wait()
            clock.now_s += LOOK_S
    waits_s = [after - before for before, after in pairwise(starts_at_s)]
    assert [round(wait_s / LOOK_S) for wait_s in waits_s[:4]] == [3, 5, 9, 17]  # doubled, and the look that finds it
    assert max(waits_s) <= MAX_BACKOFF_S + LOOK_S
    assert waits_s == sorted(waits_s)
    while courier._process is None:
        clock.now_s += LOOK_S
        courier.look()
    until(lambda: restarts(status()) > 6, "the heartbeat of a courier that lives")
    assert status().courier.backoff_s == MAX_BACKOFF_S
    assert status().courier.fault == "ended with 1, 1 s after its start"
    clock.now_s += 2 * MAX_BACKOFF_S
    kill(courier)
    courier.look()
    assert courier._process is not None  # one that has lived for long is replaced at once


def test_a_courier_that_cannot_be_started_is_tried_again_and_its_counts_stay(courier, clock, status, monkeypatch):
    courier.sender.offer([prefill("a"), verify("a")])
    until(lambda: is_acknowledged(courier, status()), "the first trace, in the heartbeat and in a receipt")
    kill(courier)
    courier.look()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        for _ in range(2):
            clock.now_s += 5 * LOOK_S
            with pytest.raises(FileNotFoundError):
                courier.look()
    clock.now_s += 5 * LOOK_S
    until(lambda: restarts(status()) == 1, "another courier")
    assert (status().account.captured, status().account.delivered, status().account.dropped) == (1, 1, {})


@pytest.fixture
def other(courier, redis_url):
    """The courier of another server of the same name."""
    process = CourierProcess(
        settings_for(redis_url),
        "other",
        breaker=Breaker(),
        status=lambda: MemberStatus(draft_version=8),
        is_canary_out=lambda: False,
    )
    yield process
    process.stop()


def test_what_died_with_a_whole_server_is_counted_by_the_next_one(courier, status, other, redis_client):
    courier.sender.offer([prefill("a"), prefill("b"), verify("a")])
    until(lambda: (status().account.delivered, status().open) == (1, 1), "the first trace")
    kill(courier)
    other._spawn()
    redis_client.delete(BOOT.name("default", "replica:rep"))  # as it expires ten seconds after the last beat
    until(lambda: status(other).draft_version == 8, "the next server's first status")
    after = status(other)
    assert (after.account.captured, after.account.delivered, after.account.dropped) == (2, 1, {"server_died": 1})


@pytest.mark.guarantee("one-name-twice")
def test_two_servers_of_one_name_are_two_members_and_a_courier_that_takes_the_place_of_another_is_none(
    courier, status, other, redis_client
):
    until(lambda: status().draft_version == 7, "the first server's status")
    other._spawn()
    until(lambda: status(other).boot and other.replica == "rep~2", "the name of the second server")
    kill(other)
    other.look()
    board = RedisVersionBoard(redis_client, BufferConfig())
    until(
        lambda: status(other) and restarts(board.heartbeats().get("replica:rep~2", MemberStatus())) == 1,
        "the next courier of the second server",
    )
    told = {member: (beat.boot, beat.draft_version) for member, beat in board.heartbeats().items()}
    assert told == {"replica:rep": ("boot", 7), "replica:rep~2": ("other", 8)}
    assert (courier.replica, other.replica) == ("rep", "rep~2")
