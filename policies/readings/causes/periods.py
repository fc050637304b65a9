"""Which times are compared: the last minute with what came before it, or one draft's service with that before it."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from ....buffer.board.counters import Counters
from ....buffer.errors import ConfigError
from .amounts import Amounts
from .explanation import Period
from .stretches import Stretch, stretches

#: Now is the newest minute, and at most this share of the time before it.
NOW_S = 60.0
NOW_SHARE = 1 / 3


def since_periods(histories: Mapping[str, Sequence[Counters]], since_s: float, now_s: float) -> tuple[Period, Period]:
    """The `since_s` seconds before now, and now, which is the newest minute; a third of `since_s` where that is less.

    A stretch belongs to the period that holds its middle. `now_s` is by the clock of the histories.
    """
    length_s = min(NOW_S, since_s * NOW_SHARE)
    found = stretches(histories)
    began_s = now_s - length_s
    before = f"in the {_duration(since_s)} before"
    return (
        during(before, found, [(began_s - since_s, began_s)]),
        during(f"in the last {_duration(length_s)}", found, [(began_s, now_s)]),
    )


def during(name: str, found: Sequence[Stretch], spans: Sequence[tuple[float, float]]) -> Period:
    """The stretches whose middle lies in one of `spans`, at least one, each from and to a unix second."""
    inside = [each for each in found if any(span[0] <= _middle(each) < span[1] for span in spans)]
    return Period(name, min(span[0] for span in spans), max(span[1] for span in spans), _together(inside))


def draft_periods(histories: Mapping[str, Sequence[Counters]], draft: int) -> tuple[Period, Period]:
    """While the draft before `draft` served, and while `draft` did; stretches that saw both are left out.

    Every replica is compared with itself, with the draft it had before. ConfigError when the histories hold no replica
    that drafted with one draft and then with `draft`.
    """
    found = stretches(histories)
    pairs = [pair for member in _by_member(found) if (pair := _newest_pair(member, draft))]
    if not pairs:
        seen = sorted({each.draft for each in found if each.draft is not None})
        raise ConfigError(
            f"--draft: got {draft}, expected one that took over from another in the history, where {seen} drafted"
        )
    earlier = sorted({_draft_name(pair[0][0].draft) for pair in pairs})
    before, now = ([stretch for pair in pairs for stretch in pair[side]] for side in (0, 1))
    return _period(f"while {' or '.join(earlier)} served", before), _period(f"while draft {draft} served", now)


def _draft_name(draft: int | None) -> str:
    return "the server's own draft" if draft is None else f"draft {draft}"


def _newest_pair(member: Sequence[Stretch], draft: int) -> list[list[Stretch]]:
    """The last run of `draft` on one replica, preceded by the run before it; empty where there are not both."""
    pure = [stretch for stretch in member if stretch.is_one_draft]
    runs = [list(run) for _, run in groupby(pure, key=attrgetter("draft"))]
    found = [i for i, run in enumerate(runs) if run[0].draft == draft and i]
    return runs[found[-1] - 1 : found[-1] + 1] if found else []


def _by_member(found: Sequence[Stretch]) -> list[list[Stretch]]:
    member = attrgetter("member")
    return [list(group) for _, group in groupby(sorted(found, key=member), key=member)]


def _middle(stretch: Stretch) -> float:
    return (stretch.began_s + stretch.ended_s) / 2


def _period(name: str, found: Sequence[Stretch]) -> Period:
    return Period(name, min(s.began_s for s in found), max(s.ended_s for s in found), _together(found))


def _together(found: Sequence[Stretch]) -> tuple[Amounts, ...]:
    return tuple(stretch.amounts for stretch in sorted(found, key=lambda stretch: stretch.ended_s))


def _duration(seconds: float) -> str:
    if seconds >= 60 and seconds % 60 == 0:
        return "minute" if seconds == 60 else f"{seconds / 60:.0f} minutes"
    return f"{seconds:.0f} seconds"
