"""Samples: one figure under a metric's name, with its labels, before it is Prometheus' text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from .families import FAMILIES, Family, Kind


class Histogram(NamedTuple):
    """Counts by bucket, the open one last, and the sum of what was counted; None where that is not known."""

    counts: Sequence[float]
    sum: float | None


class Sample(NamedTuple):
    """One figure; `labels` are those of its Family."""

    name: str
    labels: Mapping[str, str]
    value: float | Histogram


def labelled(samples: Iterable[Sample], **labels: str) -> Iterator[Sample]:
    """`samples` with further labels."""
    for sample in samples:
        yield Sample(sample.name, {**labels, **sample.labels}, sample.value)


def metrics(samples: Iterable[Sample]) -> list[Metric]:
    """As prometheus-client takes them, in the order of FAMILIES; those without a sample are left out.

    Counters that bear the same labels are added up: a label that clients chose may be what the rest is called. Of two
    such gauges the last one stays. KeyError for a name or a label that FAMILIES does not have.
    """
    found: dict[str, dict[tuple[str, ...], float | Histogram]] = {}
    for name, labels, value in samples:
        family = FAMILIES[name]
        rows = found.setdefault(name, {})
        key = tuple(labels[label] for label in family.labels)
        rows[key] = _joined(rows[key], value, family.kind) if key in rows else value
    return [_metric(family, found[name]) for name, family in FAMILIES.items() if name in found]


def _joined(before: float | Histogram, value: float | Histogram, kind: Kind) -> float | Histogram:
    if kind is not Kind.COUNTER or isinstance(before, Histogram) or isinstance(value, Histogram):
        return value
    return before + value


def _metric(family: Family, rows: Mapping[tuple[str, ...], float | Histogram]) -> Metric:
    if family.kind is Kind.HISTOGRAM:
        return _histogram(family, rows)
    made = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    metric = made(family.name, family.meaning, labels=family.labels)
    for key, value in rows.items():
        if not isinstance(value, Histogram):
            metric.add_metric(key, value)
    return metric


def _histogram(family: Family, rows: Mapping[tuple[str, ...], float | Histogram]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.meaning, labels=family.labels)
    edges = [*map(str, family.edges), "+Inf"]
    for key, value in rows.items():
        if isinstance(value, Histogram):
            buckets = [(edge, float(count)) for edge, count in zip(edges, accumulate(value.counts), strict=True)]
            metric.add_metric(key, buckets, value.sum)
    return metric
