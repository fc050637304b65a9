"""One file of traces: magic, a JSON card, then every trace as the codec writes it, each preceded by its length.

Big-endian lengths of four bytes. A file is whole or absent: it is written under another name and renamed.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..buffer.errors import DecodeError
from ..buffer.stream.trace import DraftTrace
from ..buffer.stream.trace_codec import decode_trace, encode_trace

MAGIC = b"paceline traces 1\n"
_LENGTH_BYTES = 4


def write_traces(path: Path, card: Mapping[str, object], traces: Sequence[DraftTrace]) -> None:
    """Replace `path` by a file of `traces`, in their order; `card` is any JSON object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".writing-{path.name}-{os.getpid()}")
    with hidden.open("wb") as file:
        file.write(MAGIC)
        _put(file, json.dumps({**card, "traces": len(traces)}).encode())
        for trace in traces:
            _put(file, encode_trace(trace))
    hidden.rename(path)


def read_card(path: Path) -> dict[str, Any]:
    """The card, with the number of traces under "traces". DecodeError when the file is not one of these."""
    with path.open("rb") as file:
        return _card(file)


def read_traces(path: Path) -> list[DraftTrace]:
    """All traces in the order written. DecodeError when the file is not one of these, is cut short, or goes on."""
    with path.open("rb") as file:
        count = _card(file)["traces"]
        traces = [decode_trace(record) for record in _records(file)]
    if len(traces) != count:
        raise DecodeError(f"{path}: got {len(traces)} traces, expected {count}; record it again", b"")
    return traces


def _card(file: BinaryIO) -> dict[str, Any]:
    magic = file.read(len(MAGIC))
    if magic != MAGIC:
        raise DecodeError(f"trace file: got {magic!r} at its start, expected {MAGIC!r}; record it again", magic)
    card: dict[str, Any] = json.loads(next(_records(file), b"{}"))
    return card


def _put(file: BinaryIO, record: bytes) -> None:
    file.write(len(record).to_bytes(_LENGTH_BYTES, "big") + record)


def _records(file: BinaryIO) -> Iterator[bytes]:
    while head := file.read(_LENGTH_BYTES):
        record = file.read(int.from_bytes(head, "big"))
        if len(head) < _LENGTH_BYTES or len(record) < int.from_bytes(head, "big"):
            raise DecodeError("trace file: got its end within a record, expected a whole one; record it again", head)
        yield record
