"""The versions of the target that traces have named, in the order of their age: what a learner follows.

Nobody tells a learner that the target has moved; the traces do, each naming the version that verified it. Replicas
move one after the other and a long request ends late, so a trace may name an older version than the trace before it.
What counts up is ordered by its value, and no late trace turns it back: whole numbers, and what a server makes of
updates that nobody named, "7+1" and "7+2" after "7". Every other name is as old as the first trace that had it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Versions remembered. One that was forgotten and comes again is a new one, unless newer ones of its count are known.
REMEMBERED_VERSIONS = 200

#: So many traces in a row without one of the newest version: the target was set back, to the newest of theirs.
SET_BACK_AFTER = 100

#: Where a trace is in the stream; see buffer.base.entry_order.
Place = tuple[int, int]

_START: Place = (-1, 0)  # before every trace

#: Longer numbers are names like any other: int() of a text without end would never return.
_NUMBER = "0|[1-9][0-9]{0,17}"
_UPDATED = re.compile(r"(?P<base>.*)\+(?P<updates>[1-9][0-9]{0,17})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Count:
    """A version as a value; those of one series are ordered by it. Of whole numbers the series is None."""

    series: str | None
    value: tuple[int, int]  # the number, 0 of a name; then how many updates came after it


def _count(version: str) -> _Count:
    found = _UPDATED.fullmatch(version)
    base, updates = (found["base"], int(found["updates"])) if found else (version, 0)
    return _Count(None, (int(base), updates)) if re.fullmatch(_NUMBER, base) else _Count(base, (0, updates))


def by_age(first_seen: Mapping[str, Place]) -> list[str]:
    """The versions, oldest first. `first_seen`: where in the stream the first trace of each is.

    A version becomes the newest with its first trace, unless a later one of its series was seen before: then it is
    just older than the next one of those.
    """
    as_new_as: dict[str | None, Place] = {}  # series -> first trace of any version that has this value or a larger one
    found: dict[str, tuple[Place, tuple[int, int]]] = {}
    counts = {version: _count(version) for version in first_seen}
    for version in sorted(counts, key=lambda version: counts[version].value, reverse=True):
        series = counts[version].series
        place = first_seen[version]
        as_new_as[series] = min(place, as_new_as.get(series, place))
        found[version] = as_new_as[series], counts[version].value
    return sorted(found, key=lambda version: found[version])


class TargetHistory:
    """Follows one target. Deterministic, and the same in whatever order the traces are claimed."""

    def __init__(self, target: str, max_age: int, named: tuple[str, ...] = ()) -> None:
        """`target` is its name; versions at most `max_age` before the newest are trained on.

        `named` are the versions to train on, oldest first, where an operator says which: no trace changes them.
        """
        self._target = target
        self._max_age = max_age
        self._named = named
        self._begin(_START, {})

    def _begin(self, after: Place, first_seen: Mapping[str, Place]) -> None:
        """Know of the versions `first_seen` alone, and look at no trace up to the place `after`."""
        self._after = self._last_newest = after
        self._first_seen = dict(first_seen)
        self._since: dict[str, Place] = {}  # versions of traces since the last one of the newest -> first of these
        self._traces_since = 0
        self._order()

    @property
    def newest(self) -> str | None:
        """The version that the target has now; None while no trace has named one."""
        return self.trained[-1] if self.trained else None

    @property
    def judging(self) -> tuple[str, ...]:
        """The versions whose verdicts measure a draft, oldest first: all that are trained on; of named ones the newest.

        Named ones are checkpoints that an operator served, and may be far apart; followed ones are steps of one run.
        """
        return self.trained[-1:] if self._named else self.trained

    def observe(self, seen: Iterable[tuple[Place, str]]) -> None:
        """Add traces of this target, each as its place in the stream and the version that verified it."""
        for place, version in () if self._named else sorted(seen):
            if place <= self._after:
                continue
            if version not in self._first_seen or place < self._first_seen[version]:
                self._first_seen[version] = place
                self._order()
            if place > self._last_newest:
                self._watch(place, version)

    def _watch(self, place: Place, version: str) -> None:
        """Forget the versions that are newer than all that is served any more."""
        if version == self.newest:
            self._last_newest = place
            self._since = {}
            self._traces_since = 0
            return
        self._since.setdefault(version, place)
        self._traces_since += 1
        if self._traces_since >= SET_BACK_AFTER:
            known = {**self._since, **self._first_seen}
            order = by_age(known)
            served = order[: max(map(order.index, self._since)) + 1]
            self._begin(self._last_newest, {kept: known[kept] for kept in served})

    def _order(self) -> None:
        versions = by_age(self._first_seen)[-REMEMBERED_VERSIONS:]
        self._first_seen = {version: self._first_seen[version] for version in versions}
        # Oldest first; empty while no trace has named one.
        self.trained = self._named or tuple(versions[-(self._max_age + 1) :])

    def state(self) -> dict[str, object]:
        """What continuing needs, as JSON values; a restored history goes on as this one would."""
        if self._named:
            return {}
        return {
            "target": self._target,
            "after": self._after,
            "first_seen": self._first_seen,
            "last_newest": self._last_newest,
            "since": self._since,
            "traces_since": self._traces_since,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; an empty one, or that of a target with another name, is of no trace."""
        if self._named or state.get("target") != self._target:
            self._begin(_START, {})
            return
        self._begin(tuple(state["after"]), _places(state["first_seen"]))
        self._last_newest = tuple(state["last_newest"])
        self._since = _places(state["since"])
        self._traces_since = int(state["traces_since"])


def _places(stored: Mapping[str, Any]) -> dict[str, Place]:
    """JSON has no tuples."""
    return {version: (int(place[0]), int(place[1])) for version, place in stored.items()}
