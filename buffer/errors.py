"""Every error that paceline raises on purpose, one branch per boundary.

    PacelineError
    ├── ConfigError         a setting or an input file is wrong
    │   └── PayloadKeyUnusable  the key that traces are encrypted with cannot be used, or is another one
    ├── TraceInvalid        arrays of a trace do not fit each other
    ├── DecodeError         bytes from the wire are nothing this build can read; carries the raw bytes
    ├── BufferUnavailable   Redis cannot be reached or refuses to work
    ├── BoardConflict       a version event does not fit the board's state
    ├── OperatorRefused     an act of an operator came without the operator's token
    ├── DeviceOutOfMemory   the learner's device has too little memory for a learning round
    ├── LeaseLost           work that needs a lease was stopped because another process may hold it
    ├── WeightsRefused      a weights file must not enter the server
    ├── StoreUnavailable    the store of weights cannot be reached, refuses, or has not all of a file
    ├── TrackingUnavailable MLflow cannot be reached, or has not what was asked for
    ├── RolloutFailed       a server that makes rollouts does not answer, refuses, or has other weights than it should
    └── CaptureUnavailable  SGLang does not offer what capture or swap needs

Constructors take positional arguments only, so that every error survives pickling (Celery carries them
between processes).
"""

import errno
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from .plain_text import printable


class PacelineError(Exception):
    """Base of every error paceline raises on purpose."""


class ConfigError(PacelineError):
    """A setting or an input file is wrong; the message names it, what was got and what was expected."""


class PayloadKeyUnusable(ConfigError):
    """The key by which traces are encrypted cannot be used, or opens none of them; the message shows none of it."""


class TraceInvalid(PacelineError):
    """A trace whose arrays do not fit each other; the message quotes got and expected."""


class DecodeError(PacelineError):
    """Bytes that this build cannot read as what they should be.

    `reason` is printable; `raw` keeps the undecodable bytes, so that the dead letter loses nothing.
    """

    def __init__(self, reason: str, raw: bytes = b"") -> None:
        super().__init__(reason, raw)
        self.reason = reason
        self.raw = raw

    def __str__(self) -> str:
        return f"{self.reason} ({len(self.raw)} bytes)"


class BufferUnavailable(PacelineError):
    """Redis cannot be reached or refuses to work; the message says what to do next."""


class BoardConflict(PacelineError):
    """A version event that does not fit the board's state; the message quotes got and expected."""


class OperatorRefused(PacelineError):
    """An act of an operator came without the operator's token; the message says what to do next and shows no token."""


class DeviceOutOfMemory(PacelineError):
    """The learner's device has too little memory for a learning round; the message names the settings to change."""


class LeaseLost(PacelineError):
    """A lease ended while its body ran; the message says what was not done."""


class WeightsRefused(PacelineError):
    """A weights file that must not enter the server; the message says which check failed."""


class StoreUnavailable(PacelineError, OSError):
    """The store of weights cannot be reached, refuses, or has not all of a file; like a disk that is away."""


class TrackingUnavailable(PacelineError):
    """MLflow cannot be reached, or does not have what a command asks it for; the message says what to do next."""


class RolloutFailed(PacelineError):
    """A server that makes rollouts does not answer, refuses, or has another target version; the message names it."""


class CaptureUnavailable(PacelineError):
    """SGLang does not offer what capture or swap needs; the message names version and hook target."""


_RIGHTS: Final = "expected the right to use it; change its owner or mode, or name another place"
_ROOM: Final = "expected room on that disk; make some, or name another place"
_FOLDER: Final = "expected a folder; move away what is there, or name another place"
#: What to do about a fault of the system.
_EXPECTED: Final[Mapping[int, str]] = MappingProxyType(
    {
        errno.EACCES: _RIGHTS,
        errno.EPERM: _RIGHTS,
        errno.EROFS: _RIGHTS,
        errno.ENOSPC: _ROOM,
        errno.EDQUOT: _ROOM,
        errno.ENOTDIR: _FOLDER,
        errno.EEXIST: _FOLDER,
        errno.ENOENT: "expected it to be there; check the path",
        errno.EISDIR: "expected a file; name another place",
        errno.EADDRINUSE: "expected a free port; name another one",
    }
)


_MAX_REASON_CHARS = 400  # an error may quote its input, whose length is anybody's choice


def decode_reason(text: str) -> str:
    """Return `text`, which may quote foreign input, short and printable: the reason of a DecodeError."""
    return printable(text[:_MAX_REASON_CHARS])


def unknown_schema(what: str, got: int | None, expected: int) -> str:
    """Return why an item of schema `got` is refused by a release that reads `expected`; None: it has no number."""
    shown = "none" if got is None else got
    by_whom = "a later release of paceline wrote it: upgrade this one to that release"
    if got is None or got < expected:
        by_whom = "no release of paceline writes that"
    return f"{what} schema: got {shown}, expected {expected}; {by_whom}"


def told(error: Exception) -> str:
    """What a person reads of any error, on one line: got, expected, what to do."""
    said = " ".join(str(error).split())
    if isinstance(error, PacelineError):
        return str(error)
    if not isinstance(error, OSError):
        got = f"got {type(error).__name__}: {said[:300]}, expected no such error here"
        return f"{got}; --debug shows where it came from: please report it"
    if ", expected " in said:
        return error.strerror or said
    where = f"{error.filename}: " if error.filename is not None else ""
    expected = _EXPECTED.get(error.errno or 0, "expected the system to do it; --debug shows what was asked of it")
    return f"{where}got {error.strerror or said[:300]}, {expected}"
