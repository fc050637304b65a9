"""Stretches: what every replica served between two entries of its history, and whether a learner ran meanwhile."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ....buffer.counters import OLDER_DRAFTS, Counters
from ....buffer.version import OTHER_LABELS
from ..ratio_sums import RatioSums
from .amounts import BUSY, IDLE, PARTLY, UNKNOWN, Amounts, Rounds, ServedKey, StepKey, Steps


@dataclass(frozen=True, slots=True)
class Stretch:
    """One replica between two neighbouring entries of its history."""

    member: str
    began_s: float  # unix seconds
    ended_s: float
    draft: int | None  # that drafted at its end; None: the one the server was started with, or it is not known
    is_one_draft: bool  # whether that draft drafted at its beginning too
    amounts: Amounts


def stretches(histories: Mapping[str, Sequence[Counters]]) -> list[Stretch]:
    """Of every member that serves, oldest first.

    After a restart the new process counts from nothing, so all that it counts belongs to its first stretch; what the
    one before it served after its last entry is lost. What the first entry of a history counts has no beginning, and
    is left out.
    """
    learners = [[c for c in history if c.learner is not None] for history in histories.values()]
    learners = [history for history in learners if history]
    found = [
        _stretch(member, earlier, later, learners)
        for member, history in histories.items()
        for earlier, later in pairwise(c for c in history if c.served is not None or c.scheduler is not None)
    ]
    return sorted(found, key=lambda stretch: stretch.ended_s)


def _stretch(member: str, earlier: Counters, later: Counters, learners: Sequence[Sequence[Counters]]) -> Stretch:
    is_one_boot = earlier.boot == later.boot
    counted = _difference(_counted(later), _counted(earlier) if is_one_boot else Amounts())
    state = _learner_state(learners, earlier.at, later.at)
    amounts = replace(
        counted,
        steps={key._replace(learner=state): cell for key, cell in counted.steps.items()},
        targets=frozenset({later.target_version} - {""}),
        replicas=frozenset({member}),
    )
    return Stretch(member, earlier.at, later.at, later.draft, is_one_boot and earlier.draft == later.draft, amounts)


def _counted(counters: Counters) -> Amounts:
    """What a replica has counted since it started."""
    cells = counters.served.cells if counters.served else []
    scheduler = counters.scheduler
    return Amounts(
        served={
            ServedKey(cell.label, cell.kind, cell.draft): Rounds(cell.rounds, cell.accepted, RatioSums(*cell.ended))
            for cell in cells
        },
        steps={
            StepKey(cell.bucket, cell.draft_steps, UNKNOWN): Steps(cell.steps, cell.seconds, cell.tokens, cell.requests)
            for cell in (scheduler.steps if scheduler else [])
        },
        seconds=dict(scheduler.seconds) if scheduler else {},
    )


def _difference(later: Amounts, earlier: Amounts) -> Amounts:
    """Later minus earlier; cells without anything are left out."""
    steps = {key: _steps_less(cell, earlier.steps.get(key, Steps())) for key, cell in later.steps.items()}
    seconds = {name: max(after - earlier.seconds.get(name, 0.0), 0.0) for name, after in later.seconds.items()}
    served = _served_less(later.served, earlier.served)
    return Amounts(served, {key: cell for key, cell in steps.items() if cell.steps > 0}, seconds)


def _served_less(later: Mapping[ServedKey, Rounds], earlier: Mapping[ServedKey, Rounds]) -> dict[ServedKey, Rounds]:
    """As ServedCounters says: a cell that has gone, or is smaller than before, was poured into the one for the rest."""
    found = dict(later)
    for key, before in earlier.items():
        is_same = later.get(key, Rounds()).rounds >= before.rounds
        taker = key if is_same else _taker(key, later)
        found[taker] = _less(found.get(taker, Rounds()), before)
    return {key: cell for key, cell in found.items() if cell.rounds > 0}


def _taker(key: ServedKey, later: Mapping[ServedKey, Rounds]) -> ServedKey:
    rest = ServedKey(OTHER_LABELS, key.kind, key.draft)
    return rest if rest in later and rest != key else ServedKey(OTHER_LABELS, key.kind, OLDER_DRAFTS)


def _less(one: Rounds, other: Rounds) -> Rounds:
    return Rounds(one.rounds - other.rounds, one.accepted - other.accepted, one.ended - other.ended)


def _steps_less(later: Steps, earlier: Steps) -> Steps:
    return Steps(
        later.steps - earlier.steps,
        later.seconds - earlier.seconds,
        later.tokens - earlier.tokens,
        later.requests - earlier.requests,
    )


def _learner_state(learners: Sequence[Sequence[Counters]], began_s: float, ended_s: float) -> str:
    """Whether any learner ran a round, by its newest entries at both ends; before its first entry it had not begun."""
    if not learners:
        return UNKNOWN
    ends = [any(_is_busy(history, at) for history in learners) for at in (began_s, ended_s)]
    return PARTLY if ends[0] != ends[1] else BUSY if ends[0] else IDLE


def _is_busy(history: Sequence[Counters], at: float) -> bool:
    newest = bisect_right(history, at, key=lambda counters: counters.at)
    learner = history[newest - 1].learner if newest else None
    return learner is not None and learner.is_busy
