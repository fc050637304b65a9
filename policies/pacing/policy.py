"""How many drafts to take per verify round, by batch size: the contract, and the sweep that measures what lengths cost.

A decode step of a batch with k draft steps costs some milliseconds and commits, per request, the accepted drafts and
one token of the target's own. Goodput is committed tokens per millisecond. k = 0 is plain decoding.

On tensor-parallel ranks a policy runs once per rank and must choose alike: give all ranks the same costs, from a table
that `paceline pacing-costs` wrote. Nothing else enters a choice.
"""

from collections.abc import Sequence
from typing import Protocol


class Pacing(Protocol):
    """Chooses draft steps. Deterministic: the same calls give the same choices."""

    def steps(self, batch_size: int) -> int:
        """Draft steps for the next decode step of `batch_size` requests; 0 is plain decoding."""
        ...

    def observe(self, batch_size: int, steps: int, accepted: Sequence[int], cost_ms: float | None) -> None:
        """A decode step ran with `steps`: accepted drafts of each request, and how long it took if that is known."""
        ...

    def draft_changed(self) -> None:
        """Another draft serves from now on."""
        ...


class SweepPacing:
    """Every length in turn, `run` decode steps each: for measuring what lengths cost."""

    def __init__(self, lengths: Sequence[int], run: int = 8) -> None:
        self._lengths = tuple(lengths)
        self._run = run
        self._observed = 0

    def steps(self, batch_size: int) -> int:
        """The length whose turn it is."""
        del batch_size
        return self._lengths[self._observed // self._run % len(self._lengths)]

    def observe(self, batch_size: int, steps: int, accepted: Sequence[int], cost_ms: float | None) -> None:
        """Count the step; nothing else changes the turn."""
        del batch_size, steps, accepted, cost_ms
        self._observed += 1

    def draft_changed(self) -> None:
        """Changes nothing."""
