"""What the growth bench measures is what it says: full beats, the same content in every form, every trace learned."""

import math

import msgspec
import numpy as np
import pytest
from paceline.benchmarks import growth
from paceline.benchmarks.fleet import costs
from paceline.benchmarks.fleet.costs import Cost, FleetCosts, costs_of
from paceline.benchmarks.fleet.full_beat import full_status
from paceline.benchmarks.fleet.stock import FORMS, in_form, intake_of, sent_by
from paceline.buffer.board.counters import counters_of
from paceline.buffer.board.member_history import HISTORY_S
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.learner.claim.intake import Outcome
from paceline.serving.courier.heartbeat import MAX_BEAT_BYTES, fitted

AT = 1e9


def test_a_full_heartbeat_is_as_large_as_a_courier_sends_and_is_counters():
    said = full_status(3, AT)
    assert len(msgspec.json.encode(said)) == MAX_BEAT_BYTES
    assert fitted(said) == said
    assert counters_of(said.counters) == said.counters
    assert full_status(3, AT) == said != full_status(4, AT)


def test_counts_of_the_draft_that_serves_grow_and_those_of_the_others_stand_still():
    early, late = (full_status(0, AT, seconds).counters.served.cells for seconds in (1800.0, 3600.0))
    newest = max(cell.draft for cell in late)
    for before, after in zip(early, late, strict=True):
        grows = 2 if before.draft == newest else 1
        assert after.rounds == pytest.approx(grows * before.rounds, abs=1)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_taken_by_the_learner(make_trace, form):
    trace = sent_by("a", in_form(make_trace(), form))
    assert trace.replica == "a"
    assert trace.tokens.tolist() == make_trace().tokens.tolist()
    assert intake_of(trace).outcome(trace) is Outcome.LEARNED
    assert bool(len(trace.features)) == (form != "tokens")


def test_every_trace_of_every_replica_is_learned_once(redis_url, redis_client, make_trace):
    stock = [make_trace(trace_id="x"), make_trace(trace_id="y")]
    found = costs_of(redis_url, 3, stock=stock, sent=7)
    assert found.replicas == 3
    counts = RedisTraceBuffer(redis_client, BufferConfig()).counts()
    assert (counts.delivered, counts.acked, counts.pending) == (7, {"learned": 7}, 0)
    board = RedisVersionBoard(redis_client, BufferConfig())
    assert sorted(board.heartbeats()) == ["replica:0000", "replica:0001", "replica:0002"]
    hour = board.history("replica:0001", board.now() - HISTORY_S)
    assert (len(hour), hour.skipped) == (pytest.approx(50 + 120, abs=3), 0)
    for cost in (found.append, found.claim, found.beat, found.heartbeats, found.status):
        assert min(cost.own_s, cost.redis_s) > 0.0
    assert found.replica_bytes > 3 * MAX_BEAT_BYTES / 2


def test_a_trace_that_is_not_learned_ends_the_run(redis_url, make_trace, monkeypatch):
    monkeypatch.setattr(costs, "_claim", lambda *_: None)
    with pytest.raises(SystemExit, match="expected 1 learned"):
        costs_of(redis_url, 1, stock=[make_trace()], sent=1)


def test_a_cost_is_of_one_act():
    assert Cost(6.0, 3.0).over(3) == Cost(2.0, 1.0)


def test_the_table_has_a_column_per_fleet_with_medians_and_extremes():
    def fleet(replicas: int, own_s: float) -> FleetCosts:
        cost = Cost(own_s, own_s / 2)
        return FleetCosts(
            replicas=replicas,
            append=cost,
            claim=cost,
            beat=cost,
            heartbeats=cost,
            status=cost,
            replica_bytes=2e3,
            payload_share=1.25,
        )

    runs = {1: iter([1e-5, 3e-5, 2e-5]), 8: iter([4e-5] * 3)}
    found = growth.in_fleets(lambda size: fleet(size, next(runs[size])), [1, 8], 3)
    lines = growth.table(found).splitlines()
    assert lines[0] == "| replicas | 1 | 8 |"
    assert lines[2] == "| us per trace: encode and append | 20 [10 .. 30] | 40 [40 .. 40] |"
    assert lines[3] == "| us per trace: encode and append, in Redis | 10 [5 .. 15] | 20 [20 .. 20] |"
    assert lines[-1] == "| bytes of Redis per byte of traces | 1.250 [1.250 .. 1.250] | 1.250 [1.250 .. 1.250] |"


def test_quantised_features_stand_for_the_same_numbers(make_trace):
    exact = make_trace().feature_numbers()
    rounded = in_form(make_trace(), "int8").feature_numbers()
    assert np.abs(exact - rounded).max() <= np.abs(exact).max() / 254 * (1 + 1e-6)
    assert math.isfinite(float(rounded.sum()))
