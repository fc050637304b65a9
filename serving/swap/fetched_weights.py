"""The weights file of a version on this host: where it is, or where it is once a process of its own has fetched it.

fetch.py is that process; the scheduler's never loads a store's library.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ...buffer.board.weights_file import WEIGHTS_FILE
from ...buffer.errors import StoreUnavailable, WeightsRefused
from ...buffer.plain_text import printable

#: Until a fetch that failed is tried again: one that waits for its store is asked for every second.
AGAIN_S: Final = 15.0
#: The longest that a fetch may take; staging waits somewhat longer.
FETCH_S: Final = 240
#: Exit codes of a fetch, beside 0.
REFUSED: Final = 3
UNAVAILABLE: Final = 4
DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class FetchedWeights:
    """Any thread may ask; whoever asks waits. `run` fetches with the arguments of `fetch.main`."""

    def __init__(
        self,
        cache_dir: Path,
        max_bytes: int,
        run: Callable[[Sequence[str]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache_dir = cache_dir
        self._max_bytes = max_bytes
        self._run = run or _run_apart
        self._clock = clock
        self._failed: tuple[str, float, StoreUnavailable] | None = None  # digest, when, why

    def file(self, place: str, sha256: str, keep: Sequence[str] = ()) -> Path:
        """The file at `place`, a path or a URI as VersionStore.locate returns them; the digests in `keep` stay cached.

        WeightsRefused for another digest, StoreUnavailable where it cannot be fetched now.
        """
        if "://" not in place:
            return Path(place)
        cache = self._cache_dir.expanduser() / "versions"
        file = kept_file(cache, sha256)
        if not file.exists():
            self._fetch(place, sha256, cache, keep)
        os.utime(file.parent)  # used last
        return file

    def _fetch(self, uri: str, sha256: str, cache: Path, keep: Sequence[str]) -> None:
        if self._failed is not None and self._failed[0] == sha256 and self._clock() - self._failed[1] < AGAIN_S:
            raise self._failed[2]
        self._failed = None
        try:
            self._run([uri, sha256, str(cache), str(self._max_bytes), *filter(None, keep)])
        except StoreUnavailable as fault:
            self._failed = sha256, self._clock(), fault
            raise


def kept_file(cache: Path, sha256: str) -> Path:
    """Where the weights with this digest are, once they are fetched. WeightsRefused for what is no digest."""
    if not DIGEST.fullmatch(sha256):
        raise WeightsRefused(f"sha256: got {printable(sha256[:80])!r}, expected 64 hexadecimal digits")
    return cache / sha256 / WEIGHTS_FILE


def _run_apart(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "paceline.serving.swap.fetch", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode == 0:
        return
    if done.returncode == -signal.SIGALRM:
        raise StoreUnavailable(f"{printable(arguments[0])}: got not all of it in {FETCH_S} s, expected it sooner")
    lines = done.stderr.decode(errors="replace").splitlines() or [f"got exit code {done.returncode}, expected 0"]
    why = printable(lines[-1][:600])
    raise WeightsRefused(why) if done.returncode == REFUSED else StoreUnavailable(why)
