"""The schema of a member's status: what one release sends, the next one must read."""

from pathlib import Path

import msgspec
import pytest
from paceline.buffer.board.counters import Counters, TraceCounters, counters_of
from paceline.buffer.board.member_status import (
    AlarmSaid,
    ArmSaid,
    BegunSaid,
    CatchUpSaid,
    CourierSaid,
    DrafterSaid,
    FitSaid,
    GoodputSaid,
    LabelDraftersSaid,
    LifeSaid,
    MemberStatus,
    MlflowRuns,
    MlflowWait,
    MlflowWaiting,
    ModelFreeSaid,
    PacingSaid,
    ProcessSaid,
    RefusalSaid,
    RequestSaid,
    ScheduleSaid,
    StretchesSaid,
    SwapSaid,
    TargetSaid,
    TracesSaid,
    TrialSaid,
    VerdictSaid,
    WorkSaid,
    read_status,
)
from paceline.buffer.board.reason import ReasonCode, because
from paceline.buffer.board.speculation import Speculation

GOLDEN = Path(__file__).parent / "golden"
COUNTERS = Counters(at=1000.0, boot="b1", traces=TraceCounters(captured=12))
PROCESS = ProcessSaid(boot="b1", started_at=900.5, host="gpu-1", paceline="0.1.0", sglang="0.5.23")
SERVER = MemberStatus(
    at=1000.25,
    boot="b1",
    wanted="replica:r",
    standing_alarms=[AlarmSaid(name="hook_silent", figures={"rounds": 200.0}, action="tell")],
    alarms=[AlarmSaid(name="silent_death", figures={"length": 1.0}, action="roll_back", version=3, at=990.0)],
    learning_paused="hook_silent: 200 rounds, none captured",
    counters=COUNTERS,
    draft_version=4,
    capture="on",
    capture_reason="a fault",
    buffer_error="gone",
    traces=TracesSaid(
        captured=12,
        delivered=8,
        dropped={"gap": 1},
        rounds=90,
        payload_bytes=4096,
        labels_refused=2,
        has_predecessor=True,
        before_boot=TraceCounters(captured=3),
    ),
    skipped={"lora": 2},
    open=2,
    queued=1,
    engine_rounds=99,
    captured_rounds=90,
    swap="on",
    swap_reason="memory is released",
    published_sha256="b",
    loaded_sha256="a",
    is_canary=True,
    is_canary_out=True,
    canary_window_s=30.0,
    swaps=[
        SwapSaid(
            number=4,
            before=3,
            asked_at=970.0,
            at=980.0,
            stage_ms=30.0,
            commit_ms=1.5,
            late_s=0.5,
            running=2,
            accept_length_before=2.0,
            rounds_before=40,
            accept_length_after=2.5,
            rounds_after=50,
        )
    ],
    swaps_refused=1,
    refusals=[RefusalSaid(number=2, promoted_at=950.0, why="no such file")],
    trial=TrialSaid(
        version=4,
        canary=ArmSaid(requests=5, rounds=50, accept_length=2.5),
        live=ArmSaid(requests=0, rounds=0),
        gain=0.5,
        interval=(0.25, 0.75),
        looks=3,
        requests_left=7,
    ),
    stretches=StretchesSaid(version=4, ended=[RequestSaid("d1", [3, 9], 12, 24)], begun=[BegunSaid("d2", [4])]),
    target=TargetSaid(version="7", reason="loading", updates=2, update_ms=250.0, stale_prefixes=True),
    pacing=PacingSaid(
        policy="goodput",
        reason="ended",
        goodput=[GoodputSaid(bucket=4, tokens_per_s=99.0, plain_tokens_per_s=88.0, steps=50)],
        cost_ms={"4": {"0": 1.5}},
        steps={"4": {"0": 60}},
        unmatched=1,
        faults=2,
        catch_up=CatchUpSaid(reason="several ranks", passes={"full": 3}, positions=9),
    ),
    courier=CourierSaid(restarts=1, fault="ended with 1", backoff_s=2.0),
    clock_offset_s=0.5,
    clock_reason="no clock",
    penalties_reason="no hook",
    server=msgspec.structs.replace(
        PROCESS,
        speculation=Speculation(algorithm="EAGLE3", num_steps=3, eagle_topk=1, num_draft_tokens=4, adaptive=False),
    ),
)
LEARNER = MemberStatus(
    at=1000.25,
    boot="b2",
    ended=True,
    beat_last_at=1000.0,
    kind="learning",
    why=because(ReasonCode.PROVEN, odds=12.0),
    why_now="3 traces pending",
    learn="rest",
    learn_reason=because(ReasonCode.NOTHING_NEW, low=3, latest=40),
    fault="OSError: full",
    left="SystemExit: 1",
    stalled="ConfigError: no such folder",
    work=WorkSaid(phase="train", phase_s=5.0, block=1, blocks=4, step=3, steps=9),
    beat=True,
    fit=FitSaid(
        round_s=9.0,
        traces={"learned": 3, "replayed": 1},
        losses=[None, 0.5],
        loss_first=2.0,
        loss_every=2,
        steps=4,
        skipped_steps=1,
        seconds=8.0,
        first_position_accept=0.5,
        first_position_attainable=0.75,
        mean_acceptance=[0.5, 0.25],
        is_cold=True,
        weighting="equal",
        context_weight=0.5,
        learning_rate=0.125,
        out_of_vocabulary_labels=1,
        unusable_traces=2,
        part_tokens=512,
    ),
    judged=VerdictSaid(
        verdict="promote",
        reason=because(ReasonCode.PROVEN, odds=12.0),
        ground="traffic",
        reference=3,
        line_accept_length=2.5,
        reference_accept_length=2.0,
        requests=9,
        median_age_s=30.0,
        oldest_age_s=60.0,
        labels={"py": 9},
        newest_labels={"py": 8},
        drafts={"3": 9},
    ),
    version=4,
    life=LifeSaid(
        traces={"learned": 30},
        pending=2,
        rounds=4,
        rests=1,
        optimiser_steps=40,
        identity_equal=99,
        identity_compared=100,
        calibration_gap=0.125,
        target_version="7",
        trained_targets=["6", "7"],
    ),
    schedule=ScheduleSaid(next="2 more flat rounds", flat_rounds=1, rest_after_flat_rounds=3, rested_s=5.0),
    model_free=ModelFreeSaid(
        by_label=[
            LabelDraftersSaid(
                traces=40,
                tokens=2000,
                accept_length=1.5,
                drafters=[DrafterSaid(drafter="n-gram table", accept_length=2.4, gain=1.6, low=1.4, high=1.8)],
            )
        ],
        left_out={"rounds without drafts": 3},
        microseconds_per_round={"n-gram table": 40.5},
    ),
    pending_registrations=2,
    mlflow=MlflowRuns(run_page="https://mlflow/{run}", runs={"4": "ab12"}),
    mlflow_waiting=MlflowWaiting(
        at=999.0, count=2, longest=[MlflowWait(what="draft 4", since=950.0, why="no answer", action="start it")]
    ),
    learner=msgspec.structs.replace(PROCESS, boot="b2", sglang=""),
)
FILES = {"status_server.json": SERVER, "status_learner.json": LEARNER}


