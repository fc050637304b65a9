"""Members that beat on a real board and count as if they served, learnt and swapped; for tests of who reads them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import time

from paceline.buffer.base import VersionBoard
from paceline.buffer.counters import (
    LENGTH_EDGES,
    STEP_MS_EDGES,
    Counters,
    DraftPositions,
    LearnerCounters,
    SchedulerCounters,
    ServedCell,
    ServedCounters,
    StepCell,
    TraceCounters,
    as_json,
)
from paceline.buffer.errors import BufferUnavailable
from paceline.policies.readings.ratio_sums import RatioSums

BEAT_S = 0.5
TTL_S = 10.0
#: Accepted of 10 rounds, by label.
ACCEPTED = {"py": 18, "": 12}
#: Of a decode step of batch 8: seconds and tokens, with 3 drafted tokens and without.
STEP_S = 0.003
DRAFTED_TOKENS = 24
PLAIN_TOKENS = 8


def replica_status(boot: str, started_at: float, beats: int, draft: int, refused: int = 0) -> dict[str, object]:
    """A replica after so many beats; every beat adds the same. One that refused a swap raises an alarm."""
    served = ServedCounters(
        cells=[_cell(draft, label, beats, accepted) for label, accepted in ACCEPTED.items()],
        positions=[DraftPositions(draft=draft, tried=[20 * beats, 16 * beats], stood=[16 * beats, 14 * beats])],
        request_lengths=[0] * 5 + [beats] + [0] * (len(LENGTH_EDGES) - 5),
    )
    scheduler = SchedulerCounters(
        steps=[_steps(3, 20 * beats, DRAFTED_TOKENS), _steps(0, 4 * beats, PLAIN_TOKENS)],
        seconds={"decode": 0.07 * beats, "prefill": 0.01 * beats, "idle": 0.4 * beats},
        requests_ended=2 * beats,
        rounds=20 * beats,
        accepted=30 * beats,
        swaps=1,
        swaps_refused=refused,
    )
    traces = TraceCounters(captured=9 * beats, delivered=8 * beats, dropped={"gap": beats}, skipped={"lora": beats})
    counters = Counters(
        at=time(), boot=boot, started_at=started_at, draft=draft, served=served, scheduler=scheduler, traces=traces
    )
    swap = {"number": draft, "before": draft - 1, "at": started_at, "stage_ms": 30.0, "commit_ms": 1.5, "running": 0}
    lengths = {"accept_length_before": 2.0, "accept_length_after": 2.5}
    alarm = {"name": "hook_silent", "reading": "200 rounds, none captured", "action": "tell"}
    said: dict[str, object] = {"capture": "on", "open": 3, "queued": 1, "draft_version": draft}
    said |= {"standing_alarms": [alarm] if refused else [], "swaps": [swap | lengths]}
    return {**said, "counters": as_json(counters)}


def learner_status(boot: str, started_at: float, beats: int) -> dict[str, object]:
    learnt = LearnerCounters(
        rounds=beats,
        rests=1,
        optimiser_steps=60 * beats,
        verdicts={"promote": 1, "refuse": max(beats - 1, 0)},
        seconds={"train": 0.3 * beats, "idle": 0.2 * beats},
        process_cpu_s=0.4 * beats,
        is_busy=True,
        delivered=16 * beats,
        acked={"learned": 10 * beats},
        trimmed=beats,
        pending=40,
        oldest_pending_s=3.0,
        oldest_kept_s=40.0,
        entries=90,
        bytes=9000,
        max_bytes=90000,
    )
    counters = Counters(at=time(), boot=boot, started_at=started_at, learner=learnt)
    return {"learn": "learn", "pending_registrations": 0, "counters": as_json(counters)}


@contextmanager
def beating(board: VersionBoard, member: str, status: Callable[[int], dict[str, object]]) -> Iterator[Event]:
    """Have `member` beat with `status` of the number of its beats, until the body ends or the event is set."""
    over = Event()

    def beat() -> None:
        beats = 0
        while not over.is_set():
            beats += 1
            with suppress(BufferUnavailable):  # as a courier does: the next beat tries again
                board.beat(member, status(beats), TTL_S)
            over.wait(BEAT_S)

    thread = Thread(target=beat)
    thread.start()
    try:
        yield over
    finally:
        over.set()
        thread.join()


def _cell(draft: int, label: str, beats: int, accepted: int) -> ServedCell:
    sums = RatioSums.of(10 * beats, accepted * beats)
    ended = (
        sums.requests,
        sums.rounds,
        sums.accepted,
        sums.rounds_squared,
        sums.rounds_accepted,
        sums.accepted_squared,
    )
    rounds = 10 * beats
    return ServedCell(draft=draft, label=label, kind="greedy", rounds=rounds, accepted=accepted * beats, ended=ended)


def _steps(draft_steps: int, steps: int, tokens: int) -> StepCell:
    durations = [0, 0, steps] + [0] * (len(STEP_MS_EDGES) - 2)
    return StepCell(
        bucket=8,
        draft_steps=draft_steps,
        steps=steps,
        seconds=STEP_S * steps,
        tokens=tokens * steps,
        requests=8 * steps,
        durations=durations,
    )
