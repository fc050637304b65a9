"""A canary that is as good as the live version, tried while traffic shifts: how often is it rolled back wrongly?

Two replicas share the requests of a stream, the canary on one of them; both arms replay the same version of the line,
which has served some chunks before, so that there is history to compare with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...buffer.version import VersionState
from ...serving.courier.courier import TRIAL_BEAT_S
from ...serving.watch.draft_monitor import DraftMonitor
from .guarded import ROUND_S, Fleet, Slot, slots_of
from .matrix import Matrix

LIVE, CANARY = 0, 1
#: Chunks that the live version has served when the canary comes.
SERVED_CHUNKS = 3
#: Grounds of a rollback, and words of the reason that only they give.
GROUNDS = {"begins of its requests": "accept far less", "silent_death": "silent_death", "interval": "lies below zero"}


@dataclass(frozen=True, slots=True)
class Trial:
    """How one canary ended."""

    state: VersionState  # canary: still undecided at the end of the stream
    ground: str  # of a rollback; empty otherwise
    rounds: int  # of the canary


def tried(matrix: Matrix, begin: int, end: int, rng: np.random.Generator, canary: Matrix | None = None) -> Trial:
    """One canary, tried on chunks `begin` to `end - 1`; `canary` is what its replica serves by, if not by `matrix`.

    Both arms are the line as it was before chunk `begin - SERVED_CHUNKS`. Draws the order of requests inside chunks,
    and when the live arm's heartbeats come: they do not wait for the canary's.
    """
    first = begin - SERVED_CHUNKS
    fleet, version, rounds = Fleet(2), first * matrix.blocks_per_round, 0
    ours, others = fleet.monitor("canary"), fleet.monitor("live")
    history = [request for chunk in range(first, begin) for request in _shuffled(matrix, chunk, rng)]
    for slot in slots_of(matrix, history[1::2]):
        while slot.is_busy:
            others.add(slot.round(version, LIVE))
    fleet.board.move(CANARY, VersionState.CANARY, "learner", "won the gate", "canary")
    order = [request for chunk in range(begin, end) for request in _shuffled(matrix, chunk, rng)]
    arms = slots_of(canary or matrix, order[::2]), slots_of(matrix, order[1::2])
    _beat(fleet, others)
    beat_at = fleet.now_s - rng.random() * TRIAL_BEAT_S
    while fleet.board.read().canary is not None and all(any(slot.is_busy for slot in arm) for arm in arms):
        rounds += _tick(arms[0], ours, version, CANARY)
        _tick(arms[1], others, version, LIVE)
        fleet.now_s += ROUND_S
        if fleet.now_s - beat_at >= TRIAL_BEAT_S:
            beat_at = fleet.now_s
            _beat(fleet, others)
        ours.turn(fleet.now_s)
    row = fleet.board.read().rows[CANARY]
    return Trial(row.state, _ground(row.why) if row.state is VersionState.ROLLED_BACK else "", rounds)


def _beat(fleet: Fleet, live: DraftMonitor) -> None:
    fleet.board.beat("replica:live", {**live.status(), "at": fleet.now_s}, 60.0)


def _tick(slots: Sequence[Slot], monitor: DraftMonitor, version: int, named: int) -> int:
    """One round of every busy slot, counted."""
    busy = [slot for slot in slots if slot.is_busy]
    for slot in busy:
        monitor.add(slot.round(version, named))
    return len(busy)


def _shuffled(matrix: Matrix, chunk: int, rng: np.random.Generator) -> list[int]:
    order: list[int] = rng.permutation(np.flatnonzero(matrix.chunk_of == chunk)).tolist()
    return order


def _ground(why: str) -> str:
    return next((ground for ground, words in GROUNDS.items() if words in why), "other")
