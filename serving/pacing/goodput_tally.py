"""Tokens committed and time taken, by batch bucket and number of draft steps: whether drafts pay."""

from collections import defaultdict
from dataclasses import dataclass

from ...buffer.board.member_status import GoodputSaid


@dataclass(slots=True)
class _Sum:
    tokens: int = 0
    time_ms: float = 0.0
    steps: int = 0


class GoodputTally:
    """Sums of decode steps; one thread adds, any may read."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[int, int], _Sum] = defaultdict(_Sum)

    def add(self, bucket: int, draft_steps: int, tokens: int, cost_ms: float) -> None:
        """One decode step of a batch in `bucket` that committed `tokens`."""
        found = self._sums[bucket, draft_steps]
        found.tokens += tokens
        found.time_ms += cost_ms
        found.steps += 1

    def said(self) -> list[GoodputSaid]:
        """For every bucket in which both ran: goodput of plain decoding and of the number of drafts that ran most.

        In tokens per second, with the lower number of decode steps of the two.
        """
        sums = dict(self._sums)
        rows = []
        for bucket in sorted({bucket for bucket, _ in sums}):
            plain = sums.get((bucket, 0), _Sum())
            drafted = max((s for (b, k), s in sums.items() if b == bucket and k), key=lambda s: s.steps, default=_Sum())
            if plain.time_ms and drafted.time_ms:
                rows.append(
                    GoodputSaid(
                        bucket=bucket,
                        tokens_per_s=_per_s(drafted),
                        plain_tokens_per_s=_per_s(plain),
                        steps=min(plain.steps, drafted.steps),
                    )
                )
        return rows


def _per_s(found: _Sum) -> float:
    return 1e3 * found.tokens / found.time_ms
