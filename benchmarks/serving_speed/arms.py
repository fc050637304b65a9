"""The arms of the bench: who drafts with what, and who may choose how many."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from ...rig.speed.arm import Arm

PLAIN = "plain"
STATIC = "static"
STATIC_PACED = "static-paced"
PACELINE = "paceline"
RANDOM = "random"
ORACLE = "oracle"  # fmt: skip
#: What a row of a table says of each.
MEANING = {
    PLAIN: "never loaded a draft",
    STATIC: "the first draft, always three steps",
    STATIC_PACED: "the first draft, paced by paceline",
    PACELINE: "the first draft, captured, learning, swapped and paced: the whole loop",
    RANDOM: "a draft that never pays, paced by paceline",
    ORACLE: "a draft trained offline on the later domains, paced by paceline",
}


@dataclass(frozen=True, slots=True)
class Drafts:
    """Folders of the drafts that arms start with."""

    static: Path
    random: Path
    oracle: Path | None  # None: nobody can know the traffic beforehand, and the arm is left out


def arms(drafts: Drafts, only: Sequence[str] = ()) -> list[Arm]:
    """All arms, or those named and the first three that every figure needs; `only` holds names of MEANING."""
    every = [
        Arm(PLAIN, None),
        Arm(STATIC, drafts.static),
        Arm(STATIC_PACED, drafts.static, is_paced=True),
        Arm(PACELINE, drafts.static, is_paced=True, is_captured=True),
        Arm(RANDOM, drafts.random, is_paced=True),
        *([Arm(ORACLE, drafts.oracle, is_paced=True)] if drafts.oracle else []),
    ]
    wanted = {*only, PLAIN, STATIC, PACELINE}
    return [arm for arm in every if not only or arm.name in wanted]


def digests(chosen: Sequence[Arm]) -> dict[str, str]:
    """Arm -> sha256 of the weights that it starts with."""
    return {arm.name: sha256_of(arm.draft / WEIGHTS_FILE) for arm in chosen if arm.draft is not None}
