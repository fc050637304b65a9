"""The file that a version's `weights_uri` names: where it is, and whether it still holds the bytes that were published.

Operators' commands check it before they move a version; all that write or load weights use this name and digest.
"""

import hashlib
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from ..errors import BoardConflict, WeightsRefused
from ..plain_text import masked, printable
from .version import BoardState

#: Name of the file in a version's folder.
WEIGHTS_FILE: Final = "model.safetensors"


def weights_file(weights_uri: str) -> Path:
    """File that a version's `weights_uri` (file:// of its folder) names; WeightsRefused for any other scheme."""
    parts = urlsplit(weights_uri)
    if parts.scheme != "file":
        expected = "expected a file:// URI, or one below PACELINE_VERSIONS_URI"
        raise WeightsRefused(f"weights_uri: got {masked(weights_uri)!r}, {expected}")
    return Path(unquote(parts.path)) / WEIGHTS_FILE


def sha256_of(file: Path) -> str:
    """Digest of a whole file, lower-case hex. Blocks on the disk; OSError when it cannot be read."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_weights(state: BoardState, number: int) -> Path:
    """Read the whole weights file of version `number` and return its path when the digest is the board's.

    Blocks on the disk; changes nothing. Raises BoardConflict for a number that is not on the board, WeightsRefused
    when the file cannot be read here (it was pruned, or its disk is not mounted) or holds other bytes.
    """
    if number not in state.rows:
        raise BoardConflict(f"version {number}: got a number that is not on the board, expected one of {[*state.rows]}")
    version = state.rows[number].version
    file = weights_file(version.weights_uri)
    shown = printable(str(file))
    try:
        got = sha256_of(file)
    except OSError as fault:
        raise WeightsRefused(
            f"version {number}: got no readable {shown} ({fault.strerror}), expected the weights that were published; "
            f"old versions are removed: `paceline restore {number}` fetches it from MLflow, or name another one; if "
            "only the servers mount that disk, pass --unchecked"
        ) from fault
    if got != version.sha256:
        raise WeightsRefused(
            f"version {number}: got sha256 {got[:12]}… of {shown}, expected {printable(version.sha256[:12])}… as on "
            "the board; the file was changed and servers would refuse it: name another version"
        )
    return file
