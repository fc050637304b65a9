"""Every captured trace is delivered, or dropped with a reason, whatever Redis does."""

import msgspec
import pytest
from msgspec.structs import replace
from paceline.buffer.board.counters import TraceCounters
from paceline.buffer.board.farewell import say_ended
from paceline.buffer.board.member_name import MemberName
from paceline.buffer.board.member_status import MemberStatus, TracesSaid
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable, ConfigError, PayloadKeyUnusable
from paceline.buffer.redis_client import TIMEOUT_S
from paceline.policies.canary import CanaryRules
from paceline.policies.guard import GuardLimits
from paceline.serving.breaker import Breaker
from paceline.serving.capture.courier_process import MAX_SILENCE_S
from paceline.serving.courier.assembler import WindowAssembler
from paceline.serving.courier.backlog import APPEND_TRACES
from paceline.serving.courier.courier import APPENDING_S, RETRY_S, Courier
from paceline.serving.courier.split import ended_ids
from paceline.serving.courier.trace_window import trace_maker
from paceline.serving.watch.draft_monitor import DraftMonitor
from paceline.serving.wire.counts import CaptureCounts, DropReason
from paceline.serving.wire.messages import Message
from paceline.serving.wire.request_forward import Commit, TeacherWidth
from twins.memory_board import MemoryVersionBoard
from twins.memory_stream import MemoryTraceBuffer
from wire_forwards import prefill, verify

ENDS = Commit(1, (8, 5), "length")


class FlakyBuffer(MemoryTraceBuffer):
    """The in-memory buffer with a switch that takes it away."""

    is_away = False

    def append(self, traces):
        if self.is_away:
            raise BufferUnavailable("Redis at nowhere: gone; start Redis")
        return super().append(traces)


class Line:
    """The line from the scheduler as a list; a forward that finds it full is lost, as with CourierSender."""

    def __init__(self, max_forwards):
        self.messages, self.next_message, self.max_forwards = [], Message(), max_forwards
        self.status, self.counts, self.member, self.receipts = MemberStatus(), TracesSaid(), "", 0

    def offer(self, forward):
        if len(self.messages) == self.max_forwards:
            lost = self.next_message.lost | dict.fromkeys(forward.head.request_ids, DropReason.QUEUE_FULL)
            self.next_message = Message(lost=lost, ended=(*self.next_message.ended, *ended_ids(forward)))
            return False
        self.messages.append(replace(self.next_message, forwards=(forward,)))
        self.next_message = Message()
        return True

    def take(self, wait_s):
        received = [*self.messages, self.next_message]
        self.messages, self.next_message = [], Message()
        return received

    def acknowledge(self, counts, member):
        self.counts = counts
        self.member = member
        self.receipts += 1


class Rig:
    def __init__(self, line_forwards=100, backlog_bytes=1 << 20, boot="boot", board=None):
        self.now = 1000.0
        self.buffer = FlakyBuffer(BufferConfig(), clock=lambda: self.now)
        self.board = board or MemoryVersionBoard(clock=lambda: self.now)
        self.line, self.counts, self.breaker = Line(line_forwards), CaptureCounts(), Breaker()
        made = WindowAssembler(trace_maker("rep", "t"), self.counts, 100, 10)
        self.courier = Courier(
            self.line,
            TeacherWidth(1, 1),
            assembler=made,
            counts=self.counts,
            breaker=self.breaker,
            buffer=self.buffer,
            board=self.board,
            name=MemberName(self.board, "replica:rep", boot),
            backlog_bytes=backlog_bytes,
            monitor=DraftMonitor(self.board, "rep", CanaryRules(), GuardLimits()),
            clock=lambda: self.now,
        )

    def serve(self, name):
        """One request of one round, both forwards offered to the line."""
        return [self.line.offer(prefill(name)), self.line.offer(verify(name, ENDS))]

    def turn(self, seconds=0.0):
        self.now += seconds
        self.courier.turn(wait_s=0.0)

    def balance(self):
        """captured, delivered, dropped, and what is still on its way, which must add up at any time."""
        status = self.courier.status()
        on_the_way = status.open + status.queued
        assert status.account.captured == status.account.delivered + sum(status.account.dropped.values()) + on_the_way
        return status.account.captured, status.account.delivered, dict(status.account.dropped), on_the_way


def test_served_requests_reach_the_buffer_in_order():
    rig = Rig()
    for i in range(40):
        rig.serve(f"r{i}")
    rig.turn()
    assert rig.balance() == (40, 40, {}, 0)
    assert [e.trace.request_id for e in rig.buffer.claim("c", 100)] == [f"r{i}" for i in range(40)]


