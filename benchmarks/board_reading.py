"""What it costs to look at everybody: members and the last minute of each one's history, and what Redis keeps of them.

Members are simulated: each beats with a full status (8 kB, all the cells that a courier has room for, one draft of
eight still serving) into a private Redis, and an hour of its history lies there as the board thins it. One read is
`VersionBoard.members` and, for every member, `VersionBoard.history` of the last minute. Beats are timed one by one.

    python -m paceline.benchmarks.board_reading [--members 64] [--repeats 20]
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from ..buffer.base import VersionBoard
from ..buffer.config import BufferConfig
from ..buffer.counters import (
    MAX_DRAFTS,
    STEP_MS_EDGES,
    Counters,
    DraftPositions,
    SchedulerCounters,
    ServedCell,
    ServedCounters,
    StepCell,
    TraceCounters,
    as_json,
)
from ..buffer.keys import HISTORY
from ..buffer.member_history import HISTORY_EVERY_S, HISTORY_FINE_S, HISTORY_S, encode_entry
from ..buffer.redis_board import RedisVersionBoard
from ..buffer.redis_client import connect
from ..rig.ports import free_port
from ..rig.services import redis_service
from ..rig.signals import ending_signals
from ..serving.clock.step_cells import MAX_CELLS as MAX_STEP_CELLS
from ..serving.courier.heartbeat import MAX_BEAT_BYTES
from ..serving.watch.served_cells import MAX_CELLS
from .measure.command_line import benchmark_parser

SEED = 0
POSITIONS, LENGTHS = 8, 4
#: The draft that serves now.
NEWEST = MAX_DRAFTS - 1


def main() -> None:
    """Measure and print."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        service = redis_service(Path(folder), port)
        with service, connect(f"redis://127.0.0.1:{port}/0") as client:
            measure(client, options.members, options.repeats)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("board_reading", __doc__)
    parser.add_argument("--members", type=int, default=64, help="simulated members (64)")
    parser.add_argument("--repeats", type=int, default=20, help="reads, of which the median counts (20)")
    return parser.parse_args()


def measure(client: Any, members: int, repeats: int) -> None:
    """Fill Redis, read it again and again, and print."""
    board: VersionBoard = RedisVersionBoard(client, BufferConfig())
    names = [f"replica:{place}" for place in range(members)]
    now_s = board.now()
    for place, name in enumerate(names):
        plant_hour(client, name, place, now_s)
    beats_ms = [1e3 * seconds(partial(board.beat, name, status(0, HISTORY_S), 60.0)) for name in names]
    reads_ms = [1e3 * seconds(lambda: read(board, now_s - 60.0)) for _ in range(repeats)]
    cpu_ms = [1e3 * seconds(lambda: read(board, now_s - 60.0), time.process_time) for _ in range(repeats)]
    entries: Any = client.xlen(HISTORY.name("default", names[0]))
    kept: Any = client.memory_usage(HISTORY.name("default", names[0]), samples=0)
    print(f"status of {len(msgspec.json.encode(status(0, HISTORY_S)))} bytes, {entries} entries an hour")
    print(f"a beat: median {median(beats_ms):.2f} ms")
    print(
        f"{members} members and the last minute of each: median {median(reads_ms):.0f} ms, "
        f"least {min(reads_ms):.0f} ms; processor time of the reader {median(cpu_ms):.0f} ms"
    )
    print(f"Redis keeps {kept / 1e6:.2f} MB of each member's history")


def read(board: VersionBoard, since_s: float) -> None:
    """What shows the minute after `since_s`; exits when something is missing."""
    for member in board.members():
        minute = board.history(member, since_s)
        if len(minute) < 60.0 / HISTORY_EVERY_S - 1 or minute.skipped:
            raise SystemExit(f"{member}: got {len(minute)} entries and {minute.skipped} skipped, expected a minute")


def plant_hour(client: Any, member: str, seed: int, now_s: float) -> None:
    """An hour of history before `now_s`, as it lies there after an hour of beats."""
    ages = [*range(round(HISTORY_S) - 60, round(HISTORY_FINE_S), -60)]
    ages += range(round(HISTORY_FINE_S), 0, -round(HISTORY_EVERY_S))
    with client.pipeline(transaction=False) as pipe:
        for age in ages:
            boot, raw = encode_entry(status(seed, HISTORY_S - age))
            fields: Any = {"boot": boot, "counters": raw}
            pipe.xadd(HISTORY.name("default", member), fields, id=f"{round((now_s - age) * 1000)}-0")
        pipe.execute()


def status(seed: int, running_s: float) -> dict[str, object]:
    """A full status of a replica that has run for `running_s`; equal seeds count at equal rates."""
    found: dict[str, object] = {"counters": as_json(counters(random.Random(seed), running_s))}
    return found | {"others": "x" * max(0, MAX_BEAT_BYTES - len(msgspec.json.encode(found)))}


def counters(rate: random.Random, running_s: float) -> Counters:
    """Counters that have grown for `running_s`, those of the newest draft alone; the others have ended."""

    def grown(per_s: float, draft: int = NEWEST) -> int:
        return int(rate.uniform(0.5, 1.0) * per_s * (running_s if draft == NEWEST else 600.0))

    cells = [
        ServedCell(
            draft=draft,
            label=label,
            kind="greedy",
            rounds=grown(40, draft),
            accepted=grown(90, draft),
            ended=(
                grown(1, draft),
                grown(40, draft),
                grown(90, draft),
                grown(1600, draft),
                grown(3600, draft),
                grown(8100, draft),
            ),
        )
        # As a courier that is out of room has them: labels of the newest draft, and one cell of each of the others.
        for draft, label in [(NEWEST, f"label-{n}") for n in range(MAX_CELLS - NEWEST)]
        + [(d, "*") for d in range(NEWEST)]
    ]
    tried = [[grown(240 / 2**place, draft) for place in range(POSITIONS)] for draft in range(MAX_DRAFTS)]
    stood = [[grown(120 / 2**place, draft) for place in range(POSITIONS)] for draft in range(MAX_DRAFTS)]
    positions = [DraftPositions(draft=d, tried=tried[d], stood=stood[d]) for d in range(MAX_DRAFTS)]
    steps = [
        StepCell(
            bucket=2**place,
            draft_steps=length,
            steps=grown(20),
            seconds=grown(400) / 1e3,
            tokens=grown(200),
            requests=grown(60),
            durations=[grown(3) for _ in range(len(STEP_MS_EDGES) + 1)],
        )
        for place in range(MAX_STEP_CELLS // LENGTHS)
        for length in range(LENGTHS)
    ]
    return Counters(
        at=running_s,
        boot="0123456789abcdef",
        draft=NEWEST,
        served=ServedCounters(cells=cells, positions=positions, request_lengths=[grown(1) for _ in range(13)]),
        scheduler=SchedulerCounters(steps=steps, seconds={"decode": running_s}, rounds=grown(200), accepted=grown(400)),
        traces=TraceCounters(captured=grown(5), delivered=grown(5)),
    )


def seconds(act: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """For how long `act()` runs by `clock`."""
    began = clock()
    act()
    return clock() - began


if __name__ == "__main__":
    with ending_signals():
        main()
