"""Makes draft weights a version: first a complete folder, also in the store if there is one, then its event.

A learner that dies before the event leaves a folder nobody refers to; a version on the board always has its weights.
"""

import logging
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...buffer.board import stored_weights
from ...buffer.board.reason import ReasonCode, Why, because
from ...buffer.board.version import BoardState, DraftVersion, JudgedOn, VersionState
from ...buffer.board.version_board import VersionBoard
from ...buffer.board.version_store import NO_STORE, VersionStore
from ...buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from ...buffer.drafts.block_draft import is_block_draft
from ...buffer.drafts.checkpoint import CONFIG_FILE
from ...buffer.drafts.mtp_layer import is_mtp
from ...buffer.errors import BoardConflict, ConfigError, StoreUnavailable
from ..disk import remove_folder, write_folder
from .version_folders import DRAFT_FILES, folder_of, is_just_restored, numbered_folders, version_folder

_log = logging.getLogger(__name__)

#: What drafts, as the board says it.
EAGLE3 = "eagle3"
MTP = "mtp"
DFLASH = "dflash"

#: Number of the draft the server was started with, on every board; servers stamp it on traces until their first swap.
INITIAL = 0

#: Numbers tried for one version; a reserved number is taken only by somebody who registers without reserving.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a version comes from: everything about it except its number and its bytes."""

    parent: int | None
    target: str
    target_version: str
    objective: str
    trained_on: tuple[str, str] = ("", "")  # first and last stream id trained on
    scores: Mapping[str, float] = field(default_factory=dict)
    judged_on: JudgedOn | None = None
    trained_targets: tuple[str, ...] = ()  # target versions whose traces it was trained on, oldest first


def publish(
    board: VersionBoard,
    versions: Path,
    write: Callable[[Path], object],
    lineage: Lineage,
    *,
    by: str,
    why: Why,
    reserved: int | None = None,
    store: VersionStore = NO_STORE,
) -> DraftVersion:
    """Write a folder below `versions` with `write`, then register it as a candidate under a new number.

    The number is `reserved`, from `reserve_number`, or one reserved here. `write` gets an empty folder and leaves
    model.safetensors and config.json in it; it is called again when the number turns out to be taken. Blocks on the
    disk and the store. BoardConflict when every number tried was taken; StoreUnavailable when `store` does not take the
    folder: then nothing was published, and nothing stays on the disk.
    """
    for _ in range(_ATTEMPTS):
        number = reserve_number(board, versions) if reserved is None else reserved
        reserved = None
        folder = version_folder(versions, number)
        write_folder(folder, write)
        version = _shared(_describe(number, folder, lineage), folder, store)
        try:
            board.register(version, by, why)
        except BoardConflict as conflict:
            _log.warning("number %d was taken by somebody else (%s): trying the next one", number, conflict)
            shutil.rmtree(folder)
            continue
        return version
    raise BoardConflict(
        f"got {_ATTEMPTS} numbers that were taken, the last one {number}, expected a free one: somebody registers "
        "numbers without reserving them"
    )


def reserve_number(board: VersionBoard, versions: Path) -> int:
    """Reserve a number above all folders and rows; a board that lost its data starts to count below them."""
    taken = max([*numbered_folders(versions), *board.read().rows], default=-1)
    first = number = board.next_number()
    while number <= taken:
        number = board.next_number()
    if number != first:
        _log.warning("the board's next number was %d, but %s has higher ones: next is %d", first, versions, number)
    return number


def prune(
    versions: Path, state: BoardState, keep: int, needed: Collection[int] = (), *, store: VersionStore = NO_STORE
) -> list[int]:
    """Remove the weights of old versions; return their numbers. Their rows stay on the board.

    Kept are the newest `keep` of the board's versions, live, previous and canary, candidates, those `needed` by the
    gate, and for a while those that an operator has restored. A pruned version can still be made live, but servers
    refuse it. Folders that are not on the board belong to somebody else and stay. What `store` does not let go, with
    a warning, is tried again by the next call.
    """
    kept = {*sorted(state.rows)[-keep:], state.live, state.previous, state.canary, *needed}
    here = numbered_folders(versions)
    gone = []
    for number in sorted(state.rows.keys() & here.keys() - kept):
        row = state.rows[number]
        if row.state is VersionState.CANDIDATE or is_just_restored(here[number]):
            continue
        if not _is_left(row.version, here[number], store):
            continue
        remove_folder(here[number])
        gone.append(number)
    return gone


