"""docs/troubleshooting.md explains every reason that the product counts by name."""

from enum import StrEnum
from pathlib import Path

import pytest
from paceline.learner.intake import Outcome
from paceline.policies.guard import AlarmName
from paceline.serving.wire.counts import DropReason, SkipReason

PAGE = Path(__file__).resolve().parents[1] / "docs" / "troubleshooting.md"


def explained() -> set[str]:
    """Names in the first cell of any table row."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return {line.split("|")[1].strip(" `") for line in lines if line.startswith("| `")}


@pytest.mark.parametrize("reasons", [DropReason, SkipReason, Outcome, AlarmName])
def test_every_reason_has_a_row(reasons: type[StrEnum]) -> None:
    assert {reason.value for reason in reasons} - explained() == set()
