"""The counters in a replica's heartbeat: of one boot, never smaller than before, and small enough for every second."""

import time
from types import SimpleNamespace

import msgspec
import pytest
from paceline.buffer.board.counters import (
    MAX_DRAFTS,
    Counters,
    SchedulerCounters,
    StepCell,
    TraceCounters,
    counters_of,
)
from paceline.buffer.board.member_status import (
    MemberStatus,
    ProcessSaid,
    RefusalSaid,
    SwapSaid,
    TracesSaid,
)
from paceline.buffer.board.speculation import Speculation
from paceline.policies.canary import CanaryRules
from paceline.policies.guard import GuardLimits
from paceline.serving.clock.step_cells import StepCells
from paceline.serving.courier.account import adopt_last_counts
from paceline.serving.courier.heartbeat import KEPT_BEGINS, KEPT_REQUESTS, KEPT_SWAPS, MAX_BEAT_BYTES, fitted
from paceline.serving.courier.redis_clock import LOOK_S, RedisClock
from paceline.serving.courier.replica_counters import ReplicaCounters
from paceline.serving.watch.draft_monitor import REPORTED_REQUESTS, DraftMonitor
from paceline.serving.wire.counts import CaptureCounts, DropReason
from said import said_by
from served_rounds import prefill, verify
from twins.memory_board import MemoryVersionBoard

MEMBER = "replica:rep"


@pytest.fixture
def board():
    return MemoryVersionBoard(clock=lambda: 100.0)


def reported(boot="b1", **more):
    """What the scheduler process says."""
    scheduler = SchedulerCounters(steps=[StepCell(bucket=1, draft_steps=3, steps=4)], rounds=40)
    of = Counters(at=1.0, boot=boot, draft=2, target_version="7", scheduler=scheduler)
    return MemberStatus(skipped={"opted_out": 2}, counters=of, **more)


def filled(counters, now, said):
    counters.fill(said, now)
    return said


def serve(counters, name="r", draft=2, accepted=(1, 2)):
    for forward in (prefill(name), *(verify(name, draft, one) for one in accepted)):
        counters.add(forward, 50.0)


def rounds_of(status):
    return sum(cell.rounds for cell in counters_of(status.counters).served.cells)


def test_the_couriers_counters_join_those_of_the_scheduler(board):
    counts = CaptureCounts()
    counters = ReplicaCounters(counts)
    counters.look(board, MEMBER, 50.0)
    counts.opened()
    counts.drop(DropReason.GAP)
    serve(counters)
    found = counters_of(filled(counters, 60.0, reported()).counters)
    assert (found.at, found.boot, found.draft, found.target_version) == (60.0, "b1", 2, "7")
    assert found.scheduler.rounds == 40
    assert [(cell.draft, cell.rounds, cell.accepted) for cell in found.served.cells] == [(2, 2, 3)]
    assert (found.traces.captured, found.traces.dropped, found.traces.skipped) == (1, {"gap": 1}, {"opted_out": 2})


def test_before_the_scheduler_has_said_which_boot_it_is_there_are_no_counters(board):
    counters = ReplicaCounters(CaptureCounts())
    # nor before it is known what a courier before this one counted
    assert filled(counters, 60.0, reported()).counters is None
    counters.look(board, MEMBER, 50.0)
    assert filled(counters, 60.0, MemberStatus()).counters is None
    assert filled(counters, 60.0, MemberStatus(counters={"boot": 7})).counters is None


@pytest.mark.parametrize(("boot", "goes_on"), [("b1", True), ("b2", False)])
def test_a_courier_goes_on_from_the_last_heartbeat_of_the_same_boot_alone(board, boot, goes_on):
    first = ReplicaCounters(CaptureCounts())
    first.look(board, MEMBER, 50.0)
    serve(first)
    board.beat(MEMBER, filled(first, 60.0, reported()), 10.0)
    serve(first, "unsaid")  # after its last heartbeat: in no counter
    second = ReplicaCounters(CaptureCounts())
    serve(second, "s", accepted=(0,))
    second.look(board, MEMBER, 70.0)
    assert rounds_of(filled(second, 70.0, reported(boot))) == (3 if goes_on else 1)
    second.look(board, MEMBER, 71.0)
    assert rounds_of(filled(second, 71.0, reported(boot))) == (3 if goes_on else 1)  # taken over once


@pytest.mark.parametrize("odd", ["odd", {"boot": "b1", "served": 3}, None])
def test_a_last_heartbeat_that_makes_no_sense_is_none(board, odd):
    board._last_statuses[MEMBER] = (100.0, msgspec.json.encode({"counters": odd}))  # as another release may write it
    counters = ReplicaCounters(CaptureCounts())
    counters.look(board, MEMBER, 50.0)
    serve(counters)
    assert rounds_of(filled(counters, 60.0, reported())) == 2


def test_what_the_server_before_this_one_captured_is_not_of_this_boot(board):
    board.beat(MEMBER, MemberStatus(traces=TracesSaid(captured=10, delivered=6, dropped={"gap": 1})), 10.0)
    counts = CaptureCounts()
    counts.opened()
    adopt_last_counts(board, MEMBER, counts)
    counts.deliver(1, 100)
    assert (counts.captured, counts.delivered, dict(counts.dropped)) == (11, 7, {"gap": 1, "server_died": 3})
    found = counts.since_boot({})
    assert (found.captured, found.delivered, found.dropped) == (1, 1, {})
    # Another courier of this server goes on from the receipt, which says so too.
    later = CaptureCounts()
    later.resume(counts.told(), begun_since=1)
    assert later.since_boot({}).captured == 2
    assert later.since_boot({}).dropped == {"courier_died": 1}