def _is_left(version: DraftVersion, folder: Path, store: VersionStore) -> bool:
    """Whether `folder` alone is left of this version, once the store has let it go."""
    if not store.owns(version.weights_uri):
        return folder_of(version) == folder.absolute()
    try:
        stored_weights.remove(version.weights_uri)
    except StoreUnavailable as fault:
        _log.warning("version %d stays for now: %s", version.number, fault)
        return False
    return True


def publish_initial(
    board: VersionBoard,
    versions: Path,
    find_draft: Callable[[], Path],
    lineage: Lineage,
    *,
    by: str,
    store: VersionStore = NO_STORE,
) -> DraftVersion | None:
    """Put the draft the server was started with on an empty board as version 0 and make it live.

    `find_draft` returns its folder, which holds DRAFT_FILES; it is not called where a version drafts already. They are
    copied byte by byte, so that the digest is the one the server has. Finishes what a process that died half-way began.
    Candidates and refused versions do not count as versions: a board that lost its data while one was being published
    starts with that one. None, and no change, when a version drafts or version 0 is past candidate. StoreUnavailable
    when `store` does not take it.
    """
    state = board.read()
    initial = state.rows.get(INITIAL)
    if state.live is not None or state.canary is not None:
        return None
    if initial is not None and initial.state is not VersionState.CANDIDATE:
        return None
    draft = find_draft()
    why = because(ReasonCode.INITIAL, draft=str(draft))
    if initial is None:
        folder = version_folder(versions, INITIAL)
        _copy_once(draft, folder)
        version = _shared(_describe(INITIAL, folder, lineage), folder, store)
        # Reserves 0, so that nobody gets it later; a number that a crash wastes here does no harm.
        board.next_number()
        board.register(version, by, why)
    board.move(INITIAL, VersionState.LIVE, by, why)
    return board.read().rows[INITIAL].version


def _shared(version: DraftVersion, folder: Path, store: VersionStore) -> DraftVersion:
    """The version where servers find it: in `store`, under a name that no other weights ever have."""
    if not store.uri:
        return version
    uri = f"{store.uri}/{folder.name}-{version.sha256[:12]}"
    try:
        stored_weights.put([folder / name for name in DRAFT_FILES], uri)
    except StoreUnavailable:
        shutil.rmtree(folder)
        with suppress(StoreUnavailable):  # of what has come there, if it can be removed
            stored_weights.remove(uri)
        raise
    return replace(version, weights_uri=uri)


def _copy_once(draft: Path, folder: Path) -> None:
    if not folder.exists():
        write_folder(folder, lambda new: [shutil.copy(draft / name, new) for name in DRAFT_FILES])
    got = sha256_of(folder / WEIGHTS_FILE)
    expected = sha256_of(draft / WEIGHTS_FILE)
    if got != expected:
        raise ConfigError(
            f"{folder}: got weights {got[:12]}, expected {expected[:12]} as in {draft}; the board is empty but the "
            "folder belongs to another board: move it away, or set PACELINE_DATA_DIR"
        )


def _describe(number: int, folder: Path, lineage: Lineage) -> DraftVersion:
    return DraftVersion(
        number=number,
        parent=lineage.parent,
        target=lineage.target,
        target_version=lineage.target_version,
        drafter=_drafter(folder / CONFIG_FILE),
        weights_uri=folder.absolute().as_uri(),
        sha256=sha256_of(folder / WEIGHTS_FILE),
        objective=lineage.objective,
        trained_on=lineage.trained_on,
        scores=dict(lineage.scores),
        judged_on=lineage.judged_on,
        trained_targets=lineage.trained_targets,
    )


def _drafter(config: Path) -> str:
    if is_mtp(config):
        return MTP
    return DFLASH if is_block_draft(config) else EAGLE3
