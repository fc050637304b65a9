"""Which folder on disk holds the weights of which version, and which files of it belong to the draft."""

import re
import time
from pathlib import Path

from ...buffer.board.version import DraftVersion
from ...buffer.board.weights_file import WEIGHTS_FILE, weights_file
from ...buffer.drafts.checkpoint import CONFIG_FILE
from ...buffer.errors import WeightsRefused

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


def files_of(version: DraftVersion) -> list[Path]:
    """The draft's files in the version's folder. Other files there are ignored: anybody may have named that folder."""
    folder = folder_of(version)
    return [folder / name for name in DRAFT_FILES if folder is not None and (folder / name).is_file()]
