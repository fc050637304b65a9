"""Decode steps by batch size and number of draft steps: a bounded table of sums, for a heartbeat."""

from bisect import bisect_left
from dataclasses import dataclass, field

from ...buffer.board.counters import OTHER_BATCHES, OTHER_STEPS, STEP_MS_EDGES, StepCell

#: Cells told apart. A server that paces over four lengths needs as many for batches of up to eight requests.
MAX_CELLS = 16
_OTHER = OTHER_BATCHES, OTHER_STEPS


@dataclass(slots=True, kw_only=True)
class _Sums:
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    requests: int = 0
    durations: list[int] = field(default_factory=lambda: [0] * (len(STEP_MS_EDGES) + 1))


class StepCells:
    """Sums of decode steps; one thread adds, any may read. The first MAX_CELLS kinds of step have their own cells."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], _Sums] = {}

    def add(self, batch_size: int, draft_steps: int | None, *, took_s: float, tokens: int, requests: int) -> None:
        """One step of a batch of `batch_size`, of whose `requests` that still ran it committed `tokens`.

        `draft_steps` None: their number is not known.
        """
        sums = self._of((bucket_of(batch_size), draft_steps) if draft_steps is not None else _OTHER)
        sums.steps += 1
        sums.seconds += took_s
        sums.tokens += tokens
        sums.requests += requests
        sums.durations[bisect_left(STEP_MS_EDGES, 1e3 * took_s)] += 1

    def cells(self) -> list[StepCell]:
        """By bucket and draft steps; copies."""
        return [
            StepCell(
                bucket=bucket,
                draft_steps=draft_steps,
                steps=sums.steps,
                seconds=round(sums.seconds, 4),
                tokens=sums.tokens,
                requests=sums.requests,
                durations=[*sums.durations],
            )
            for (bucket, draft_steps), sums in sorted(dict(self._sums).items())
        ]

    def _of(self, key: tuple[int, int]) -> _Sums:
        found = self._sums.get(key)
        if found is None:
            found = self._sums.setdefault(key if len(self._sums) < MAX_CELLS else _OTHER, _Sums())
        return found


def bucket_of(batch_size: int) -> int:
    """The power of two that is no smaller: the largest batch size of its bucket."""
    return 1 << max(batch_size - 1, 0).bit_length()
