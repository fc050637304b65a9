"""`paceline restore N`: brings back from MLflow the weights of a draft that were pruned where servers find them."""

import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ...buffer.board import stored_weights
from ...buffer.board.version import BoardState, DraftVersion
from ...buffer.board.version_store import NO_STORE, VersionStore
from ...buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from ...buffer.errors import BoardConflict, StoreUnavailable, TrackingUnavailable, WeightsRefused
from ..disk import write_folder
from .tracking.logged_models import download
from .tracking.lookup import asking, find_draft
from .tracking.model_store import LOGGED, WEIGHTS_TAG
from .version_folders import DRAFT_FILES, RESTORED_FILE, RESTORED_S, folder_of


def restore(state: BoardState, number: int, uri: str, model: str, *, store: VersionStore = NO_STORE) -> str:
    """Write what the board names for draft `number`, on disk or in `store`, if that is gone; return what to say.

    The draft is fetched from the model `model` of MLflow at `uri` by its alias, and its digest is checked against the
    board's before a server can see it. Changes nothing on the board. Blocks on network and disk. BoardConflict for a
    number that the board does not have; WeightsRefused where its folder cannot be written, or what came is not what
    was published; TrackingUnavailable where MLflow does not answer or does not have the weights; StoreUnavailable.
    """
    if number not in state.rows:
        raise BoardConflict(f"draft {number}: got a number that is not on the board, expected one of {[*state.rows]}")
    version = state.rows[number].version
    if store.is_away(version.weights_uri):
        return _restored_to_store(version, store, uri, model)
    folder = _free_folder(version)
    if folder is None:
        return f"draft {number} is on disk, as published; nothing was fetched"
    with TemporaryDirectory() as place:
        files = _fetched(version, uri, model, Path(place))
        write_folder(folder, lambda new: _fill(new, files))
    return (
        f"draft {number} is back in {folder}, as published; it stays at least {RESTORED_S / 60:.0f} minutes: "
        f"`paceline promote {number}` makes it live"
    )


def _restored_to_store(version: DraftVersion, store: VersionStore, uri: str, model: str) -> str:
    place = f"draft {version.number} is in the store, at {version.weights_uri}, as published"
    with suppress(StoreUnavailable):  # whatever else is there gives way
        if stored_weights.read(store.locate(version.weights_uri), len) == version.sha256:
            return f"{place}; nothing was fetched"
    with TemporaryDirectory() as folder:
        stored_weights.put(_fetched(version, uri, model, Path(folder)), version.weights_uri)
    return f"{place}, until you remove it: `paceline promote {version.number}` makes it live"


def _free_folder(version: DraftVersion) -> Path | None:
    """Where its files belong; None where they are. WeightsRefused where something else is in that place."""
    folder = folder_of(version)
    if folder is None:
        raise WeightsRefused(
            f"draft {version.number}: got {version.weights_uri!r}, expected a file:// URI or one below "
            "PACELINE_VERSIONS_URI to restore it to"
        )
    file = folder / WEIGHTS_FILE
    if file.is_file() and sha256_of(file) == version.sha256:
        return None
    if folder.exists() and any(folder.iterdir()):
        raise WeightsRefused(f"draft {version.number}: got other files in {folder}, expected none: move them away")
    return folder


def _fetched(version: DraftVersion, uri: str, model: str, place: Path) -> list[Path]:
    with asking(uri):
        store, known = find_draft(uri, model, version)
        if known.tags.get(WEIGHTS_TAG) != LOGGED:
            raise TrackingUnavailable(
                f"draft {version.number}: got no weights in MLflow, expected them; they are kept of drafts that "
                f"drafted somewhere; `paceline reproduce {version.number}` may fit it again"
            )
        files = [download(store, known, name=name, folder=place, uri=uri) for name in DRAFT_FILES]
    got = sha256_of(place / WEIGHTS_FILE)
    if got != version.sha256:
        raise WeightsRefused(
            f"draft {version.number}: got sha256 {got[:12]}… from MLflow, expected {version.sha256[:12]}… as on the "
            "board: what MLflow keeps was changed"
        )
    return files


def _fill(folder: Path, files: list[Path]) -> None:
    for file in files:
        shutil.copyfile(file, folder / file.name)
    (folder / RESTORED_FILE).touch()
