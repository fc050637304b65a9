"""Names the state of the code that a kept measurement was made by."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path


def code_digest(house: Path, deciding: Sequence[str], but: str = "") -> str:
    """sha256 over the files of the folders and the files `deciding` below `house`, with their names; without `but`."""
    digest = hashlib.sha256()
    for name, file in _files(house, deciding):
        if name != but:
            digest.update(f"{name}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _files(house: Path, deciding: Sequence[str]) -> Iterable[tuple[str, Path]]:
    for each in deciding:
        place = house / each
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(house).as_posix(), file