def test_a_lost_buffer_costs_nothing_while_the_backlog_lasts_and_delivery_resumes_by_itself():
    rig = Rig()
    rig.buffer.is_away = True
    rig.serve("a")
    rig.turn()
    assert rig.balance() == (1, 0, {}, 1)
    assert "start Redis" in rig.courier.status().buffer_error
    rig.serve("b")
    rig.buffer.is_away = False
    rig.turn()
    assert rig.balance() == (2, 0, {}, 2)  # not before the next try is due
    rig.turn(RETRY_S)
    assert rig.balance() == (2, 2, {}, 0)
    assert rig.courier.status().buffer_error == ""
    assert [e.trace.request_id for e in rig.buffer.claim("c", 9)] == ["a", "b"]


@pytest.mark.parametrize(
    ("kind", "reason"), [(ConfigError, DropReason.RETENTION), (PayloadKeyUnusable, DropReason.PAYLOAD_KEY)]
)
def test_what_redis_must_not_get_is_dropped_and_counted_and_said_once(caplog, kind, reason):
    rig = Rig()
    append = rig.buffer.append

    def refuse(traces):
        raise kind("got appendonly 'yes', expected 'no'")

    rig.buffer.append = refuse
    for name in ("a", "b"):
        rig.serve(name)
        rig.turn()
    assert rig.balance() == (2, 0, {reason: 2}, 0)
    assert [record.message for record in caplog.records] == [
        "paceline: 1 traces cannot be stored: got appendonly 'yes', expected 'no'"
    ]
    assert rig.board.heartbeats()["replica:rep"].account.dropped == {reason: 1}
    rig.buffer.append = append
    rig.serve("c")
    rig.turn()
    assert rig.balance() == (3, 1, {reason: 2}, 0)


def test_a_courier_that_delivers_a_long_backlog_reports_after_every_append_that_it_is_not_hung():
    rig, receipts = Rig(line_forwards=1000), []
    rig.buffer.append, append = lambda traces: receipts.append(rig.line.receipts) or append(traces), rig.buffer.append
    for i in range(5 * APPEND_TRACES):
        rig.serve(f"r{i}")
    rig.turn()
    assert receipts == [0, 1, 2, 3, 4]
    assert rig.line.counts.delivered == 5 * APPEND_TRACES
    # A turn makes fewer than ten calls of Redis between two receipts; each may take a connection and a reply.
    assert MAX_SILENCE_S > 10 * 2 * TIMEOUT_S


@pytest.mark.guarantee("bounded-memory")
def test_a_full_backlog_drops_the_oldest_and_counts_them():
    rig = Rig(backlog_bytes=3 * size_of_one())
    rig.buffer.is_away = True
    for i in range(5):
        rig.serve(f"r{i}")
    rig.turn()
    assert rig.balance() == (5, 0, {DropReason.BACKLOG_FULL: 2}, 3)
    rig.buffer.is_away = False
    rig.turn(RETRY_S)
    assert [e.trace.request_id for e in rig.buffer.claim("c", 9)] == ["r2", "r3", "r4"]


def size_of_one():
    probe = Rig()
    probe.serve("x")
    probe.turn()
    return probe.counts.payload_bytes


def test_what_ends_in_one_turn_may_be_more_than_the_backlog_holds_while_the_buffer_takes_it():
    rig, appends = Rig(backlog_bytes=3 * size_of_one()), []
    rig.buffer.append, append = (
        lambda traces: appends.append((len(traces), rig.line.receipts)) or append(traces),
        rig.buffer.append,
    )
    for i in range(10):
        rig.serve(f"r{i}")
    rig.turn()
    assert rig.balance() == (10, 10, {}, 0)
    assert [e.trace.request_id for e in rig.buffer.claim("c", 99)] == [f"r{i}" for i in range(10)]
    # No receipt before the last append: it would be of all ten, and not all ten would be among its counts.
    assert appends == [(4, 0), (4, 0), (2, 0)]
    assert rig.line.receipts == 2


