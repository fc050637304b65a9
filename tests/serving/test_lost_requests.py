"""A request that loses a forward is counted once, and by the right reason: from the scheduler's end of the line on."""

import pytest
from paceline.buffer.board.member_name import MemberName
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.config import BufferConfig
from paceline.policies.canary import CanaryRules
from paceline.policies.guard import GuardLimits
from paceline.serving.breaker import Breaker
from paceline.serving.capture.courier_sender import CourierSender
from paceline.serving.courier.assembler import IDLE_CLOSE_S, WindowAssembler
from paceline.serving.courier.courier import Courier
from paceline.serving.courier.receiver import CourierReceiver
from paceline.serving.courier.trace_window import trace_maker
from paceline.serving.watch.draft_monitor import DraftMonitor
from paceline.serving.wire.counts import CaptureCounts, DropReason
from paceline.serving.wire.messages import PrefillHead, VerifyHead, to_wire
from paceline.serving.wire.request_forward import Commit, TeacherWidth
from twins.memory_board import MemoryVersionBoard
from twins.memory_stream import MemoryTraceBuffer
from waiting import until
from wire_forwards import prefill, verify

FIRST, SECOND = Commit(1, (8, 5), ""), Commit(3, (8, 5), "")
ENDS = SECOND._replace(finish="length")
#: What SGLang commits in the round it had launched before it knew that the request ends.
OVERSHOOT = Commit(-1, (), "length")


class Served:
    """Both ends of a line in one process, with all parts of the courier but Redis."""

    def __init__(self, endpoint):
        self.now, self.counts, breaker = 1000.0, CaptureCounts(), Breaker()
        self.sender = CourierSender(endpoint, 1 << 20)
        self.receiver = CourierReceiver(endpoint, lambda _: None)
        board = MemoryVersionBoard(clock=lambda: self.now)
        made = WindowAssembler(trace_maker("rep", "t"), self.counts, 100, 10)
        monitor = DraftMonitor(board, "rep", CanaryRules(), GuardLimits())
        buffer = MemoryTraceBuffer(BufferConfig(), clock=lambda: self.now)
        name = MemberName(board, "replica:rep", "boot")
        self.courier = Courier(
            self.receiver,
            TeacherWidth(1, 1),
            assembler=made,
            counts=self.counts,
            breaker=breaker,
            buffer=buffer,
            board=board,
            name=name,
            backlog_bytes=1 << 20,
            monitor=monitor,
            clock=lambda: self.now,
        )
        self.reports = 0

    def send(self, *forwards):
        assert self.sender.offer(forwards)

    def lose(self, forward, reason):
        """As the outbox does it: for want of room, on a fault, or while the target is being loaded."""
        if reason == "queue_full":
            self.sender.refuse([forward.head])
        else:
            head = forward.head
            self.sender.lose(
                head.request_ids, head.commits, DropReason(reason), may_begin=isinstance(head, PrefillHead)
            )

    def balance(self):
        """captured, delivered, dropped, open: once all that was sent has been read, in one turn of the courier."""
        self.reports += 1
        self.sender.report(MemberStatus(draft_version=self.reports))
        until(
            lambda: self.courier.turn(0.0) or self.receiver.status == MemberStatus(draft_version=self.reports),
            "the last report",
        )
        status = self.courier.status()
        return status.account.captured, status.account.delivered, status.account.dropped, status.open


@pytest.fixture
def served(tmp_path):
    made = Served(f"ipc://{tmp_path}/line")
    yield made
    made.sender.close()
    made.receiver.close()


each_reason = pytest.mark.parametrize("reason", ["queue_full", "fault", "target_loading"])
#: Whether the courier takes a turn before the loss, or reads what was sent before and after it in one.
in_one_turn_or_two = pytest.mark.parametrize("turns", [1, 2])


