"""Fetches the weights of one version from its store into this host's cache, in a process of its own.

A store's library is Python that holds Python's lock, and may hang: in the scheduler's process it would delay tokens.
The cache has a folder per digest, complete or invisible; one process at a time changes it.
"""

import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ...buffer.board.stored_weights import read, size_of
from ...buffer.board.weights_file import WEIGHTS_FILE
from ...buffer.errors import PacelineError, StoreUnavailable, WeightsRefused
from ...buffer.plain_text import printable
from .fetched_weights import DIGEST, FETCH_S, REFUSED, UNAVAILABLE, kept_file

_UNFINISHED: Final = ".writing"


def fetch(uri: str, sha256: str, cache: Path, *, max_bytes: int, keep: Collection[str] = ()) -> None:
    """Have the file at `uri` in `cache`, which then holds at most `max_bytes`; what is unused for longest leaves first.

    Digests in `keep` stay. Blocks on store and disk, and while another process fetches into this cache. WeightsRefused
    for another digest, StoreUnavailable where the store does not have it all or it finds no room, OSError of the disk.
    """
    made = kept_file(cache, sha256).parent
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache):
        if made.exists():
            return
        hidden = cache / _UNFINISHED
        shutil.rmtree(hidden, ignore_errors=True)  # of a fetch that was killed
        _make_room(cache, size_of(uri) or 0, max_bytes, keep)
        hidden.mkdir()
        try:
            with (hidden / WEIGHTS_FILE).open("wb") as file:
                got = read(uri, file.write)
                file.flush()
                os.fsync(file.fileno())  # what has its final name is never half a file, a power failure included
            if got != sha256:
                raise WeightsRefused(
                    f"{printable(uri)}: got sha256 {got[:12]}…, expected {sha256[:12]}… (the file was changed)"
                )
            hidden.rename(made)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


def _make_room(cache: Path, wanted: int, max_bytes: int, keep: Collection[str]) -> None:
    oldest_first = sorted((path for path in cache.iterdir() if DIGEST.fullmatch(path.name)), key=_used_at)
    sizes = {path: (path / WEIGHTS_FILE).stat().st_size for path in oldest_first}
    held = sum(sizes.values())
    for path in oldest_first:
        if held + wanted <= max_bytes:
            return
        if path.name not in keep:
            shutil.rmtree(path)
            held -= sizes[path]
    if held + wanted > max_bytes:
        raise StoreUnavailable(
            f"got {wanted} bytes beside {held} in use, expected at most {max_bytes} in {cache}; raise "
            "PACELINE_VERSIONS_CACHE_BYTES"
        )


def _used_at(folder: Path) -> float:
    return folder.stat().st_mtime


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> int:
    """Fetch with the arguments of `fetch`; a fault is one line on standard error. Ends by itself after FETCH_S."""
    signal.alarm(FETCH_S)  # also where the server is gone
    uri, sha256, cache, max_bytes, *keep = arguments
    try:
        fetch(uri, sha256, Path(cache), max_bytes=int(max_bytes), keep=keep)
    except (PacelineError, OSError) as fault:
        sys.stderr.write(f"{fault}\n")
        return REFUSED if isinstance(fault, WeightsRefused) else UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