def test_a_turn_that_appends_for_too_long_drops_rather_than_seem_to_hang():
    rig = Rig(backlog_bytes=3 * size_of_one())
    append = rig.buffer.append

    def slow(traces):
        rig.now += 0.6 * APPENDING_S
        return append(traces)

    rig.buffer.append = slow
    for i in range(14):
        rig.serve(f"r{i}")
    rig.turn()
    # Four overflow the backlog and go as one append, and four more; the rest may not, so its oldest are dropped.
    assert rig.balance() == (14, 11, {DropReason.BACKLOG_FULL: 3}, 0)
    assert [e.trace.request_id for e in rig.buffer.claim("c", 99)] == [f"r{i}" for i in (*range(8), 11, 12, 13)]


def test_an_open_breaker_drops_what_is_open_and_counts_it():
    rig = Rig()
    rig.line.offer(prefill("a"))
    rig.turn()
    rig.breaker.open("three faults")
    rig.turn()
    assert rig.balance() == (1, 0, {DropReason.CAPTURE_OFF: 1}, 0)
    assert (rig.courier.status().capture, rig.courier.status().capture_reason) == ("off", "three faults")


def test_a_forward_that_cannot_be_split_costs_its_own_requests_and_nothing_else():
    rig = Rig()
    rig.line.offer(prefill("a"))
    rig.line.offer(replace(prefill("a", "b"), arrays=()))
    rig.serve("c")
    rig.turn()
    assert [e.trace.request_id for e in rig.buffer.claim("c", 9)] == ["c"]
    assert rig.balance() == (3, 1, {DropReason.INVALID: 2}, 0)
    assert (rig.breaker.faults, rig.breaker.is_open) == (1, False)


def test_what_the_scheduler_reports_is_part_of_the_status_and_opens_the_breaker():
    rig = Rig()
    rig.line.status = MemberStatus(draft_version=3, skipped={"opted_out": 2})
    rig.serve("a")
    rig.turn()
    status = rig.board.heartbeats()["replica:rep"]
    assert (status.draft_version, status.skipped, status.capture) == (3, {"opted_out": 2}, "on")
    assert rig.line.counts.delivered == 1
    rig.line.status.capture_reason = "hook targets: got none"
    rig.turn(1.1)
    status = rig.board.heartbeats()["replica:rep"]
    assert (status.capture, status.capture_reason) == ("off", "hook targets: got none")


def test_the_last_turn_closes_and_delivers_what_is_open():
    rig = Rig()
    rig.line.offer(prefill("a", "without-a-round"))
    rig.serve("b")
    rig.line.offer(verify("a", Commit(1, (8, 5), "")))
    rig.courier.run(lambda: True)
    assert sorted((e.trace.request_id, e.trace.finish) for e in rig.buffer.claim("c", 9)) == [
        ("a", "abandoned"),
        ("b", "length"),
    ]
    assert rig.balance() == (3, 2, {DropReason.NO_ROUNDS: 1}, 0)


def test_requests_lost_without_a_name_are_captured_and_dropped_at_once():
    rig = Rig()
    rig.line.next_message = Message(lost_unnamed={DropReason.QUEUE_FULL: 3})
    rig.serve("a")
    rig.turn()
    rig.turn()
    assert rig.balance() == (4, 1, {DropReason.QUEUE_FULL: 3}, 0)


def test_another_courier_continues_the_counts_and_ignores_what_it_has_not_seen_begin():
    rig = Rig()
    rig.counts.resume(TracesSaid(captured=9, delivered=4, dropped={"gap": 2}, rounds=70, payload_bytes=5), 2)
    rig.courier._assembler.ignore(("cut-off",))
    rig.line.offer(verify("cut-off", ENDS))
    rig.serve("whole")
    rig.turn()
    assert rig.balance() == (12, 5, {DropReason.GAP: 2, DropReason.COURIER_DIED: 5}, 0)
    assert len(rig.courier._assembler) == 0


BEFORE = {"gap": 2, "tap_full": 3, "a_reason_of_tomorrow": 1}  # two that this release does not know


def redis_gone(*_):
    raise BufferUnavailable("Redis at nowhere: gone; start Redis")


def reported_before(rig, **changes):
    """The last status of another server, long silent: it held two traces."""
    counts = TracesSaid(captured=12, delivered=4, dropped=BEFORE, rounds=70, payload_bytes=5, labels_refused=6)
    rig.board.beat("replica:rep", MemberStatus(traces=msgspec.structs.replace(counts, **changes), open=2), 60.0)
    rig.now += 3600.0


def test_a_server_continues_the_counts_of_the_one_before_it_and_counts_what_died_with_it():
    rig = Rig()
    reported_before(rig)
    rig.serve("first")
    for _ in range(3):
        rig.turn(2.0)
    assert rig.balance() == (13, 5, {**BEFORE, DropReason.SERVER_DIED: 2}, 0)
    status = rig.board.heartbeats()["replica:rep"]
    assert (status.account.rounds, status.account.labels_refused) == (71, 6)


