"""A whole safetensors file in host memory, read and digested without Python's lock.

The layout is that of https://github.com/huggingface/safetensors#format: the length of a JSON header in eight bytes, the
header, and the bytes of all tensors.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

#: The format's names of dtypes; a draft has no others.
_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LENGTH_BYTES = 8
#: What the format allows a header.
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor is, in bytes from the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class WeightsInMemory:
    """One file as it was when it was read: its digest is that of the very bytes its tensors are views of."""

    whole: torch.Tensor  # uint8 [bytes of the file]
    entries: Mapping[str, Entry]
    sha256: str
    fault: str = ""  # why these bytes are no safetensors file; then there are no entries

    @classmethod
    def read(cls, file: Path, dtype: torch.dtype, *, is_pinned: bool) -> Self:
        """Read and digest `file`, whatever it holds; blocks on the disk. OSError when it cannot be read.

        Memory is pinned, where asked for, if the floating tensors are of `dtype` already: others will be copied.
        """
        entries: Mapping[str, Entry] = {}
        fault = ""
        with file.open("rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            try:
                entries = _entries(stream, size)
            except (ValueError, RecursionError) as malformed:
                fault = str(malformed)
            needs_no_cast = all(entry.dtype == dtype for entry in entries.values() if entry.dtype.is_floating_point)
            whole = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned and needs_no_cast)
            rest = whole.numpy().data
            stream.seek(0)
            while rest:  # a call reads 2 GiB at most
                read = stream.readinto(rest)
                if not read:
                    raise OSError(f"got {size - len(rest)} bytes, expected {size}")
                rest = rest[read:]
        return cls(whole, entries, hashlib.sha256(whole.numpy().data).hexdigest(), fault)

    def tensor(self, name: str) -> torch.Tensor:
        """A view of the file's bytes, which must not change; a copy of those that are not aligned."""
        entry = self.entries[name]
        raw = self.whole[entry.begin : entry.end]
        if entry.begin % entry.dtype.itemsize:
            raw = raw.clone()
        return raw.view(entry.dtype).view(entry.shape)


def _entries(stream: Any, size: int) -> dict[str, Entry]:
    """What the header says of each tensor; ValueError where it is not one, or does not fit the file."""
    length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
    if not 2 <= length <= min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
        raise ValueError(f"got a header of {length} bytes in {size}")
    header = json.loads(stream.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"got a header that is a {type(header).__name__}, expected an object")  # noqa: TRY004
    header.pop("__metadata__", None)
    return {name: _entry(name, about, _LENGTH_BYTES + length, size) for name, about in header.items()}


def _entry(name: str, about: Any, begin: int, size: int) -> Entry:
    try:
        dtype = _DTYPES[about["dtype"]]
        shape = tuple(int(extent) for extent in about["shape"])
        first, last = (begin + int(offset) for offset in about["data_offsets"])
    except (KeyError, TypeError, ValueError) as fault:
        raise ValueError(f"{name}: got {about}, expected dtype, shape and data_offsets of a draft") from fault
    is_inside = begin <= first <= last <= size and min(shape, default=0) >= 0
    if not is_inside or last - first != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name}: got {about} in a file of {size} bytes, expected the bytes of its shape inside it")
    return Entry(dtype, shape, first, last)
