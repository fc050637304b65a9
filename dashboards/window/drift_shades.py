"""When the learner's drift test fired, for the chart: from there until something came of it."""

from collections.abc import Iterator, Sequence

from ...buffer.board.counters import Counters, LearnerCounters
from ...buffer.board.version import VersionState
from .lives import Lives
from .look import Look


def drift_shades(look: Look, since: float, until: float) -> list[tuple[float, float]]:
    """Stretches (from, to) in unix seconds between two times, oldest first.

    Each begins where the drift test ended a rest, and ends where the next draft goes live, the learner rests again, or
    now. The test is of a learner at rest: one that learns has none to fire.
    """
    found = [
        (max(began, since), min(_came(look.lives, began, until), rested, until))
        for history in look.seen.histories.values()
        for began, rested in _drifts(history, until)
    ]
    return sorted((began, ended) for began, ended in found if began < ended)


def _drifts(history: Sequence[Counters], until: float) -> Iterator[tuple[float, float]]:
    """When the test fired, and when the learner rested again after that."""
    told = [(entry.at, entry.learner) for entry in history if entry.learner is not None]
    known: float | None = None
    for place, (_, counted) in enumerate(told):
        if counted.drifted_at is not None and counted.drifted_at != known:
            yield counted.drifted_at, _rested_at(told[place:], counted.rests, until)
        known = counted.drifted_at


def _rested_at(told: Sequence[tuple[float, LearnerCounters]], rests: int, until: float) -> float:
    return next((at for at, counted in told if counted.rests > rests), until)


def _came(lives: Lives, after: float, until: float) -> float:
    """When the first draft after a time went live."""
    stays = (stay for stays in lives.stays.values() for stay in stays)
    return min((stay.since for stay in stays if stay.state is VersionState.LIVE and stay.since > after), default=until)
