"""The fault matrix: every case runs in `make test-faults`, and at least one of each kind in `make test`.

One of each kind of a server that dies, loses Redis or fails in a hook is left to `make test-servers`.

Three tests run in `make test-faults` alone and carry the mark themselves, with the name of a shorter test of the same.
"""

from collections.abc import Iterable
from typing import Any

import pytest


def cases(values: Iterable[Any], *, everyday: Iterable[Any]) -> list[Any]:
    """Parameters of a test; those not in `everyday`, which names one of each kind, are left to `make test-faults`."""
    given = list(values)
    kept = list(everyday)
    assert kept, f"got no everyday case, expected at least one of {given}"
    assert set(kept) <= set(given), f"got {kept}, expected some of {given}"
    return [value if value in kept else pytest.param(value, marks=pytest.mark.fault_matrix) for value in given]
