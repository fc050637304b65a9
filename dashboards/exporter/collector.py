"""Reads every board at a scrape."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ...buffer.board.version_board import VersionBoard
from ...buffer.errors import BoardConflict, BufferUnavailable, ConfigError, DecodeError
from ..snapshot import Snapshot
from .board_samples import board_samples
from .samples import Sample, metrics


class BoardCollector(Collector):
    """The boards of all speculators. `list_names` and `open_board` are called at every scrape, in its thread."""

    def __init__(self, list_names: Callable[[], Sequence[str]], open_board: Callable[[str], VersionBoard]) -> None:
        self._list_names = list_names
        self._open_board = open_board

    def collect(self) -> Iterator[Metric]:
        """All metrics; `paceline_up 0` alone if Redis does not answer, now or half-way. Blocks while Redis does."""
        try:
            samples = [sample for name in self._list_names() for sample in self._of(name)]
        except BufferUnavailable:
            yield from metrics([Sample("paceline_up", {}, 0.0)])
            return
        yield from metrics([Sample("paceline_up", {}, 1.0), *samples])

    def describe(self) -> list[Metric]:
        """Nothing: prometheus-client would collect otherwise, when the exporter starts."""
        return []

    def _of(self, name: str) -> list[Sample]:
        """A board that cannot be read says so, and keeps no other from being read."""
        try:
            board = self._open_board(name)
            return [
                *board_samples(Snapshot(speculator=name, at=board.now(), state=board.read(), members=board.members()))
            ]
        except (DecodeError, BoardConflict, ConfigError):
            return [Sample("paceline_speculator_readable", {"speculator": name}, 0.0)]
