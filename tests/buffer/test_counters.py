"""Counters come back from JSON as they were, also from that of release 0.1; what anybody else wrote is no counters."""

from pathlib import Path

import msgspec
import pytest
import zstandard
from paceline.buffer.board.counters import (
    Counters,
    DraftPositions,
    LearnerCounters,
    SchedulerCounters,
    ServedCell,
    ServedCounters,
    StepCell,
    TraceCounters,
    counters_of,
)
from paceline.buffer.board.member_history import decode_history, encode_entry

#: As release 0.1 wrote SENT, which has a value for every field; cells and positions go by their place.
GOLDEN = Path(__file__).parent / "golden" / "counters.json"
SERVED = ServedCounters(
    cells=[ServedCell(draft=4, label="py", kind="greedy", rounds=9, accepted=14, ended=(2, 8, 12, 34, 50, 74))],
    positions=[
        DraftPositions(
            draft=4,
            tried=[9, 8],
            stood=[8, 6],
            output_rounds=[7, 2],
            output_accepted=[11, 3],
            context_rounds=[5, 4],
            context_accepted=[10, 4],
        )
    ],
    request_lengths=[0, 2, 5],
    forgotten=1,
    unattributed=3,
)
SCHEDULER = SchedulerCounters(
    steps=[StepCell(bucket=4, draft_steps=3, steps=7, seconds=0.25, tokens=30, requests=20, durations=[0, 7])],
    seconds={"decode": 0.5, "idle": 8.25},
    requests_ended=6,
    requests_counted=2,
    rounds=90,
    accepted=140,
    swaps=3,
    swaps_refused=1,
)
LEARNER = LearnerCounters(
    rounds=4,
    rests=1,
    drifts=2,
    drifted_at=980.5,
    optimiser_steps=40,
    unstored_checkpoints=2,
    verdicts={"promote": 3},
    seconds={"train": 7.5},
    process_cpu_s=12.5,
    is_busy=True,
    delivered=30,
    acked={"learned": 25},
    trimmed=5,
    dead_lettered=6,
    pending=7,
    oldest_pending_s=1.5,
    oldest_kept_s=60.25,
    entries=11,
    bytes=4096,
    max_bytes=8192,
)
SENT = Counters(
    at=1000.25,
    boot="b1",
    started_at=900.5,
    draft=4,
    target_version="7",
    served=SERVED,
    scheduler=SCHEDULER,
    traces=TraceCounters(captured=12, delivered=8, dropped={"gap": 1}, skipped={"lora": 2}),
    learner=LEARNER,
)


def test_the_golden_ones_have_a_value_for_every_field() -> None:
    parts = (SENT, SERVED, SERVED.cells[0], SERVED.positions[0], SCHEDULER, SCHEDULER.steps[0], SENT.traces, LEARNER)
    assert [name for part in parts for name in part.__struct_fields__ if not getattr(part, name)] == []


def test_counters_of_this_release_are_read_by_every_later_one() -> None:
    raw = GOLDEN.read_bytes()
    assert msgspec.json.decode(msgspec.json.encode(SENT)) == msgspec.json.decode(raw)
    assert counters_of(msgspec.json.decode(raw)) == SENT


def test_a_history_of_this_release_is_read_by_every_later_one() -> None:
    boot, entry = encode_entry(SENT)
    assert (boot, msgspec.json.decode(zstandard.decompress(entry))) == ("b1", msgspec.json.decode(GOLDEN.read_bytes()))
    history = decode_history([(SENT.at, zstandard.compress(GOLDEN.read_bytes()))])
    assert (list(history), history.skipped) == ([SENT], 0)


@pytest.mark.parametrize(
    "value", [None, [], {"at": 1.0}, {"at": "x", "boot": "b"}, {"at": 1.0, "boot": "b", "served": 3}]
)
def test_what_is_no_counters_is_none(value: object) -> None:
    assert counters_of(value) is None
