"""What the exporter says, as Prometheus reads it: the text of /metrics, parsed by prometheus-client's own parser."""

from collections.abc import Iterable

from paceline.dashboards.exporter.board_samples import board_samples
from paceline.dashboards.exporter.collector import BoardCollector
from paceline.dashboards.exporter.samples import metrics
from paceline.dashboards.snapshot import Snapshot
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

#: (name, labels in the order of their names) -> value.
Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Scrape:
    found: Scrape = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} comes twice"
            found[key] = sample.value
    return found


class _Fixed:
    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def scrape(source: Snapshot | BoardCollector) -> Scrape:
    """A scrape of one snapshot, or of whatever a collector reads."""
    registry = CollectorRegistry(auto_describe=False)
    made = _Fixed(metrics(board_samples(source))) if isinstance(source, Snapshot) else source
    registry.register(made)
    return parsed(generate_latest(registry).decode())


def value(found: Scrape, name: str, /, **labels: str) -> float | None:
    """Sum of the samples of `name` that have `labels`, whatever else they have; None where there is none."""
    wanted = labels.items()
    rows = [row for (called, own), row in found.items() if called == name and wanted <= dict(own).items()]
    return sum(rows) if rows else None


def labels_of(found: Scrape, name: str, label: str) -> set[str]:
    return {dict(own)[label] for called, own in found if called == name}
