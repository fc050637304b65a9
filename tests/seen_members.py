"""Hand-made snapshots: boards by the real fold, members and counters as they send them."""

from paceline.buffer.counters import Counters, SchedulerCounters, ServedCell, ServedCounters, StepCell, TraceCounters
from paceline.buffer.member_board import MemberSeen
from paceline.buffer.testing.memory_board import MemoryVersionBoard
from paceline.buffer.version import BoardState, DraftVersion, JudgedOn, VersionState
from paceline.dashboards.snapshot import Snapshot
from paceline.policies.readings.ratio_sums import RatioSums

NOW = 10_000.0
#: When the last draft of `board` went live.
LIVE_AT = 9_000.0


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
        "judged_on": JudgedOn({"py": 40}, {"py": 40}, 30.0, 80.0),
    }
    return DraftVersion(**(fields | changes))


def board(count: int = 2, **changes: object) -> BoardState:
    """Drafts 0 .. count - 1, each live after the one before; `changes` are of all versions."""
    made = MemoryVersionBoard(clock=lambda: LIVE_AT)
    for number in range(count):
        made.register(version(number, **changes), "learner", "trained")
        made.move(number, VersionState.LIVE, "learner", "odds 40 to 1")
    return made.read()


def replica(unseen_s: float = 0.5, *, is_alive: bool = True, **status: object) -> MemberSeen:
    """A server that drafts with 1 and has delivered all that it captured."""
    said = {"draft_version": 1, "captured": 9, "delivered": 9, "dropped": {}, "open": 0, "queued": 0, "capture": "on"}
    at = NOW - unseen_s
    return MemberSeen(status=said | {"at": at, "counters": {}} | status, last_seen_at=at, is_alive=is_alive)


def learner(unseen_s: float = 0.5, *, is_alive: bool = True, **status: object) -> MemberSeen:
    at = NOW - unseen_s
    return MemberSeen(status={"kind": "idle", "at": at, "counters": {}} | status, last_seen_at=at, is_alive=is_alive)


def snapshot(state: BoardState | None = None, histories: dict | None = None, **members: MemberSeen) -> Snapshot:
    """Members by name, with `_` for the colon."""
    named = {name.replace("_", ":", 1): one for name, one in members.items()}
    return Snapshot("default", NOW, board() if state is None else state, named, histories or {})


def requests(draft: int, label: str, pairs: list[tuple[int, int]]) -> ServedCell:
    """A cell of requests that ended, each (rounds, accepted)."""
    sums = sum((RatioSums.of(rounds, accepted) for rounds, accepted in pairs), RatioSums())
    ended = (
        sums.requests,
        sums.rounds,
        sums.accepted,
        sums.rounds_squared,
        sums.rounds_accepted,
        sums.accepted_squared,
    )
    return ServedCell(draft=draft, label=label, kind="greedy", rounds=sums.rounds, accepted=sums.accepted, ended=ended)


def counted(at: float, *cells: ServedCell, steps: tuple[StepCell, ...] = (), **traces: object) -> Counters:
    """One entry of a replica's history."""
    return Counters(
        at=at,
        boot="boot",
        served=ServedCounters(cells=[*cells]),
        scheduler=SchedulerCounters(steps=[*steps], seconds={"decode": sum(cell.seconds for cell in steps)}),
        traces=TraceCounters(**traces),
    )


def steps(draft_steps: int, count: int, *, tokens: int, seconds: float, bucket: int = 8) -> StepCell:
    """Decode steps of eight requests."""
    return StepCell(
        bucket=bucket, draft_steps=draft_steps, steps=count, seconds=seconds, tokens=tokens, requests=8 * count
    )
