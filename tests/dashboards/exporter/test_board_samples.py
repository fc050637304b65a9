"""What /metrics says of one speculator: hand-made members, and what the readings say of the same counters."""

import msgspec
import pytest
from fleet import NOW, board, learner, replica, requests, snapshot, steps, version
from paceline.buffer.board.counters import (
    LENGTH_EDGES,
    MODEL_FREE,
    OLDER_DRAFTS,
    STEP_MS_EDGES,
    Counters,
    DraftPositions,
    LearnerCounters,
    SchedulerCounters,
    ServedCell,
    ServedCounters,
    TraceCounters,
)
from paceline.buffer.board.member_board import MemberSeen
from paceline.buffer.board.member_status import read_status
from paceline.buffer.board.version import OTHER_LABELS
from paceline.dashboards.exporter.families import FAMILIES, Kind
from paceline.policies.readings.tables import StepSums
from paceline.policies.readings.windows import windowed
from scraped import labels_of, scrape, value

SPREAD = [*range(len(STEP_MS_EDGES) + 1)]


def served(times: int) -> Counters:
    """Counters that grow with `times`; a draft of another number joins the second time."""
    cells = [requests(0, "py", [(10, 7)] * times), requests(1, "", [(4, 1)] * (times - 1))]
    return Counters(
        at=NOW - 100.0 + 10.0 * times,
        boot="one",
        started_at=NOW - 100.0,
        draft=1,
        served=ServedCounters(
            cells=[cell for cell in cells if cell.rounds],
            positions=[DraftPositions(draft=0, tried=[10 * times, 6 * times], stood=[6 * times, times])],
            request_lengths=[0] * 4 + [times] + [0] * (len(LENGTH_EDGES) - 4),
            unattributed=times,
        ),
        scheduler=SchedulerCounters(
            steps=[steps(3, 5 * times, tokens=40 * times, seconds=2.0 * times), steps(0, 3, tokens=24, seconds=0.5)],
            seconds={"decode": 2.0 * times, "idle": 1.0},
            requests_ended=2 * times,
            rounds=20 * times,
            accepted=11 * times,
            swaps=times,
            swaps_refused=times - 1,
        ),
        traces=TraceCounters(captured=9 * times, delivered=7 * times, dropped={"gap": times}, skipped={"lora": 2}),
    )


def told(counters: Counters, **status: object):
    return snapshot(replica_a=replica(**{"counters": counters} | status))


def test_a_difference_of_two_scrapes_is_what_the_readings_count_between_them() -> None:
    before, after = served(1), served(4)
    window = windowed({"replica:a": [before, after]}, before.at, after.at)
    old, new = scrape(told(before)), scrape(told(after))

    def grew(name: str, **labels: str) -> float:
        return (value(new, name, **labels) or 0.0) - (value(old, name, **labels) or 0.0)

    cells = window.table("served", "cells")
    assert grew("paceline_verify_rounds_total") == sum(row.rounds for row in cells.values()) == 42
    assert grew("paceline_verify_accepted_total") == sum(row.accepted for row in cells.values())
    for key, row in cells.items():
        label = key.label or "(none)"
        assert grew("paceline_draft_verify_rounds_total", draft=str(key.draft)) == row.rounds
        assert grew("paceline_label_verify_accepted_total", label=label, kind="greedy") == row.accepted
    for key, row in window.table("served", "positions").items():
        where = {"draft": str(key.draft), "position": str(key.position + 1)}
        assert grew("paceline_drafts_tried_total", **where) == row.tried
        assert grew("paceline_drafts_stood_total", **where) == row.stood
    for key, row in window.table("scheduler", "steps").items():
        where = {"batch": str(key.bucket), "steps": str(key.draft_steps)}
        grown = [grew(f"paceline_decode_step_{name}", **where) for name in ("tokens_total", "requests_total")]
        assert grew("paceline_decode_step_seconds_sum", **where) == pytest.approx(row.seconds)
        assert StepSums(row.steps, row.seconds, *grown) == row
    engine = window.table("scheduler", "engine")
    assert grew("paceline_engine_verify_rounds_total") == engine["rounds"].total
    assert grew("paceline_engine_counted_requests_total") == engine["requests_counted"].total
    assert grew("paceline_swaps_total", result="refused") == engine["swaps_refused"].total
    assert grew("paceline_scheduler_seconds_total", phase="decode") == pytest.approx(6.0)
    assert grew("paceline_traces_captured_total") == window.table("traces", "traces")["captured"].total
    assert grew("paceline_traces_total", fate="dropped", reason="gap") == window.table("traces", "dropped")["gap"].total


