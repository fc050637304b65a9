"""The largest heartbeat that a courier sends, and an hour of the history that the board keeps of such beats."""

import random
from functools import cache
from typing import Any

import msgspec

from ...buffer.board.counters import (
    CONTEXT_STARTS,
    LENGTH_EDGES,
    MAX_DRAFTS,
    OUTPUT_STARTS,
    STEP_MS_EDGES,
    Counters,
    DraftPositions,
    SchedulerCounters,
    ServedCell,
    ServedCounters,
    StepCell,
    TraceCounters,
)
from ...buffer.board.member_history import HISTORY_EVERY_S, HISTORY_FINE_S, HISTORY_S, encode_entry
from ...buffer.board.member_status import MemberStatus, TracesSaid
from ...serving.clock.step_cells import MAX_CELLS as MAX_STEP_CELLS
from ...serving.courier.heartbeat import MAX_BEAT_BYTES
from ...serving.watch.served_cells import MAX_CELLS

BOOT = "0123456789abcdef"
LENGTHS = 4  # draft steps that are told apart
#: The draft that serves now. The others have ended: their counts stand still.
NEWEST = MAX_DRAFTS - 1


def full_status(seed: int, at: float, running_s: float = HISTORY_S) -> MemberStatus:
    """Of a replica that has run for `running_s`, with all the counters that it has room for; equal seeds, equal rates.

    It is filled up to MAX_BEAT_BYTES by a text, in place of the requests that a canary is compared with.
    """
    said = MemberStatus(
        at=at,
        boot=BOOT,
        capture="on",
        swap="on",
        draft_version=NEWEST,
        open=0,
        queued=0,
        traces=TracesSaid(captured=9, delivered=9),
        counters=full_counters(seed, at, running_s),
    )
    said.buffer_error = "x" * (MAX_BEAT_BYTES - len(msgspec.json.encode(said)) - len(',"buffer_error":""'))
    return said


def full_counters(seed: int, at: float, running_s: float) -> Counters:
    """As a courier has them that is out of room: many labels of the newest draft, one cell of each of the others."""
    drawn = random.Random(seed)

    def grown(per_s: float, draft: int = NEWEST) -> int:
        return int(drawn.uniform(0.5, 1.0) * per_s * (running_s if draft == NEWEST else HISTORY_FINE_S))

    def cell(draft: int, label: str) -> ServedCell:
        rounds, accepted, *ended = (grown(rate, draft) for rate in (40, 90, 1, 40, 90, 1600, 3600, 8100))
        sums = (ended[0], ended[1], ended[2], ended[3], ended[4], ended[5])
        return ServedCell(draft=draft, label=label, kind="greedy", rounds=rounds, accepted=accepted, ended=sums)

    labelled = [(NEWEST, f"label-{place}") for place in range(MAX_CELLS - NEWEST)]
    served = ServedCounters(
        cells=[cell(*each) for each in (*labelled, *((draft, "*") for draft in range(NEWEST)))],
        positions=[
            DraftPositions(
                draft=draft,
                tried=[grown(240 / 2**place, draft) for place in range(LENGTHS)],
                stood=[grown(120 / 2**place, draft) for place in range(LENGTHS)],
                output_rounds=[grown(40, draft) for _ in OUTPUT_STARTS],
                output_accepted=[grown(90, draft) for _ in OUTPUT_STARTS],
                context_rounds=[grown(40, draft) for _ in CONTEXT_STARTS],
                context_accepted=[grown(90, draft) for _ in CONTEXT_STARTS],
            )
            for draft in range(MAX_DRAFTS)
        ],
        request_lengths=[grown(1) for _ in range(len(LENGTH_EDGES) + 1)],
    )
    steps = [
        StepCell(
            bucket=2 ** (place // LENGTHS),
            draft_steps=place % LENGTHS,
            steps=grown(20),
            seconds=grown(400) / 1e3,
            tokens=grown(200),
            requests=grown(60),
            durations=[grown(3) for _ in range(len(STEP_MS_EDGES) + 1)],
        )
        for place in range(MAX_STEP_CELLS)
    ]
    return Counters(
        at=at,
        boot=BOOT,
        started_at=at - running_s,
        draft=NEWEST,
        served=served,
        scheduler=SchedulerCounters(steps=steps, seconds={"decode": running_s}, rounds=grown(200), accepted=grown(400)),
        traces=TraceCounters(captured=9, delivered=9),
    )


@cache
def hour_of_beats(seed: int) -> list[tuple[int, str, bytes]]:
    """Age in seconds, boot and counters of every entry that an hour of full beats leaves, oldest first."""
    ages = [*range(round(HISTORY_S) - 60, round(HISTORY_FINE_S), -60)]
    ages += range(round(HISTORY_FINE_S), 0, -round(HISTORY_EVERY_S))
    return [(age, *encode_entry(full_counters(seed, HISTORY_S - age, HISTORY_S - age))) for age in ages]


def plant_hour(client: Any, key: str, seed: int, now_s: float) -> None:
    """The history before `now_s` under `key`, as it lies there after an hour of full beats."""
    with client.pipeline(transaction=False) as trip:
        for age, boot, raw in hour_of_beats(seed):
            fields: Any = {"boot": boot, "counters": raw}
            trip.xadd(key, fields, id=f"{round((now_s - age) * 1000)}-0")
        trip.execute()
