"""Which folder on disk holds the weights of which version, and which files of it belong to the draft."""

import re
import time
from pathlib import Path

from ...buffer.board import stored_weights
from ...buffer.board.version import BoardState, DraftVersion
from ...buffer.board.version_store import VersionStore
from ...buffer.board.weights_file import WEIGHTS_FILE, check_weights, sha256_of, weights_file
from ...buffer.drafts.checkpoint import CONFIG_FILE
from ...buffer.errors import StoreUnavailable, WeightsRefused
from ..disk import write_folder

#: What model/draft_io.py writes and publisher.py copies.
DRAFT_FILES = (WEIGHTS_FILE, CONFIG_FILE)

#: Beside the draft's files in a folder that `paceline restore` wrote; its time says when.
RESTORED_FILE = "restored"
#: Such a folder stays at least so long, for its draft to be promoted.
RESTORED_S = 3600.0

_NAME = re.compile(r"v(\d{6,})")


def version_folder(versions: Path, number: int) -> Path:
    """Where the weights of a version are written: <data>/versions/<speculator>/v000012."""
    return versions / f"v{number:06d}"


def numbered_folders(versions: Path) -> dict[int, Path]:
    """Number -> folder of every version in `versions`, whichever board it belongs to."""
    named = ((_NAME.fullmatch(path.name), path) for path in versions.glob("v*"))
    return {int(match[1]): path for match, path in named if match}


def is_just_restored(folder: Path) -> bool:
    """Return whether an operator has restored the draft of `folder` within RESTORED_S."""
    mark = folder / RESTORED_FILE
    return mark.is_file() and time.time() - mark.stat().st_mtime < RESTORED_S


def folder_of(version: DraftVersion) -> Path | None:
    """The folder that the version's file:// URI names; None for any other URI, which no server would follow either."""
    try:
        return weights_file(version.weights_uri).parent
    except WeightsRefused:
        return None


def files_of(version: DraftVersion, versions: Path | None = None) -> list[Path]:
    """The draft's files in the version's folder, for another URI than file:// in the one that `versions` has of it.

    Other files there are ignored: anybody may have named that folder.
    """
    folder = folder_of(version)
    if folder is None and versions is not None:
        own = version_folder(versions, version.number)
        file = own / WEIGHTS_FILE
        folder = own if file.is_file() and sha256_of(file) == version.sha256 else None
    return [folder / name for name in DRAFT_FILES if folder is not None and (folder / name).is_file()]


def published_folder(state: BoardState, number: int, *, versions: Path, store: VersionStore) -> Path:
    """Folder with the weights of version `number`, as published; fetched into `versions` where it is only in `store`.

    Blocks on disk and store. Raises as check_weights does, WeightsRefused from StoreUnavailable too.
    """
    row = state.rows.get(number)
    if row is None or not store.is_away(row.version.weights_uri):
        return check_weights(state, number).parent
    version = row.version
    folder = version_folder(versions, number)
    try:
        if not folder.exists():
            write_folder(folder, lambda new: stored_weights.get(version.weights_uri, DRAFT_FILES, new))
        got = sha256_of(folder / WEIGHTS_FILE)
    except StoreUnavailable as fault:
        raise WeightsRefused(f"version {number}: {fault}") from fault
    except OSError as fault:
        raise WeightsRefused(f"version {number}: got no readable {folder}, expected to fetch it there") from fault
    if got != version.sha256:
        raise WeightsRefused(
            f"version {number}: got sha256 {got[:12]}… in {folder}, expected {version.sha256[:12]}… as on the board"
        )
    return folder
