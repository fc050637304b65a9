"""Runs between exactly equal drafts, drawn from a matrix of copies of one draft that differ by noise.

Copies may still differ a little in quality. So every request deals its tallies out to the versions again: then no
version is better than another, whatever rule looks at them, and differences from request to request are as measured.
"""

from dataclasses import replace

import numpy as np

from ...buffer.trace import Int32s
from .matrix import Matrix


def dealt(matrix: Matrix, rng: np.random.Generator) -> Matrix:
    """Another run of equal drafts: requests in another order, other ones held out, tallies dealt out again.

    A version between two candidates gets the tally of any copy, since it was not scored itself.
    """
    order = rng.permutation(len(matrix.block_N))
    copies = np.arange(0, len(matrix.accepted_VN), matrix.blocks_per_round)
    copy_VN = rng.integers(len(copies), size=matrix.accepted_VN.shape)
    copy_VN[copies] = rng.permuted(np.tile(np.arange(len(copies))[:, None], (1, len(order))), axis=0)
    return replace(
        matrix,
        accepted_VN=_taken(matrix.accepted_VN[copies][:, order], copy_VN),
        rounds_VN=_taken(matrix.rounds_VN[copies][:, order], copy_VN),
        held_out_N=rng.permutation(matrix.held_out_N),
        tenant_N=matrix.tenant_N[order],
        domain_N=matrix.domain_N[order],
        accepted_VNR=np.zeros((0, 0, 0), np.int8),  # no rule on equal drafts looks at single rounds
    )


def _taken(counts_CN: Int32s, copy_VN: np.ndarray) -> Int32s:
    return np.take_along_axis(counts_CN, copy_VN, axis=0)


def gain_of_copies(matrix: Matrix) -> tuple[float, float]:
    """Mean and standard deviation over pairs of copies of their difference in accept length on all requests."""
    copies = slice(0, None, matrix.blocks_per_round)
    lengths = 1.0 + matrix.accepted_VN[copies].sum(1) / matrix.rounds_VN[copies].sum(1)
    differences = (lengths[:, None] - lengths[None])[np.triu_indices(len(lengths), 1)]
    return float(differences.mean()), float(differences.std())
