"""Makes a set of draft weights a version: a complete folder first, its event on the board second.

A learner that dies before the event leaves a folder nobody refers to; a version on the board always has its weights.
"""

import logging
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...buffer.base import VersionBoard
from ...buffer.errors import BoardConflict, ConfigError
from ...buffer.version import BoardState, DraftVersion, VersionState
from ...buffer.weights_file import WEIGHTS_FILE, sha256_of
from ..disk import folder_of, remove_folder, write_folder
from ..model.draft_io import CONFIG_FILE

_log = logging.getLogger(__name__)

DRAFTER = "eagle3"

#: The draft the server was started with is this number on every board; servers stamp it before their first swap.
INITIAL = 0

#: Numbers tried for one version; one is taken under our hands only by somebody who registers without reserving.
_ATTEMPTS = 5

_FOLDER = re.compile(r"v(\d{6,})")


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a version comes from; everything about it but its number and its bytes."""

    parent: int | None
    target: str
    target_version: str
    objective: str
    window: tuple[str, str] = ("", "")  # first and last stream id learnt from
    scores: Mapping[str, float] = field(default_factory=dict)


def version_folder(versions: Path, number: int) -> Path:
    """Where the weights of a version lie: <data>/versions/<speculator>/v000012."""
    return versions / f"v{number:06d}"


def publish(
    board: VersionBoard, versions: Path, write: Callable[[Path], object], lineage: Lineage, *, by: str, why: str
) -> DraftVersion:
    """Write a folder below `versions` with `write`, then register it as a candidate under a new number.

    `write` gets an empty folder and leaves model.safetensors and config.json in it; it is called again when the
    number turns out to be taken. Blocks on the disk. Raises BoardConflict when no number could be had.
    """
    for _ in range(_ATTEMPTS):
        number = _fresh_number(board, versions)
        folder = version_folder(versions, number)
        write_folder(folder, write)
        version = _describe(number, folder, lineage)
        try:
            board.register(version, by, why)
        except BoardConflict as conflict:
            _log.warning("number %d was taken meanwhile (%s): taking the next one", number, conflict)
            shutil.rmtree(folder)
            continue
        return version
    raise BoardConflict(
        f"no free number in {_ATTEMPTS} tries, the last was {number}: somebody registers numbers without reserving them"
    )


def _fresh_number(board: VersionBoard, versions: Path) -> int:
    """Reserve a number above all folders and rows; a board that lost its data begins again below them."""
    taken = max([*_folders(versions), *board.read().rows], default=-1)
    first = number = board.next_number()
    while number <= taken:
        number = board.next_number()
    if number != first:
        _log.warning("board counts from %d, but %s holds more: going on with %d", first, versions, number)
    return number


def _folders(versions: Path) -> dict[int, Path]:
    """Number -> folder of every version that lies there, of whatever board."""
    named = ((_FOLDER.fullmatch(path.name), path) for path in versions.glob("v*"))
    return {int(match[1]): path for match, path in named if match}


def prune(versions: Path, state: BoardState, keep: int) -> list[int]:
    """Remove the weights of old versions; return their numbers. Their rows stay on the board.

    Kept are the newest `keep` of the board's versions, live, previous and canary, and candidates. A pruned version can
    still be named live, but servers refuse it. Folders that the board does not know are somebody else's.
    """
    kept = {*sorted(state.rows)[-keep:], state.live, state.previous, state.canary}
    here, gone = _folders(versions), []
    for number in sorted(state.rows.keys() & here.keys() - kept):
        row = state.rows[number]
        if row.state is not VersionState.CANDIDATE and folder_of(row.version) == here[number].absolute():
            remove_folder(here[number])
            gone.append(number)
    return gone


def publish_initial(
    board: VersionBoard, versions: Path, draft: Path, lineage: Lineage, *, by: str
) -> DraftVersion | None:
    """Put the draft the server was started with on an empty board as version 0 and make it live.

    Its files are copied byte by byte, so that its digest is the one the server holds. Finishes what a process
    that died in between began; versions that wait or were refused are no hindrance, for a board that lost its data
    while one was being published begins with that one. None, and no change, when a version drafts or version 0 went
    further.
    """
    state = board.read()
    initial = state.rows.get(INITIAL)
    if state.live is not None or state.canary is not None:
        return None
    if initial is not None and initial.state is not VersionState.CANDIDATE:
        return None
    why = f"the draft the server was started with ({draft})"
    if initial is None:
        folder = version_folder(versions, INITIAL)
        _copy_once(draft, folder)
        # Reserved only so that nobody is ever given 0 again; a number burnt by a crash here is never missed.
        board.next_number()
        board.register(_describe(INITIAL, folder, lineage), by, why)
    board.move(INITIAL, VersionState.LIVE, by, why)
    return board.read().rows[INITIAL].version


def _copy_once(draft: Path, folder: Path) -> None:
    missing = [name for name in (WEIGHTS_FILE, CONFIG_FILE) if not (draft / name).is_file()]
    if missing:
        raise ConfigError(f"PACELINE_DRAFT: got {draft} without {missing}, expected the folder of an EAGLE-3 draft")
    if not folder.exists():
        write_folder(folder, lambda new: [shutil.copy(draft / name, new) for name in (WEIGHTS_FILE, CONFIG_FILE)])
    got, expected = sha256_of(folder / WEIGHTS_FILE), sha256_of(draft / WEIGHTS_FILE)
    if got != expected:
        raise ConfigError(
            f"{folder}: got weights {got[:12]}, expected {expected[:12]} as in {draft}; the board is empty but the "
            "folder is another board's: move it away, or set PACELINE_DATA_DIR"
        )


def _describe(number: int, folder: Path, lineage: Lineage) -> DraftVersion:
    return DraftVersion(
        number=number,
        parent=lineage.parent,
        target=lineage.target,
        target_version=lineage.target_version,
        drafter=DRAFTER,
        weights_uri=folder.absolute().as_uri(),
        sha256=sha256_of(folder / WEIGHTS_FILE),
        objective=lineage.objective,
        trained_on=lineage.window,
        scores=dict(lineage.scores),
    )