@each_reason
@in_one_turn_or_two
def test_a_request_that_continues_after_the_loss_is_dropped_once(served, reason, turns):
    served.send(prefill("a"))
    if turns == 2:
        assert served.balance() == (1, 0, {}, 1)
    served.lose(verify("a", FIRST), reason)
    served.send(verify("a", SECOND))
    served.send(verify("a", ENDS), verify("a", OVERSHOOT))
    assert served.balance() == (1, 0, {reason: 1}, 0)


@each_reason
@in_one_turn_or_two
def test_a_request_that_ends_in_the_loss_is_dropped_once_and_its_name_is_free(served, reason, turns):
    served.send(prefill("a"), verify("a", FIRST))
    if turns == 2:
        assert served.balance() == (1, 0, {}, 1)
    served.lose(verify("a", ENDS), reason)
    served.send(verify("a", OVERSHOOT))
    assert served.balance() == (1, 0, {reason: 1}, 0)
    served.send(prefill("a"), verify("a", FIRST), verify("a", ENDS))
    assert served.balance() == (2, 1, {reason: 1}, 0)


@each_reason
@in_one_turn_or_two
def test_a_round_that_overshot_the_end_of_a_request_costs_nothing_when_it_is_lost(served, reason, turns):
    served.send(prefill("a"), verify("a", FIRST), verify("a", ENDS))
    if turns == 2:
        assert served.balance() == (1, 1, {}, 0)
    served.lose(verify("a", OVERSHOOT), reason)
    served.send(prefill("b"))
    assert served.balance() == (2, 1, {}, 1)


@each_reason
def test_requests_that_begin_in_the_loss_are_counted_once_whether_they_end_in_it_or_not(served, reason):
    for name in ("ends", "continues"):
        served.lose(prefill(name), reason)
        served.lose(verify(name, FIRST), reason)
    served.lose(verify("ends", ENDS), reason)
    served.send(verify("continues", SECOND), verify("continues", ENDS))
    assert served.balance() == (2, 0, {reason: 2}, 0)
    for name in ("ends", "continues"):
        served.send(prefill(name), verify(name, FIRST), verify(name, ENDS))
    assert served.balance() == (4, 2, {reason: 2}, 0)


@each_reason
def test_two_requests_of_one_name_in_one_loss_are_two(served, reason):
    served.send(prefill("a"))
    served.lose(verify("a", ENDS), reason)
    served.lose(prefill("a"), reason)
    served.send(verify("a", FIRST), verify("a", ENDS))
    assert served.balance() == (2, 0, {reason: 2}, 0)


def test_a_forward_lost_at_its_launch_drops_its_request_before_that_was_ever_sent(served):
    served.sender.lose(["a"])  # its prefill has been launched as well, and waits for its commit
    served.send(prefill("a"), verify("a", SECOND), verify("a", ENDS))
    assert served.balance() == (1, 0, {"fault": 1}, 0)


def test_a_request_whose_beginning_no_hook_saw_is_a_fault_and_counted_once(served):
    served.send(verify("a", FIRST), verify("a", SECOND), verify("a", ENDS), verify("a", OVERSHOOT))
    assert served.balance() == (1, 0, {"fault": 1}, 0)


def test_a_request_that_continues_after_its_window_was_closed_as_idle_is_a_gap(served):
    served.send(prefill("a"), verify("a", FIRST))
    assert served.balance() == (1, 0, {}, 1)
    served.now += IDLE_CLOSE_S + 1.0
    assert served.balance() == (1, 1, {}, 0)
    served.send(verify("a", SECOND), verify("a", ENDS))
    assert served.balance() == (2, 1, {"gap": 1}, 0)


def test_a_forward_that_cannot_be_split_costs_no_request_that_had_ended(served):
    head = VerifyHead(
        request_ids=("a", "b"), draft_version=0, target_version="0", commits=(OVERSHOOT, FIRST), is_greedy=(True, True)
    )
    served.send(prefill("a", commit=ENDS), prefill("b"))
    served.send(to_wire(head, {}))  # its arrays are missing
    served.send(verify("b", SECOND), verify("b", ENDS))
    assert served.balance() == (2, 0, {"no_rounds": 1, "invalid": 1}, 0)