def test_a_courier_that_continues_for_another_of_its_server_adopts_the_counts_of_that_one_alone():
    rig = Rig()
    reported_before(rig)
    rig.turn()
    successor = Rig()
    successor.board, successor.courier._board = rig.board, rig.board
    reported_before(rig)  # the courier that died had not reported what it adopted
    successor.counts.resume(rig.line.counts, 0)
    successor.turn()
    assert successor.balance() == rig.balance() == (12, 4, {**BEFORE, DropReason.SERVER_DIED: 2}, 0)


def test_the_last_turn_overwrites_no_counts_that_were_not_adopted():
    rig = Rig()
    reported_before(rig)
    rig.buffer.is_away = True
    rig.serve("first")
    rig.board.last_status, known = redis_gone, rig.board.last_status
    rig.courier.run(lambda: True)
    assert known("replica:rep").account.captured == 12


def test_the_counts_of_the_one_before_are_waited_for_while_redis_is_away(monkeypatch):
    rig = Rig()
    reported_before(rig)
    with monkeypatch.context() as patched:
        patched.setattr(rig.board, "last_status", redis_gone)
        rig.turn()
        assert rig.balance() == (0, 0, {}, 0)
        assert "replica:rep" not in rig.board.heartbeats()  # it would have overwritten them
    rig.turn(RETRY_S)
    assert rig.balance() == (12, 4, {**BEFORE, DropReason.SERVER_DIED: 2}, 0)


def twins():
    """Two servers of one name on one board, which has the later of their clocks."""
    first = Rig(boot="first")
    second = Rig(boot="second", board=first.board)
    first.board._clock = lambda: max(first.now, second.now)
    return first, second


def turn(*rigs, seconds=1.0):
    """One turn of each, one after the other."""
    now = max(rig.now for rig in rigs)
    for rig in rigs:
        rig.turn(now + seconds - rig.now)


def books(board):
    """Of every member: its traces captured, delivered, lost with a server."""
    statuses = {member: seen.said for member, seen in board.members().items()}
    return {
        member: (status.account.captured, status.account.delivered, status.account.dropped.get("server_died", 0))
        for member, status in statuses.items()
    }


@pytest.mark.guarantee("one-name-twice")
def test_two_servers_of_one_name_keep_two_accounts_and_lose_nothing():
    first, second = twins()
    for name in "abc":
        first.serve(name)
        second.serve(name)
        second.serve(name * 2)
        turn(first, second)
    turn(first, second)
    assert books(first.board) == {"replica:rep": (3, 3, 0), "replica:rep~2": (6, 6, 0)}
    assert second.line.member == "replica:rep~2"
    assert first.board.heartbeats()["replica:rep~2"].wanted == "replica:rep"


@pytest.mark.guarantee("one-name-twice")
def test_a_server_back_within_two_seconds_keeps_its_name_and_goes_on_with_the_account():
    first, second = twins()
    first.serve("a")
    first.line.offer(prefill("dies with it"))
    turn(first)
    turn(first)
    second.serve("b")
    second.now = first.now
    for _ in range(5):
        turn(second, seconds=2.0)
        assert second.counts.captured == 1 + 2 * bool(second.courier._account.member)
    turn(second)
    assert books(first.board) == {"replica:rep": (3, 2, 1)}
    assert len(second.buffer.claim("c", 9)) == 1


@pytest.mark.guarantee("one-name-twice")
def test_once_the_other_one_is_said_to_be_gone_a_server_has_the_name_with_both_accounts():
    first, second = twins()
    for rig in (first, second, first, second):
        rig.serve(f"a{rig.now}")
        turn(first, second)
    first.line.offer(prefill("dies with it"))
    turn(first, second)
    gone, own = first.counts.captured, second.counts.captured
    for _ in range(12):
        turn(second)
    assert books(first.board) == {"replica:rep": (gone, gone - 1, 0), "replica:rep~2": (own, own, 0)}
    say_ended(first.board, "replica:rep")
    turn(second)
    assert books(first.board) == {"replica:rep": (gone + own, gone + own - 1, 1)}
    assert second.board.heartbeats()["replica:rep"].boot == "second"
    assert second.counts.since_boot({}).captured == own


