"""docs/troubleshooting.md explains every reason that is counted by name, and quotes messages that exist."""

import ast
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest
from paceline.learner.claim.intake import Outcome
from paceline.policies.guard import AlarmName
from paceline.serving.wire.counts import DropReason, SkipReason

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
PRODUCT = ("buffer", "policies", "serving", "learner", "dashboards")
COUNTED = (DropReason, SkipReason, Outcome, AlarmName)
#: What stands for a value in a quoted message.
VALUE = r"\[?\.\.\.\]?|\bN\b|\bM\b|\bREPLICA\b"


def quoted() -> set[str]:
    """What the first cells of the page's tables quote."""
    cells = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return {phrase for cell in cells for phrase in re.findall(r"`([^`]+)`", cell)}


def messages() -> Iterator[str]:
    """Every string of the product's sources; values in it are NUL."""
    for path in (ROOT / "cli.py", *(file for name in PRODUCT for file in (ROOT / name).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.JoinedStr(values=parts):
                    yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in parts)
                case ast.Constant(value=str(text)):
                    yield text


def is_said(phrase: str, said: list[str]) -> bool:
    """Whether one message holds all pieces of `phrase`, in their order."""
    pieces = [re.escape(piece.strip()) for piece in re.split(VALUE, phrase) if piece.strip(" :`")]
    pattern = re.compile(".*".join(pieces), re.DOTALL)
    return any(pattern.search(text) for text in said)


@pytest.mark.parametrize("reasons", COUNTED)
def test_every_reason_has_a_row(reasons: type[StrEnum]) -> None:
    assert {reason.value for reason in reasons} - quoted() == set()


def test_every_quoted_message_is_one_of_the_product() -> None:
    said = [*messages(), *(reason.value for reasons in COUNTED for reason in reasons)]
    assert sorted(phrase for phrase in quoted() if not is_said(phrase, said)) == []


@pytest.mark.parametrize(
    ("phrase", "is_one"),
    [("disk is full", True), ("got ... MiB", True), ("got ... GiB", False), ("is ... disk", False)],
)
def test_a_message_is_found_by_its_pieces_in_order(phrase: str, is_one: bool) -> None:
    assert is_said(phrase, ["the disk is full", "got \0 MiB free"]) == is_one
