"""The change of a mean, split into changes of shares, level by level, and the change within cells; it adds up exactly.

Kitagawa's decomposition (Components of a Difference Between Two Rates, JASA 50, 1955) at every level: shares change at
the mean of both periods' values, values at the mean of both periods' shares, so neither period is the base and nothing
is left over. Das Gupta (1993) orders several factors alike by averaging; here the order is the one of the keys.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Values of cells, keyed by what is told apart at each level, the first level first.
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Weighted:
    """A sum and what it is divided by; their quotient is the mean."""

    weight: float = 0.0
    total: float = 0.0

    def __add__(self, other: "Weighted") -> "Weighted":
        return Weighted(self.weight + other.weight, self.total + other.total)

    @property
    def mean(self) -> float:
        """0.0 without weight."""
        return self.total / self.weight if self.weight else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """One value of the first level in both periods."""

    before: Mapping[Key, Weighted]
    now: Mapping[Key, Weighted]
    shares: tuple[float, float]
    means: tuple[float, float]
    is_known: tuple[bool, bool]  # whether each period holds enough of it for its mean to be relied on

    @property
    def mean_share(self) -> float:
        return sum(self.shares) / 2


def pooled(cells: Iterable[Weighted]) -> Weighted:
    """All cells as one."""
    return sum(cells, Weighted())


def split_change(
    before: Mapping[Key, Weighted], now: Mapping[Key, Weighted], *, levels: int, enough: float
) -> tuple[float, ...]:
    """Mean of `now` minus mean of `before` as `levels` + 1 parts: the shares at each level, then within cells.

    Every key has `levels` elements, and both periods have weight. A group of which one period holds less weight than
    `enough` is taken to have moved there as the other groups did (not at all, if there is none); how its few differ
    from that counts as within cells.
    """
    if levels == 0:
        return (pooled(now.values()).mean - pooled(before.values()).mean,)
    groups = _groups(before, now, enough)
    inner = {name: _within(g, levels - 1, enough) for name, g in groups.items() if all(g.is_known)}
    drift = _relative_drift(groups, inner, levels)
    parts = [0.0] * (levels + 1)
    for name, group in groups.items():
        middle, below, rest = _moved(group, inner.get(name), drift)
        parts[0] += (group.shares[1] - group.shares[0]) * middle
        for level, part in enumerate(below, start=1):
            parts[level] += group.mean_share * part
        parts[-1] += rest
    return tuple(parts)


def _within(group: _Group, levels: int, enough: float) -> tuple[float, ...]:
    return split_change(group.before, group.now, levels=levels, enough=enough)


def _groups(before: Mapping[Key, Weighted], now: Mapping[Key, Weighted], enough: float) -> dict[Any, _Group]:
    whole = pooled(before.values()).weight, pooled(now.values()).weight
    found = {}
    for name in dict.fromkeys(key[0] for key in (*before, *now)):
        cells = [{key[1:]: cell for key, cell in period.items() if key[0] == name} for period in (before, now)]
        sums = [pooled(period.values()) for period in cells]
        found[name] = _Group(
            before=cells[0],
            now=cells[1],
            shares=(sums[0].weight / whole[0], sums[1].weight / whole[1]),
            means=(sums[0].mean, sums[1].mean),
            is_known=(sums[0].weight >= enough, sums[1].weight >= enough),
        )
    return found


def _relative_drift(
    groups: Mapping[Any, _Group], inner: Mapping[Any, tuple[float, ...]], levels: int
) -> tuple[float, ...]:
    """How the groups that both periods know have moved, by level, over their mean value."""
    base = sum(groups[name].mean_share * sum(groups[name].means) / 2 for name in inner)
    if not base:
        return (0.0,) * levels
    moved = [sum(groups[name].mean_share * parts[level] for name, parts in inner.items()) for level in range(levels)]
    return tuple(part / base for part in moved)


def _moved(
    group: _Group, known: tuple[float, ...] | None, drift: tuple[float, ...]
) -> tuple[float, tuple[float, ...], float]:
    """Value in the middle of both periods, its change by level, and what the few of an unknown period add."""
    if known is not None:
        return sum(group.means) / 2, known, 0.0
    if any(group.is_known):
        half = sum(drift) / 2
        middle = group.means[0] / (1.0 - half) if group.is_known[0] else group.means[1] / (1.0 + half)
        assumed = middle * (1.0 - half), middle * (1.0 + half)
    else:
        weights = [pooled(cells.values()) for cells in (group.before, group.now)]
        middle = pooled(weights).mean
        drift = (0.0,) * len(drift)
        assumed = middle, middle
    rest = [share * (mean - value) for share, mean, value in zip(group.shares, group.means, assumed, strict=True)]
    return middle, tuple(middle * part for part in drift), rest[1] - rest[0]
