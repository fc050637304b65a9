"""Stretches: what every replica served between two entries of its history, and whether a learner ran meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ....buffer.board.counters import Counters
from ..tables import Amount, CellKey, CellSums, StepSums, Tables, difference, tables_of
from .amounts import UNKNOWN, Amounts, Rounds, ServedKey, StepKey, Steps
from .busy_learners import Span, busy_spans, learner_state


@dataclass(frozen=True, slots=True, kw_only=True)
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
    learners = [busy_spans(history) for history in histories.values() if any(c.learner is not None for c in history)]
    found = [
        _stretch(member, earlier, later, learners)
        for member, history in histories.items()
        for earlier, later in pairwise(c for c in history if c.served is not None or c.scheduler is not None)
    ]
    return sorted(found, key=lambda stretch: stretch.ended_s)


def _stretch(member: str, earlier: Counters, later: Counters, learners: Sequence[Sequence[Span]]) -> Stretch:
    is_one_boot = earlier.boot == later.boot
    counted = _counted(later, earlier if is_one_boot else None)
    state = learner_state(learners, earlier.at, later.at)
    amounts = replace(
        counted,
        steps={key._replace(learner=state): cell for key, cell in counted.steps.items()},
        targets=frozenset({later.target_version} - {""}),
        replicas=frozenset({member}),
    )
    return Stretch(
        member=member,
        began_s=earlier.at,
        ended_s=later.at,
        draft=later.draft,
        is_one_draft=is_one_boot and earlier.draft == later.draft,
        amounts=amounts,
    )


def _counted(later: Counters, earlier: Counters | None) -> Amounts:
    """What a replica counted since `earlier`, or since it started."""
    served = _since(later.served, earlier and earlier.served)
    scheduled = _since(later.scheduler, earlier and earlier.scheduler)
    cells: Mapping[CellKey, CellSums] = served.get("cells", {})
    steps: Mapping[tuple[int, int], StepSums] = scheduled.get("steps", {})
    seconds: Mapping[str, Amount] = scheduled.get("scheduler_seconds", {})
    return Amounts(
        served={
            ServedKey(key.label, key.kind, key.draft): Rounds(row.rounds, row.accepted, row[2:])
            for key, row in cells.items()
            if row.rounds
        },
        steps={StepKey(*key, learner=UNKNOWN): Steps(*row) for key, row in steps.items() if row.steps},
        seconds={name: amount.total for name, amount in seconds.items()},
    )


def _since(later: object | None, earlier: object | None) -> Tables:
    if later is None:
        return {}
    return tables_of(later) if earlier is None else difference(tables_of(later), tables_of(earlier))
