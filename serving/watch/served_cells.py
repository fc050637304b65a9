"""A bounded table of served rounds by draft, label and kind of sampling: what a heartbeat has room for."""

from bisect import bisect_right
from collections.abc import Iterable

from ...buffer.board.counters import (
    CONTEXT_STARTS,
    MAX_DRAFTS,
    MAX_LABELS,
    OLDER_DRAFTS,
    OUTPUT_STARTS,
    DraftPositions,
    ServedCell,
)
from ...buffer.board.version import OTHER_LABELS

#: Cells in all. More would not fit into a heartbeat (serving/courier/heartbeat.py).
MAX_CELLS = 20

_Key = tuple[int, str, str]  # draft, label, kind

#: The lists of a DraftPositions.
_LISTS = DraftPositions.__struct_fields__[1:]


class ServedCells:
    """Cells and positions of the newest drafts; what is older, or has no room, is folded into the cells of the rest.

    Newest are those that drafted last, so that a draft that is returned to is told apart; it begins again from 0 where
    it was folded meanwhile. Nothing is dropped: the sum over all cells only grows, and so does that over the cells of a
    draft while it is told apart. A label keeps its cell of a draft until it gives way to one of a newer draft.
    """

    def __init__(self, max_cells: int = MAX_CELLS) -> None:
        self._max_cells = max_cells
        self._cells: dict[_Key, ServedCell] = {}
        self._positions: dict[int, DraftPositions] = {}
        self._drafts: dict[int, None] = {}  # those told apart, the one that drafted last at the end

    def begin(self, draft: int) -> None:
        """From here on `draft` drafts."""
        self._drafts.pop(draft, None)
        if len(self._drafts) >= MAX_DRAFTS:
            self._fold_draft(next(iter(self._drafts)))
        self._drafts[draft] = None

    def count(
        self, draft: int, label: str, kind: str, *, accepted: int, drafted: int, output: int, context: int
    ) -> None:
        """One round of `drafted` drafts, which begins after `output` tokens of the answer and `context` in all."""
        cell = self._cell(draft, label, kind)
        cell.rounds += 1
        cell.accepted += accepted
        row = self._row(self._known(draft))
        _widen(row.tried, drafted)
        _widen(row.stood, drafted)
        for position in range(min(accepted + 1, drafted)):
            row.tried[position] += 1
        for position in range(accepted):
            row.stood[position] += 1
        _add_at(bisect_right(OUTPUT_STARTS, output, lo=1), row.output_rounds, row.output_accepted, accepted)
        _add_at(bisect_right(CONTEXT_STARTS, context, lo=1), row.context_rounds, row.context_accepted, accepted)

    def end(self, draft: int, label: str, kind: str, *, rounds: int, accepted: int) -> None:
        """A stretch of rounds that were counted has ended."""
        cell = self._cell(draft, label, kind)
        of = (1, rounds, accepted, rounds**2, rounds * accepted, accepted**2)
        cell.ended = _added(cell.ended, of)

    def add(self, cells: Iterable[ServedCell], positions: Iterable[DraftPositions]) -> None:
        """Go on from those of another table."""
        for cell in sorted(cells, key=lambda cell: cell.draft):
            self._meet(cell.draft)
            _pour(cell, self._cell(cell.draft, cell.label, cell.kind))
        for row in positions:
            _pour_positions(row, self._row(self._known(row.draft)))

    def cells(self) -> list[ServedCell]:
        """By draft, oldest first; copies."""
        return [_copy(cell) for cell in sorted(self._cells.values(), key=lambda cell: cell.draft)]

    def positions(self) -> list[DraftPositions]:
        """By draft, oldest first; copies."""
        rows = sorted(self._positions.values(), key=lambda row: row.draft)
        return [DraftPositions(draft=row.draft, **{name: [*getattr(row, name)] for name in _LISTS}) for row in rows]

    def _cell(self, draft: int, label: str, kind: str) -> ServedCell:
        draft = self._known(draft)
        found = self._cells.get((draft, label, kind))
        if found is None:
            key = draft, self._own_label(draft, label), kind
            found = self._cells.get(key) or self._new(key)
        return found

    def _new(self, key: _Key) -> ServedCell:
        draft, _, kind = key
        rest = draft, OTHER_LABELS, kind
        self._make_room(other for other in [*self._drafts] if other != draft)
        if self._is_full:
            # All that is left are labels of this draft, which keep their cells but for one: it makes room for the rest.
            key = rest
            self._make_room([draft], until=rest)
        while self._is_full and key not in self._cells and len(self._drafts) > 1:
            # Of several kinds of sampling, fewer drafts are told apart.
            self._fold_draft(next(other for other in self._drafts if other != draft))
        return self._cells.setdefault(key, ServedCell(draft=draft, label=key[1], kind=kind))

    def _own_label(self, draft: int, label: str) -> str:
        """`label`, where it may have cells of its own."""
        if draft == OLDER_DRAFTS:
            return OTHER_LABELS
        known = {key[1] for key in self._cells} - {OTHER_LABELS}
        return label if label in known or len(known) < MAX_LABELS else OTHER_LABELS

    def _known(self, draft: int) -> int:
        return draft if draft in self._drafts else OLDER_DRAFTS

    def _meet(self, draft: int) -> None:
        """Tell apart a draft of before, if there is room for it beside those that draft now."""
        if draft not in self._drafts and draft != OLDER_DRAFTS and len(self._drafts) < MAX_DRAFTS:
            self._drafts = {draft: None, **self._drafts}

    def _fold_draft(self, draft: int) -> None:
        del self._drafts[draft]
        for key in [key for key in self._cells if key[0] == draft]:
            cell = self._cells.pop(key)
            _pour(cell, self._cell(OLDER_DRAFTS, OTHER_LABELS, cell.kind))
        if draft in self._positions:
            _pour_positions(self._positions.pop(draft), self._row(OLDER_DRAFTS))

    @property
    def _is_full(self) -> bool:
        return len(self._cells) >= self._max_cells

    def _make_room(self, drafts: Iterable[int], until: _Key | None = None) -> None:
        """Fold the smallest cells of labels of `drafts` into their rests, until a cell is free or there is `until`."""
        for draft in drafts:
            while self._is_full and until not in self._cells and (labelled := self._labelled(draft)):
                cell = self._cells.pop(min(labelled, key=lambda key: self._cells[key].rounds))
                rest = ServedCell(draft=draft, label=OTHER_LABELS, kind=cell.kind)
                _pour(cell, self._cells.setdefault((draft, OTHER_LABELS, cell.kind), rest))

    def _labelled(self, draft: int) -> list[_Key]:
        return [key for key in self._cells if key[0] == draft and key[1] != OTHER_LABELS]

    def _row(self, draft: int) -> DraftPositions:
        if draft not in self._positions:
            self._positions[draft] = DraftPositions(draft=draft)
        return self._positions[draft]


