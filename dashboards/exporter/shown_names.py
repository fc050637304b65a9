"""Which drafts and labels have series of their own: their number is bounded, or Prometheus would fill up."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...buffer.board.counters import MAX_DRAFTS, MAX_LABELS, MODEL_FREE, OLDER_DRAFTS, Counters
from ...buffer.board.version import OTHER_LABELS

#: Drafts, and labels, that have no series of their own.
OLDER = "older"
OTHER = "other"
#: Drafts that no weights proposed.
NO_MODEL = "no model"
#: Requests whose clients named no label; no label is this.
UNLABELLED = "(none)"


@dataclass(frozen=True, slots=True)
class ShownNames:
    """The names of one speculator, the same for all of its members."""

    drafts: frozenset[int]
    labels: frozenset[str]

    def draft(self, number: int) -> str:
        """`number`, OLDER, or NO_MODEL."""
        if number == MODEL_FREE:
            return NO_MODEL
        return str(number) if number in self.drafts else OLDER

    def label(self, label: str) -> str:
        """`label`, UNLABELLED, or OTHER."""
        if not label:
            return UNLABELLED
        return label if label in self.labels else OTHER


def shown_names(counters: Iterable[Counters], on_board: Iterable[int] = ()) -> ShownNames:
    """MAX_DRAFTS drafts, those that draft now before the highest numbers; MAX_LABELS labels, by their rounds."""
    read = list(counters)
    rounds = _rounds_by_label(read)
    now = {each.draft for each in read if each.draft is not None}
    served = {cell.draft for each in read if each.served for cell in each.served.cells} - {OLDER_DRAFTS, MODEL_FREE}
    drafts = sorted({*now, *served, *on_board}, key=lambda number: (number not in now, -number))
    labels = sorted(rounds, key=lambda label: (-rounds[label], label))
    return ShownNames(frozenset(drafts[:MAX_DRAFTS]), frozenset(labels[:MAX_LABELS]))


def _rounds_by_label(counters: Iterable[Counters]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for cell in (cell for each in counters if each.served for cell in each.served.cells):
        if cell.label not in {"", OTHER_LABELS}:
            found[cell.label] = found.get(cell.label, 0) + cell.rounds
    return found
