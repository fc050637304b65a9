"""The fault matrix: every case runs in `make test-faults`, and one of each kind in `make test`."""

from collections.abc import Iterable
from typing import Any

import pytest


def cases(values: Iterable[Any], *, everyday: Iterable[Any]) -> list[Any]:
    """Parameters of a test; those not in `everyday` are left to `make test-faults`."""
    given, kept = list(values), list(everyday)
    assert set(kept) <= set(given), f"got {kept}, expected some of {given}"
    return [value if value in kept else pytest.param(value, marks=pytest.mark.fault_matrix) for value in given]
