"""Reads and writes weights, and checkpoints, in a store which fsspec reaches: s3, gs, az, hf, http, folders.

Every fault of a store, and of the library that reaches it, leaves this file as StoreUnavailable. The library finds
credentials by itself, in this process's environment or its own files.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import fsspec

from ..errors import PacelineError, StoreUnavailable, WeightsRefused
from ..plain_text import printable
from .version import BoardState
from .version_store import VersionStore
from .weights_file import check_weights

#: Read at once.
_PIECE_BYTES: Final = 8 << 20
#: Of what a library says of its fault, which may quote whole answers.
_FAULT_CHARS: Final = 300
_CHECK: Final = "check credentials and PACELINE_VERSIONS_URI"


def put(files: Iterable[Path], folder: str) -> None:
    """Upload `files` below the URI `folder`; returns once all are there whole. Blocks. StoreUnavailable."""
    for file in files:
        put_file(file, f"{folder}/{file.name}")


def put_file(file: Path, uri: str) -> None:
    """Upload `file` as `uri`; returns once it is there whole. Blocks. StoreUnavailable."""
    with _asked(uri, f"expected to write it; {_CHECK}") as (system, path):
        system.put_file(str(file), path)
        system.invalidate_cache()
        got = system.size(path)
    size = file.stat().st_size
    if got not in {None, size}:  # None: the store does not tell
        raise StoreUnavailable(f"{uri}: got {got} bytes there, expected the {size} that were sent")


def get(folder: str, names: Iterable[str], into: Path) -> None:
    """Fetch the files `names` below the URI `folder`. Blocks, and checks no digest. StoreUnavailable."""
    for name in names:
        with (into / name).open("wb") as file:
            read(f"{folder}/{name}", file.write)


def remove(folder: str) -> None:
    """Remove what is below the URI `folder`, if anything is. StoreUnavailable."""
    with _asked(folder, f"expected to remove it; {_CHECK}") as (system, path):
        if system.exists(path):
            system.rm(path, recursive=True)


def count(folder: str) -> int | None:
    """How many entries the URI `folder` has; None where nothing is, not even the place. StoreUnavailable."""
    found = names(folder)
    return None if found is None else len(found)


def names(folder: str) -> list[str] | None:
    """Names of the entries that the URI `folder` has, in no order; None as `count` has it. StoreUnavailable."""
    with _asked(folder, f"expected to list it; {_CHECK}") as (system, path):
        try:
            found: list[str] = system.ls(path, detail=False)
        except FileNotFoundError:
            return None
    return [path.rstrip("/").rpartition("/")[2] for path in found]


def size_of(uri: str) -> int | None:
    """Bytes of a file; None where the store does not tell. StoreUnavailable."""
    with _asked(uri, f"expected published weights; {_CHECK}") as (system, path):
        size: int | None = system.size(path)
        return size


def read(uri: str, take: Callable[[bytes], object], what: str = "published weights") -> str:
    """Give `take` a file in pieces; return its sha256. Blocks. StoreUnavailable, also when it ends early.

    `what` the file should be is what an error says.
    """
    digest = hashlib.sha256()
    came = 0
    with _asked(uri, f"expected {what}; {_CHECK}") as (system, path):
        size = system.size(path)
        with system.open(path, "rb") as stream:
            while piece := stream.read(_PIECE_BYTES):
                digest.update(piece)
                take(piece)
                came += len(piece)
    if size not in {None, came}:
        raise StoreUnavailable(f"{printable(uri)}: got {came} bytes, expected {size}; it ended early")
    return digest.hexdigest()


def check_published(state: BoardState, number: int, store: VersionStore) -> str:
    """Read the weights of version `number` whole where servers find them; return that place when the digest agrees.

    Blocks; changes nothing. Raises as check_weights does; WeightsRefused also where the store does not have them all.
    """
    row = state.rows.get(number)
    if row is None or not store.is_away(row.version.weights_uri):
        return str(check_weights(state, number))
    uri = store.locate(row.version.weights_uri)
    shown = printable(uri)
    expected = printable(row.version.sha256[:12])
    try:
        got = read(uri, len)
    except StoreUnavailable as fault:
        raise WeightsRefused(
            f"version {number}: {fault}; old versions are removed: `paceline restore {number}` fetches it from MLflow; "
            "if only the servers reach the store, pass --unchecked"
        ) from fault
    if got != row.version.sha256:
        raise WeightsRefused(
            f"version {number}: got sha256 {got[:12]}… of {shown}, expected {expected}… as on the board; the file "
            "was changed and servers would refuse it: name another version"
        )
    return shown


@contextmanager
def _asked(uri: str, expected: str) -> Iterator[tuple[Any, str]]:
    """File system and path of `uri`."""
    try:
        # Only folders are made: asked to make one, s3fs would make a bucket that does not exist.
        options = {"auto_mkdir": True} if uri.startswith("file:") else {}
        system, path = fsspec.core.url_to_fs(uri, **options)
        system.invalidate_cache()  # of listings: others write there
        yield system, path
    except PacelineError:
        raise
    except Exception as fault:  # every library has exceptions of its own
        said = printable(" ".join(str(fault).split())[:_FAULT_CHARS])
        raise StoreUnavailable(f"{printable(uri)}: got {type(fault).__name__}: {said}, {expected}") from fault