def _widen(counts: list[int], width: int) -> None:
    if len(counts) < width:
        counts.extend([0] * (width - len(counts)))


def _add_at(width: int, rounds: list[int], accepted: list[int], more: int) -> None:
    """One round with `more` accepted drafts, in the bucket that is the last of `width`."""
    _widen(rounds, width)
    _widen(accepted, width)
    rounds[width - 1] += 1
    accepted[width - 1] += more


def _pour(cell: ServedCell, into: ServedCell) -> None:
    into.rounds += cell.rounds
    into.accepted += cell.accepted
    into.ended = _added(into.ended, cell.ended)


def _pour_positions(row: DraftPositions, into: DraftPositions) -> None:
    for counts, mine in ((getattr(row, name), getattr(into, name)) for name in _LISTS):
        _widen(mine, len(counts))
        for place, count in enumerate(counts):
            mine[place] += count


def _added(
    one: tuple[int, int, int, int, int, int], other: tuple[int, int, int, int, int, int]
) -> tuple[int, int, int, int, int, int]:
    a, b, c, d, e, f = (x + y for x, y in zip(one, other, strict=True))
    return a, b, c, d, e, f


def _copy(cell: ServedCell) -> ServedCell:
    return ServedCell(
        draft=cell.draft, label=cell.label, kind=cell.kind, rounds=cell.rounds, accepted=cell.accepted, ended=cell.ended
    )