def test_histograms_add_up_and_say_their_sum_where_it_is_known() -> None:
    one = served(2)
    one.scheduler.steps[0].durations = SPREAD
    found = scrape(told(one))
    at = {"batch": "8", "steps": "3"}
    assert value(found, "paceline_decode_step_seconds_bucket", le="0.002", **at) == SPREAD[0] + SPREAD[1]
    assert value(found, "paceline_decode_step_seconds_bucket", le="+Inf", **at) == sum(SPREAD)
    assert value(found, "paceline_decode_step_seconds_count", **at) == sum(SPREAD)
    assert value(found, "paceline_request_accept_length_bucket", le="2.0") == 2
    assert value(found, "paceline_request_accept_length_bucket", le="1.75") == 0
    assert value(found, "paceline_request_accept_length_sum") is None


def test_what_nobody_told_is_absent_and_not_0() -> None:
    found = scrape(snapshot(replica_a=replica(), learner_b=learner()))
    named = {name for name, _ in found}
    assert "paceline_verify_rounds_total" not in named
    assert "paceline_buffer_pending" not in named
    assert "paceline_canary_draft" not in named
    assert value(found, "paceline_capture_on", member="replica:a") == 1.0
    assert value(found, "paceline_capture_on", member="learner:b") is None


def test_a_silent_member_is_heard_of_last_and_counts_nothing_any_more() -> None:
    silent = replica(90.0, is_alive=False, counters=served(2), capture="on")
    found = scrape(snapshot(replica_a=silent))
    assert value(found, "paceline_member_last_seen_timestamp_seconds", member="replica:a") == NOW - 90.0
    assert value(found, "paceline_board_timestamp_seconds") == NOW
    assert value(found, "paceline_member_alive", member="replica:a") == 0.0
    assert value(found, "paceline_alarm", member="replica:a", name="member_silent") == 1.0
    assert value(found, "paceline_verify_rounds_total") is None
    assert value(found, "paceline_capture_on") is None


def test_a_member_that_ended_is_nobodys_concern() -> None:
    ended = replica(90.0, is_alive=False, ended=True)
    found = scrape(snapshot(replica_a=ended))
    assert value(found, "paceline_member_last_seen_timestamp_seconds") is None
    assert value(found, "paceline_alarm") is None


def test_the_newest_eight_drafts_and_what_drafts_now_have_their_own_series() -> None:
    counted = served(2)
    counted.draft = 3
    rows = [ServedCell(draft=number, label="", kind="greedy", rounds=1 + number) for number in range(12)]
    rows.append(ServedCell(draft=OLDER_DRAFTS, label=OTHER_LABELS, kind="greedy", rounds=1000))
    rows.append(ServedCell(draft=MODEL_FREE, label="", kind="greedy", rounds=7))
    counted.served.cells = rows
    found = scrape(snapshot(board(12), replica_a=replica(counters=counted)))
    own = {"3", "5", "6", "7", "8", "9", "10", "11"}
    assert labels_of(found, "paceline_draft_verify_rounds_total", "draft") == own | {"older", "no model"}
    assert value(found, "paceline_draft_verify_rounds_total", draft="older") == 1000 + 1 + 2 + 3 + 5
    assert value(found, "paceline_verify_rounds_total") == 1007 + sum(range(1, 13))
    assert labels_of(found, "paceline_draft_info", "draft") == own


