"""What every draft of a line would have had accepted on every request of its stream: all that rules are judged on.

Axes: V versions, N requests, R verify rounds of a request. Version v is the line after v blocks; version 0 is the
draft it started from. A version was scored on the blocks from v on, and on held-out requests of all blocks; elsewhere
it has -1.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...buffer.trace import Int32s
from ...policies.acceptance import Tally

Bools = npt.NDArray[np.bool_]
Int8s = npt.NDArray[np.int8]
#: Raise it when the same plan gives another matrix.
LAYOUT = 2
_ARRAYS = ("accepted_VN", "rounds_VN", "block_N", "held_out_N", "honest_N", "tenant_N", "domain_N", "accepted_VNR")


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """One line on one stream."""

    accepted_VN: Int32s
    rounds_VN: Int32s
    block_N: Int32s
    held_out_N: Bools
    honest_N: Bools
    tenant_N: npt.NDArray[np.str_]
    domain_N: npt.NDArray[np.str_]
    blocks_per_round: int
    card: Mapping[str, Any]  # stream, seed, and what it was made from
    #: Accepted drafts of each round, -1 after the last one.
    accepted_VNR: Int8s = field(default_factory=lambda: np.zeros((0, 0, 0), np.int8))

    @property
    def chunks(self) -> int:
        """Learning rounds of the stream."""
        return (int(self.block_N.max()) + 1) // self.blocks_per_round

    @property
    def chunk_of(self) -> Int32s:
        """Learning round that claims each request."""
        return self.block_N // self.blocks_per_round

    def tally(self, version: int, request: int) -> Tally:
        """Of one version on one request. LookupError where it was not scored."""
        accepted, rounds = int(self.accepted_VN[version, request]), int(self.rounds_VN[version, request])
        if rounds < 0:
            raise LookupError(f"version {version} was not scored on request {request}")
        return Tally(accepted, rounds)

    def rounds(self, version: int, request: int) -> list[int]:
        """Accepted drafts of each verify round of one version on one request. LookupError where it was not scored."""
        self.tally(version, request)
        of_request = self.accepted_VNR[version, request]
        accepted: list[int] = of_request[of_request >= 0].tolist()
        return accepted

    def served(self, version: int, chunk: int) -> Tally:
        """What `version` would have had accepted of the honest requests of a chunk."""
        is_counted_N = (self.chunk_of == chunk) & self.honest_N
        accepted_N, rounds_N = self.accepted_VN[version, is_counted_N], self.rounds_VN[version, is_counted_N]
        if np.any(rounds_N < 0):
            raise LookupError(f"version {version} was not scored on all of chunk {chunk}")
        return Tally(int(accepted_N.sum()), int(rounds_N.sum()))

    def save(self, path: Path) -> None:
        """Write whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".writing-{path.name}")
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        with hidden.open("wb") as file:
            card = json.dumps({**self.card, "blocks_per_round": self.blocks_per_round, "layout": LAYOUT})
            np.savez_compressed(file, card=np.array(card), **arrays)
        hidden.rename(path)


def load_matrix(path: Path) -> Matrix:
    """What Matrix.save wrote. SystemExit when it was written by another version of this bench."""
    with np.load(path, allow_pickle=False) as file:
        card = json.loads(str(file["card"]))
        arrays = {name: file[name] for name in _ARRAYS}
    if card.pop("layout") != LAYOUT:
        raise SystemExit(f"{path}: got another layout, expected {LAYOUT}; remove it")
    return Matrix(**arrays, blocks_per_round=card.pop("blocks_per_round"), card=card)
