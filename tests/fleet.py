"""The fleet that tests look at: drafts on a board, members as they beat, and what they count."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple
from threading import Event, Thread
from time import time

from paceline.buffer.board.counters import (
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
)
from paceline.buffer.board.member_board import MemberSeen
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.version import BoardState, DraftVersion, JudgedOn, VersionState
from paceline.buffer.board.version_board import VersionBoard
from paceline.buffer.errors import BufferUnavailable
from paceline.dashboards.snapshot import Snapshot
from paceline.policies.readings.ratio_sums import RatioSums
from said import said
from twins.memory_board import MemoryVersionBoard

NOW = 10_000.0
#: When the last draft of `board` went live.
LIVE_AT = 9_000.0

BEAT_S = 0.5
TTL_S = 10.0
#: Accepted of 10 rounds, by label.
ACCEPTED = {"py": 18, "": 12}
#: Of a decode step of batch 8: seconds and tokens, with 3 drafted tokens and without.
STEP_S = 0.003
DRAFTED_TOKENS = 24
PLAIN_TOKENS = 8


def version(number: int, **changes: object) -> DraftVersion:
    """Learnt from traffic of 8 000 s .. 8 986 s."""
    fields = {
        "number": number,
        "parent": number - 1 if number else None,
        "target": "target",
        "target_version": "1",
        "drafter": "eagle3",
        "weights_uri": "file:///gone",
        "sha256": "ab" * 32,
        "objective": "soft",
        "trained_on": ("8000000-0", "8986000-0"),
        "scores": {
            "judged_accept_length": 1.5 + number,
            "predicted_accept_length": 2.0 + number,
            "predicted_standard_error": 0.1,
        },
        "judged_on": JudgedOn(labels={"py": 40}, newest_labels={"py": 40}, median_age_s=30.0, oldest_age_s=80.0),
    }
    return DraftVersion(**(fields | changes))


def publish(on: VersionBoard, *numbers: int, why: str = "odds 40 to 1", **changes: object) -> None:
    """Drafts of these numbers, each live after the one before; `changes` are of all."""
    for number in numbers:
        on.register(version(number, **changes), "learner", "trained")
        on.move(number, VersionState.LIVE, "learner", why)


def board(count: int = 2, **changes: object) -> BoardState:
    """Drafts 0 .. count - 1, each live after the one before; `changes` are of all versions."""
    made = MemoryVersionBoard(clock=lambda: LIVE_AT)
    publish(made, *range(count), **changes)
    return made.read()


def replica(
    unseen_s: float = 0.5,
    *,
    is_alive: bool = True,
    captured: int = 9,
    delivered: int = 9,
    dropped: Mapping[str, int] | None = None,
    payload_bytes: int = 0,
    **status: object,
) -> MemberSeen:
    """A server that drafts with 1 and has delivered all that it captured."""
    traces = {"captured": captured, "delivered": delivered, "dropped": dropped or {}, "payload_bytes": payload_bytes}
    at = NOW - unseen_s
    usual = {"at": at, "draft_version": 1, "traces": traces, "open": 0, "queued": 0, "capture": "on"}
    return MemberSeen(said=said(usual | status), last_seen_at=at, is_alive=is_alive)


def learner(unseen_s: float = 0.5, *, is_alive: bool = True, **status: object) -> MemberSeen:
    at = NOW - unseen_s
    return MemberSeen(said=said({"kind": "idle", "at": at} | status), last_seen_at=at, is_alive=is_alive)


def snapshot(state: BoardState | None = None, histories: dict | None = None, **members: MemberSeen) -> Snapshot:
    """Members by name, with `_` for the colon."""
    named = {name.replace("_", ":", 1): one for name, one in members.items()}
    return Snapshot(
        speculator="default",
        at=NOW,
        state=board() if state is None else state,
        members=named,
        histories=histories or {},
    )


def requests(draft: int, label: str, pairs: list[tuple[int, int]]) -> ServedCell:
    """A cell of requests that ended, each (rounds, accepted)."""
    sums = sum((RatioSums.of(rounds, accepted) for rounds, accepted in pairs), RatioSums())
    counted = {"rounds": sums.rounds, "accepted": sums.accepted, "ended": astuple(sums)}
    return ServedCell(draft=draft, label=label, kind="greedy", **counted)


def counted(at: float, *cells: ServedCell, steps: tuple[StepCell, ...] = (), **traces: object) -> Counters:
    """One entry of a replica's history."""
    return Counters(
        at=at,
        boot="boot",
        served=ServedCounters(cells=[*cells]),
        scheduler=SchedulerCounters(steps=[*steps], seconds={"decode": sum(cell.seconds for cell in steps)}),
        traces=TraceCounters(**traces),
    )


def steps(draft_steps: int, count: int, *, tokens: int, seconds: float, **more: object) -> StepCell:
    """Decode steps of eight requests."""
    rows = {"tokens": tokens, "seconds": seconds, "requests": 8 * count}
    return StepCell(bucket=8, draft_steps=draft_steps, steps=count, **rows, **more)


def replica_status(boot: str, started_at: float, beats: int, draft: int, refused: int = 0) -> MemberStatus:
    """A replica after so many beats; every beat adds the same. One that refused a swap raises an alarm."""
    served = ServedCounters(
        cells=[requests(draft, label, [(10 * beats, accepted * beats)]) for label, accepted in ACCEPTED.items()],
        positions=[DraftPositions(draft=draft, tried=[20 * beats, 16 * beats], stood=[16 * beats, 14 * beats])],
        request_lengths=[0] * 5 + [beats] + [0] * (len(LENGTH_EDGES) - 5),
    )
    scheduler = SchedulerCounters(
        steps=[_timed(3, 20 * beats, DRAFTED_TOKENS), _timed(0, 4 * beats, PLAIN_TOKENS)],
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
    alarm = {"name": "hook_silent", "figures": {"rounds": 200}, "action": "tell"}
    alarms = [alarm] if refused else []
    told = {"capture": "on", "open": 3, "queued": 1, "draft_version": draft, "counters": counters}
    return said({**told, "standing_alarms": alarms, "swaps": [swap | lengths]})


def learner_status(boot: str, started_at: float, beats: int) -> MemberStatus:
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
    return MemberStatus(learn="learn", pending_registrations=0, counters=counters)


@contextmanager
def beating(on: VersionBoard, member: str, status: Callable[[int], MemberStatus]) -> Iterator[Event]:
    """Have `member` beat with `status` of the number of its beats, until the body ends or the event is set."""
    over = Event()

    def beat() -> None:
        beats = 0
        while not over.is_set():
            beats += 1
            with suppress(BufferUnavailable):  # as a courier does: the next beat tries again
                on.beat(member, status(beats), TTL_S)
            over.wait(BEAT_S)

    thread = Thread(target=beat)
    thread.start()
    try:
        yield over
    finally:
        over.set()
        thread.join()


def _timed(draft_steps: int, count: int, tokens: int) -> StepCell:
    durations = [0, 0, count] + [0] * (len(STEP_MS_EDGES) - 2)
    return steps(draft_steps, count, tokens=tokens * count, seconds=STEP_S * count, durations=durations)