def test_sixteen_labels_of_all_members_have_their_own_series() -> None:
    def labels(first: int) -> dict:
        cells = [ServedCell(draft=1, label=f"l{n}", kind="greedy", rounds=n) for n in range(first, first + 12)]
        rest = [ServedCell(draft=1, label=label, kind="greedy", rounds=5) for label in ("", OTHER_LABELS, "other")]
        return Counters(at=NOW, boot=str(first), served=ServedCounters(cells=[*cells, *rest]))

    found = scrape(snapshot(replica_a=replica(counters=labels(10)), replica_b=replica(counters=labels(30))))
    own = {f"l{n}" for n in (*range(18, 22), *range(30, 42))}
    assert labels_of(found, "paceline_label_verify_rounds_total", "label") == own | {"other", "(none)"}
    others = 2 * (5 + 5) + sum(range(10, 18))  # the rest of both, a client's label of this very name, and what is rare
    assert value(found, "paceline_label_verify_rounds_total", label="other") == others
    assert value(found, "paceline_label_verify_rounds_total", label="(none)") == 10


def test_the_board_says_what_is_live_and_what_the_gate_predicted() -> None:
    found = scrape(snapshot())
    assert value(found, "paceline_live_draft") == 1
    where = {"draft": "1", "state": "live", "parent": "0", "sha256": version(1).sha256}
    assert value(found, "paceline_draft_info", **where) == 1.0
    assert value(found, "paceline_gate_predicted_accept_length", draft="1") == 3.0
    assert value(found, "paceline_gate_requests", draft="1") == 40
    assert value(found, "paceline_gate_median_age_seconds", draft="1") == 30.0
    assert value(scrape(snapshot(board(judged_on=None))), "paceline_gate_requests") is None


def test_a_replica_tells_its_last_swap_and_plain_speed() -> None:
    first = {"number": 0, "at": 5.0, "stage_ms": 900.0, "commit_ms": 90.0, "running": 0}
    last = {"number": 1, "at": 7.0, "stage_ms": 30.0, "commit_ms": 1.5, "running": 0}
    pacing = {"goodput": [{"bucket": 4, "plain_tokens_per_s": 88.0}]}
    found = scrape(told(served(2), swaps=[first, last | {"accept_length_after": 2.5}], pacing=pacing))
    assert value(found, "paceline_last_swap_timestamp_seconds") == 7.0
    assert value(found, "paceline_last_swap_seconds", part="commit") == pytest.approx(0.0015)
    assert labels_of(found, "paceline_last_swap_accept_length", "side") == {"after"}
    assert value(found, "paceline_plain_tokens_per_second", source="pacing", batch="4") == 88.0
    assert value(found, "paceline_plain_tokens_per_second", source="steps", batch="8") == 48.0


@pytest.mark.parametrize("status", [{"swaps": "x"}, {"pacing": [1]}, {"capture": 3}, {"open": True}, {"counters": 5}])
def test_a_status_that_somebody_else_wrote_spoils_nothing(status: dict) -> None:
    spoilt = MemberSeen(said=read_status(msgspec.json.encode(status)), last_seen_at=NOW, is_alive=True)
    found = scrape(snapshot(replica_a=spoilt))
    assert value(found, "paceline_member_alive", member="replica:a") == 1.0


def test_a_learner_tells_of_its_rounds_and_of_the_buffer() -> None:
    part = LearnerCounters(
        rounds=5,
        rests=2,
        verdicts={"promote": 1, "refuse": 3, "failed": 1},
        seconds={"train": 4.0},
        is_busy=True,
        delivered=90,
        acked={"learned": 60},
        pending=30,
        oldest_pending_s=12.0,
    )
    counters = Counters(at=NOW, boot="l", learner=part)
    found = scrape(snapshot(learner_b=learner(counters=counters, learn="rest", pending_registrations=2)))
    verdicts = ("promote", "refuse", "")
    learned = [value(found, "paceline_rounds_total", kind="learned", verdict=verdict) for verdict in verdicts]
    assert learned == [1, 3, 1]
    assert value(found, "paceline_rounds_total", kind="rested") == 2
    assert value(found, "paceline_rounds_total", kind="failed") == 1
    assert value(found, "paceline_buffer_oldest_pending_seconds") == 12.0
    assert value(found, "paceline_buffer_max_bytes") is None
    assert value(found, "paceline_learner_resting") == 1.0
    assert value(found, "paceline_learner_busy") == 1.0
    assert value(found, "paceline_mlflow_pending_registrations") == 2


def test_every_metric_is_named_as_prometheus_asks() -> None:
    for family in FAMILIES.values():
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
        assert bool(family.edges) == (family.kind is Kind.HISTOGRAM)
        assert len(set(family.labels)) == len(family.labels)