@pytest.mark.guarantee("one-name-twice")
def test_a_server_that_was_taken_for_dead_counts_on_apart_and_no_trace_is_counted_twice():
    first, second = twins()
    first.serve("a")
    turn(first)
    turn(first)
    second.now = first.now
    for _ in range(12):  # the first one is suspended
        turn(second)
    assert books(first.board) == {"replica:rep": (1, 1, 0)}
    first.serve("b")
    second.serve("c")
    for _ in range(3):
        turn(first, second)
    assert books(first.board) == {"replica:rep": (2, 2, 0), "replica:rep~2": (1, 1, 0)}
    assert first.counts.since_boot({}) == TraceCounters(captured=2, delivered=2)


@pytest.mark.guarantee("one-name-twice")
def test_a_courier_that_outlives_its_server_leaves_the_name_to_the_next_server_at_once():
    first, second = twins()
    first.serve("a")
    first.courier.run(lambda: True)
    second.serve("b")
    turn(second)
    assert books(first.board) == {"replica:rep": (2, 2, 0)}


def test_while_a_canary_is_out_nobody_is_renamed():
    first, second = twins()
    for _ in range(3):
        turn(first, second)
    second.line.status = MemberStatus(is_canary_out=True)
    for _ in range(12):
        turn(second)
    say_ended(first.board, "replica:rep")
    turn(second)
    assert second.courier._account.member == "replica:rep~2"
    second.line.status = MemberStatus()
    turn(second)
    assert second.courier._account.member == "replica:rep"


def test_a_server_that_ends_before_its_name_is_known_delivers_and_accounts_under_another_one():
    first, second = twins()
    first.serve("a")
    turn(first)
    second.now = first.now
    second.serve("b")
    second.courier.run(lambda: True)
    assert books(first.board) == {"replica:rep": (1, 1, 0), "replica:rep~2": (1, 1, 0)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"captured": -1}, "got a count of -1, expected one of 0 to 2**53"),
        ({"captured": "9"}, "Expected `int`, got `str`"),
        ({"captured": 1 << 60}, "got a count of 1152921504606846976, expected"),
        ({"delivered": 7}, "got 13 traces delivered or dropped, expected at most the 12 captured"),
        ({"dropped": [2]}, "Expected `object`, got `array`"),
    ],
)
def test_a_last_status_that_makes_no_sense_is_ignored_with_a_warning(caplog, changes, message):
    rig = Rig()
    reported_before(rig, **changes)
    rig.serve("first")
    rig.turn()
    assert rig.balance() == (1, 1, {}, 0)
    assert "counts start at zero; of the last status of replica:rep: " in caplog.text
    assert message in caplog.text
    assert rig.courier.status().capture == "on"


@pytest.mark.guarantee("server-clock-set-back")
@pytest.mark.parametrize("is_redis_away", [False, True])
def test_a_clock_set_back_keeps_nobody_waiting(is_redis_away):
    rig = Rig()
    rig.buffer.is_away = is_redis_away
    rig.serve("a")
    rig.turn()
    rig.buffer.is_away = False
    rig.serve("b")
    rig.turn(-3600.0)
    assert rig.board.heartbeats()["replica:rep"].account.captured == 2
    assert rig.counts.delivered == 2


def test_the_status_reaches_the_board_every_second():
    rig = Rig()
    rig.serve("a")
    rig.turn()
    assert rig.board.heartbeats()["replica:rep"].account.captured == 1
    rig.serve("b")
    rig.turn(0.5)
    assert rig.board.heartbeats()["replica:rep"].account.captured == 1
    rig.turn(0.6)
    assert rig.board.heartbeats()["replica:rep"].account.captured == 2


def test_while_a_canary_drafts_on_any_replica_the_status_reaches_the_board_four_times_a_second():
    rig = Rig()
    rig.line.status.is_canary_out = True
    rig.turn()
    for number in range(1, 5):
        rig.serve(f"r{number}")
        rig.turn(0.2)
        assert rig.board.heartbeats()["replica:rep"].account.captured == number - 1
        rig.turn(0.05)
        assert rig.board.heartbeats()["replica:rep"].account.captured == number


def test_a_fault_in_the_courier_opens_the_breaker_and_does_not_end_it():
    rig, turns = Rig(), []

    def broken(wait_s):
        turns.append(wait_s)
        raise ValueError("odd forward")

    rig.courier.turn = broken
    ends = iter([False, True])
    rig.courier.run(lambda: next(ends))
    assert (len(turns), rig.breaker.reason) == (2, "courier: ValueError: odd forward")
    assert rig.line.receipts == 2  # it is faulty and not hung