def fullest(board):
    """Everything that a heartbeat may hold, counted for months, of a server that does not pace."""
    steps, counts = StepCells(), CaptureCounts()
    counters, monitor = ReplicaCounters(counts), DraftMonitor(board, "rep", CanaryRules(), GuardLimits())
    counters.look(board, MEMBER, 50.0)
    for draft in range(100, 100 + MAX_DRAFTS + 2):
        for i in range(16):
            for kind in ("greedy", "sampled", "edited"):
                name = f"{draft}-{i}-{kind}"
                counters.add(prefill(name, f"a-label-of-some-length/{i:02}", kind), 50.0)
                counters.add(verify(name, draft, 4, width=5, finish="stop"), 50.0)
    for cell in counters._served._cells._cells.values():
        cell.rounds, cell.accepted, cell.ended = (
            12_345_678,
            23_456_789,
            (123_456, 12_345_678, 23_456_789, *[10**10] * 3),
        )
    for row in counters._served._cells._positions.values():
        row.tried, row.stood = [12_345_678] * 5, [9_876_543] * 5
        row.output_rounds, row.output_accepted = [12_345_678] * 5, [23_456_789] * 5
        row.context_rounds, row.context_accepted = [12_345_678] * 4, [23_456_789] * 4
    counters._served._lengths = [1_234_567] * 13
    for batch in (1, 2, 4, 8, 16, 32, 64, 128):
        steps.add(batch, 5, took_s=0.01, tokens=10**9, requests=10**8)
    for i in range(REPORTED_REQUESTS):
        for at in range(120):
            monitor.add(verify(f"long-{i}", 109, 3, finish="stop" if at == 119 else ""))
            monitor.add(verify(f"running-{i}", 109, 3))
    swap = {"commit_ms": 1.8123456, "stage_ms": 35.1234567, "running": 64}
    swaps = [
        SwapSaid(number=i, before=i - 1, at=1763848484.123456 + i, asked_at=1763848483.1234567 + i, **swap)
        for i in range(45, 109)
    ]
    cells = msgspec.structs.replace
    scheduler = SchedulerCounters(
        steps=[cells(cell, steps=10**8, durations=[0] * 3 + [10**7] * 4 + [0] * 5) for cell in steps.cells()],
        seconds={"decode": 1234567.123, "prefill": 123456.123, "swap": 123.123, "idle": 1234567.123},
        requests_ended=10**7, rounds=10**9, accepted=10**9, swaps=109, swaps_refused=7,
    )  # fmt: skip
    of = Counters(at=1763848484.1, boot="0123456789abcdef", draft=109, target_version="step-1234", scheduler=scheduler)
    server = ProcessSaid(
        boot="0123456789abcdef",
        started_at=1763848484.1,
        host="gpu-node-17.cluster.example.org",
        paceline="0.1.0",
        sglang="0.5.23",
        speculation=Speculation(algorithm="EAGLE3", num_steps=5, eagle_topk=1, num_draft_tokens=6, adaptive=False),
    )
    refusals = [RefusalSaid(number=i, promoted_at=1763848484.123456, why="w" * 160) for i in range(2)]
    said = MemberStatus(counters=of, swaps=swaps, server=server, skipped={"sampled_out": 10**7}, refusals=refusals)
    return monitor, counters, counts, said


def heartbeat(monitor, counters, counts, said):
    found = msgspec.structs.replace(said, at=1763848484.123, capture="on", open=64, queued=0, traces=counts.told())
    monitor.fill(found)
    return fitted(filled(counters, time.time(), found))


def test_a_heartbeat_stays_under_eight_kilobytes_whatever_was_counted(board):
    full = fullest(board)
    found, whole = heartbeat(*full), said_by(full[0]).stretches
    assert len(msgspec.json.encode(found)) <= MAX_BEAT_BYTES < 8192
    assert [swap.number for swap in found.swaps][-KEPT_SWAPS:] == [105, 106, 107, 108]
    assert len(found.stretches.ended) >= KEPT_REQUESTS
    assert found.stretches.ended == whole.ended[-len(found.stretches.ended) :]
    assert len(found.stretches.begun) >= KEPT_BEGINS
    assert found.stretches.begun == whole.begun[-len(found.stretches.begun) :]
    assert found.traces.before_boot is None


def test_a_heartbeat_with_room_has_all_its_swaps_with_figures_of_a_sensible_length():
    swap = SwapSaid(number=1, commit_ms=1.23456, stage_ms=2.3456, at=100.12345, running=3)
    found = fitted(MemberStatus(swaps=[swap] * 30, traces=TracesSaid(captured=3, before_boot=TraceCounters())))
    cut = SwapSaid(number=1, commit_ms=1.235, stage_ms=2.3, at=100.123, running=3)
    assert found == MemberStatus(swaps=[cut] * 30, traces=TracesSaid(captured=3))
    assert fitted(MemberStatus(open=3)) == MemberStatus(open=3)


def test_redis_clock_is_looked_at_now_and_then():
    asked = []
    client = SimpleNamespace(time=lambda: asked.append(1) or (99, 500_000))
    clock = RedisClock(client, lambda: 100.0)
    assert clock.offset_s is None
    for now in (100.0, 101.0, 100.0 + LOOK_S, 50.0):
        clock.look(now)
    assert len(asked) == 3  # once more when this host's clock was set back
    assert clock.offset_s == 0.5
