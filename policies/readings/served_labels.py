"""What one draft served by label: the last counters of each boot that still name it."""

from collections.abc import Iterable

from ...buffer.board.counters import Counters
from .ratio_sums import RatioSums


def served_labels(counters: Iterable[Counters], draft: int) -> dict[str, RatioSums]:
    """Label -> sums over the requests of `draft` that ended; `counters` as of served_drafts, with which it adds up."""
    last: dict[str, dict[str, RatioSums]] = {}
    for entry in sorted(counters, key=lambda entry: entry.at):
        found = _of_entry(entry, draft)
        if found:
            last[entry.boot] = found
    added: dict[str, RatioSums] = {}
    for labels in last.values():
        for label, sums in labels.items():
            added[label] = added.get(label, RatioSums()) + sums
    return added


def _of_entry(entry: Counters, draft: int) -> dict[str, RatioSums]:
    found: dict[str, RatioSums] = {}
    for cell in entry.served.cells if entry.served else ():
        if cell.draft == draft:
            found[cell.label] = found.get(cell.label, RatioSums()) + RatioSums.of_row(cell.ended)
    return found
