"""Whether a drafter without a model would do better than the draft that serves, as a learner's replay says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.table import Table

from ..buffer.board.member_status import DrafterSaid, LabelDraftersSaid, ModelFreeSaid
from .cells import cell, label_word
from .snapshot import LEARNER, Snapshot

_UNKNOWN = "drafters without a model: unknown, "


@dataclass(frozen=True, slots=True)
class Beside:
    """What a learner says of drafters without a model; None where no learner that is there says anything."""

    said: ModelFreeSaid | None

    @property
    def sentences(self) -> list[str]:
        """Who does better and on what; that nobody does; none where it is unknown."""
        rows = self.rows
        if not rows:
            return []
        everywhere, *labels = rows
        best = _best(everywhere)
        if _is_better(best):
            return [f"{_BETTER} on all traffic: {_figures_of(everywhere, best)}. {_TRY}"]
        winners = [(row, _best(row)) for row in labels]
        better = [f"{label_word(row.label or '')}: {_figures_of(row, one)}" for row, one in winners if _is_better(one)]
        if better:
            return [f"{_BETTER} on {'; on '.join(better)}. {_TRY}"]
        lengths = f"accept length {best.accept_length:.2f}, the draft {everywhere.accept_length:.2f}"
        return [f"No drafter without a model does better on any label; the best, {best.drafter}: {lengths}."]

    @property
    def why_unknown(self) -> str:
        """Why nothing is said; empty where something is."""
        if self.said is None:
            return f"{_UNKNOWN}no learner has replayed them"
        if not self.rows:
            left_out = ", ".join(f"{count} {reason}" for reason, count in self.said.left_out.items())
            return f"{_UNKNOWN}the learner has replayed no trace yet" + (f" (left out: {left_out})" if left_out else "")
        return ""

    @property
    def rows(self) -> Sequence[LabelDraftersSaid]:
        """All labels together, then each."""
        return [row for row in self.said.by_label if row.drafters] if self.said else []

    def as_fields(self) -> dict[str, Any]:
        """As JSON values."""
        return {"answer": self.sentences, "rows": [msgspec.to_builtins(row) for row in self.rows]}

    def table(self) -> Table:
        """A row per label, the draft first, then each drafter with its gain."""
        names = [one.drafter for one in self.rows[0].drafters]
        title = "accept length on the same text; x: verify rounds of the draft over the drafter's, 99.9 %"
        table = Table(title=title, title_justify="left", expand=False)
        for heading in ("label", "traces", "draft", *names):
            table.add_column(heading, overflow="fold")
        for label, *figures in self.cells():
            table.add_row(*map(cell, (label, *figures)))
        return table

    def cells(self) -> Iterator[tuple[str, ...]]:
        """The same rows as text."""
        for row in self.rows:
            label = "all" if row.label is None else label_word(row.label)
            yield (label, str(row.traces), f"{row.accept_length:.2f}", *map(_figures, row.drafters))


#: Where one does better, and what to do there.
_BETTER = "A drafter without a model does better"
_TRY = "SGLang's --speculative-algorithm NGRAM drafts in this way and needs no learner."


def beside(seen: Snapshot) -> Beside:
    """What the learner that is there says; of several the one that replayed most."""
    said = [one.said.model_free for one in seen.present(LEARNER).values() if one.said.model_free]
    return Beside(max(said, key=lambda one: one.by_label[0].traces if one.by_label else 0, default=None))


def _best(row: LabelDraftersSaid) -> DrafterSaid:
    return max(row.drafters, key=lambda one: one.gain)


def _is_better(one: DrafterSaid) -> bool:
    return one.low is not None and one.low > 1.0


def _figures_of(row: LabelDraftersSaid, one: DrafterSaid) -> str:
    lengths = f"accept length {one.accept_length:.2f}, the draft {row.accept_length:.2f}"
    return f"{one.drafter}, {lengths} (x{one.gain:.2f}, {row.traces} traces)"


def _figures(one: DrafterSaid) -> str:
    interval = "" if one.low is None or one.high is None else f" ({one.low:.2f} .. {one.high:.2f})"
    return f"{one.accept_length:.2f} x{one.gain:.2f}{interval}"
