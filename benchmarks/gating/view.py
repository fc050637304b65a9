"""What a learner knows when it decides which version serves next: the tallies of the traces claimed so far, no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...policies.acceptance import Tally
from .matrix import Matrix


class Rule(Protocol):
    """A delivery rule. One object judges one stream, round by round."""

    def decide(self, seen: "View") -> int:
        """The version that serves the next chunk: the live one, or any candidate trained so far."""


@dataclass(frozen=True, slots=True)
class View:
    """One learning round, after training. Refuses, with LookupError, what the learner could not have known."""

    matrix: Matrix
    chunk: int  # claimed in this round
    live: int  # version that served it

    @property
    def newest(self) -> int:
        """The candidate that this round has trained."""
        return (self.chunk + 1) * self.matrix.blocks_per_round

    @property
    def blocks(self) -> range:
        """Blocks of this round. Block b was met by version b of the line before it was learnt."""
        first = self.chunk * self.matrix.blocks_per_round
        return range(first, first + self.matrix.blocks_per_round)

    def in_block(self, block: int) -> list[int]:
        """Requests of one block, in the order claimed."""
        return np.flatnonzero(self.matrix.block_N == block).tolist()

    def in_chunk(self, chunk: int) -> list[int]:
        """Requests of one claim, in the order claimed."""
        return np.flatnonzero(self.matrix.chunk_of == chunk).tolist()

    def held_out(self) -> list[int]:
        """Every request held out so far, oldest first."""
        return np.flatnonzero(self.matrix.held_out_N & (self.matrix.chunk_of <= self.chunk)).tolist()

    def tenant(self, request: int) -> str:
        """As the client named it."""
        return str(self.matrix.tenant_N[request])

    def tally(self, version: int, request: int) -> Tally:
        """Of a version trained so far on a request claimed so far, which it has not learnt."""
        if version > self.newest or self.matrix.chunk_of[request] > self.chunk:
            raise LookupError(f"version {version} on request {request} is in the future of chunk {self.chunk}")
        return self.matrix.tally(version, request)

    def tallies(self, version: int, requests: Sequence[int]) -> list[Tally]:
        """One tally per request."""
        return [self.tally(version, request) for request in requests]
