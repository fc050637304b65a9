"""What a run leaves: every answer of every arm, block by block.

An interrupted run goes on with the next block, and tables are drawn again without serving anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from ...learner.disk import write_text
from ...rig.speed.turn import Turn

_T = TypeVar("_T")

CONDITIONS_FILE = "run.json"
BLOCKS = "blocks"
HOLDS = "holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a run was made under. Runs are drawn into one table where all but `seed` and `stream` are equal."""

    mode: str
    seed: int
    stream: str  # fingerprint
    first_domain: str  # that the arm "static" was trained on
    arms: tuple[str, ...]
    drafts: Mapping[str, str]  # arm -> sha256 of the weights it starts with
    layers: int
    max_tokens: int
    target: str
    commit: str
    machine: Mapping[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The same prompts at one concurrency, asked of every arm."""

    chunk: int
    domain: str
    concurrency: int
    turns: tuple[Turn, ...]  # in the order they were taken
    live: int | None  # the version that the arm "paceline" drafted with when the block began

    def turn(self, arm: str) -> Turn:
        """That of one arm."""
        return next(turn for turn in self.turns if turn.arm == arm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What happened between a chunk and the next one."""

    chunk: int
    seconds: float | None  # that traffic was held; None where the learner has no time of its own
    learner_seconds: float | None  # of these, that the learner was busy; None as well
    rounds: int  # learning rounds so far, of this learner process
    pacing: Mapping[str, Mapping[str, object]]  # arm -> what its replica reports of its pacing


@dataclass(frozen=True, slots=True)
class Run:
    """One run, whole or as far as it has come."""

    conditions: Conditions
    blocks: tuple[Block, ...]  # in the order asked
    holds: tuple[Hold, ...]

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Those that blocks were asked at, ascending."""
        return tuple(sorted({block.concurrency for block in self.blocks}))

    def at(self, concurrency: int) -> list[Block]:
        """Blocks of one concurrency, by chunk."""
        return [block for block in self.blocks if block.concurrency == concurrency]


def open_run(folder: Path, conditions: Conditions) -> Run:
    """What `folder` holds of a run under these conditions; begins one when it holds none.

    SystemExit when it holds a run made under others. Another revision of the code may read a run, not go on with it.
    """
    file = folder / CONDITIONS_FILE
    if not file.exists():
        write_text(file, _json(conditions))
    found = load_run(folder)
    if replace(found.conditions, commit=conditions.commit) != conditions:
        raise SystemExit(f"{file}: got {found.conditions}, expected {conditions}; remove it or use another --out")
    return found


def load_run(folder: Path) -> Run:
    """What `folder` holds. SystemExit when a file of it is none of this bench."""
    blocks = [_read(file, Block) for file in sorted((folder / BLOCKS).glob("[0-9]*.json"))]
    holds = [_read(file, Hold) for file in sorted((folder / HOLDS).glob("[0-9]*.json"))]
    return Run(_read(folder / CONDITIONS_FILE, Conditions), tuple(blocks), tuple(holds))


def save_block(folder: Path, block: Block) -> None:
    """Keep a block, whole or not at all."""
    write_text(folder / BLOCKS / f"{block.chunk:04d}-{block.concurrency:03d}.json", _json(block, indent=0))


def save_hold(folder: Path, hold: Hold) -> None:
    """Keep what happened after a chunk."""
    write_text(folder / HOLDS / f"{hold.chunk:04d}.json", _json(hold))


def _json(value: object, indent: int = 1) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=indent).decode() + "\n"


def _read(file: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise SystemExit(f"{file}: got {error}, expected a file of this bench; remove it") from error