@pytest.mark.parametrize("file", FILES)
def test_a_status_of_this_release_is_read_by_every_later_one(file: str) -> None:
    raw = (GOLDEN / file).read_bytes()
    assert msgspec.json.decode(msgspec.json.encode(FILES[file])) == msgspec.json.decode(raw)
    found = read_status(raw)
    found.counters = counters_of(found.counters)
    assert found == FILES[file]


def test_the_golden_ones_name_every_field_but_the_one_of_readers() -> None:
    named = {name for file in FILES for name in msgspec.json.decode((GOLDEN / file).read_bytes())}
    assert {*MemberStatus.__struct_fields__} - named == {"unreadable"}


def test_what_is_not_sent_is_unknown_and_what_a_later_release_sends_is_ignored() -> None:
    found = read_status(b'{"draft_version": 4, "news": {"a": [1]}, "work": {"phase": "p", "phase_s": 1, "x": 2}}')
    assert found == MemberStatus(draft_version=4, work=WorkSaid(phase="p", phase_s=1.0))
    assert (found.traces, found.open, found.process.sglang, found.pacing, found.beat) == (None, None, "", None, None)
    assert found.account == TracesSaid()


def test_nobody_but_a_reader_says_that_a_status_is_unreadable() -> None:
    assert read_status(b'{"unreadable": "\\u001b[2J", "open": 1}') == MemberStatus(open=1)


def test_what_is_unknown_is_not_sent() -> None:
    assert msgspec.json.encode(MemberStatus(draft_version=0, open=0)) == b'{"draft_version":0,"open":0}'


@pytest.mark.parametrize(
    "spoilt",
    [
        {"draft_version": "4"},
        {"alarms": "none"},
        {"standing_alarms": [{"name": 3}]},
        {"swaps": [{"number": 1}]},
        {"work": {"phase": 7, "phase_s": 1.0}},
        {"stretches": {"version": 1, "ended": [["d", [1], "x", 3]]}},
        {"traces": {"dropped": {"gap": "x\x1b[2J"}}},
    ],
)
def test_a_spoilt_status_says_so_and_nothing_of_it_is_believed(spoilt: dict[str, object]) -> None:
    found = read_status(msgspec.json.encode({"capture": "on", **spoilt}))
    assert found == MemberStatus(unreadable=found.unreadable)
    assert found.unreadable.startswith("status cannot be read: ")
    assert found.unreadable.isprintable()
