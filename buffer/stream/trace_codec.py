"""The wire: a trace becomes bytes, and back.

A trace travels as two bytes of schema number, big-endian, then one zstd frame (checksummed, its size declared)
holding a msgpack map of the fields of DraftTrace. An array is ``[dtype, shape, bytes]``, little-endian, C order.
The schema number is outside the frame so that a later schema may change everything in it.

Every release from 0.1 on reads what it writes and what the release before it wrote: a change of any field is a schema
with the next number, and tests/buffer/golden keeps bytes of every schema that is read. A new field that is left out
where it says nothing is no new schema: readers before it take all traces but those that need it. So in an upgrade
learners come before servers; traces that a learner is too old for become dead letters, which are counted and keep
their bytes.

Decoding trusts nothing: every refusal is a DecodeError that keeps the raw bytes. Decoded arrays are read-only.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from ..errors import DecodeError, TraceInvalid, decode_reason, unknown_schema
from .trace import DraftTrace, FeatureDtype, Sampling, TreeShape, VerdictRule, VerifyRounds
from .trace_buffer import TraceEntry

#: A larger trace is refused on both sides before memory is spent on it; Redis takes no value above this size.
MAX_TRACE_BYTES = 512 * 1024**2

#: Number of the one schema that this release writes and reads.
TRACE_SCHEMA = 1
_SCHEMA_BYTES = 2
_MAX_AXES = 8  # no field has more than 3
#: Fields of a trace that are arrays, besides those of its rounds.
_ARRAYS = ("tokens", "features", "prefix", "feature_scales")
#: Features are noise to a compressor: higher levels cost the courier time and gain next to nothing. Of codes of one
#: byte even this level gains only an eighth, and takes nearly half of the courier's time.
_LEVEL = 1
_LEVEL_OF_CODES = -1
_DTYPES = {
    name: np.dtype(name).newbyteorder("<") for name in ("int32", "float16", "float32", "uint16", "int8", "uint8")
}


class _Array(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    dtype: str
    # Its length is bounded while it is read: a list of ints takes sixteen times the memory of its bytes on the wire.
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=_MAX_AXES)]
    data: bytes


class _Rounds(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    starts: _Array
    drafted: _Array
    accepted: _Array
    teacher_ids: _Array
    teacher_logprobs: _Array
    committed_logprobs: _Array | None


class _Trace(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    trace_id: str
    request_id: str
    replica: str
    tenant: str
    target: str
    target_version: str
    draft_version: int
    verdict_rule: VerdictRule
    sampling: Sampling
    born_at: float
    offset: int
    tokens: _Array
    context_len: int
    rounds: _Rounds
    features: _Array
    feature_dtype: FeatureDtype
    replay_exact: bool
    finish: str
    is_tree: bool
    tree: TreeShape | None = None
    label: str
    prompt: str
    prefix: _Array
    feature_scales: _Array


def encode_trace(trace: DraftTrace) -> bytes:
    """Return the wire bytes of `trace`. TraceInvalid when they would be larger than MAX_TRACE_BYTES unpacked."""
    packed = msgspec.msgpack.encode(_pack(trace))
    if len(packed) > MAX_TRACE_BYTES:
        raise TraceInvalid(f"trace {trace.trace_id}: got {len(packed)} bytes, expected at most {MAX_TRACE_BYTES}")
    level = _LEVEL_OF_CODES if trace.feature_dtype.is_quantised else _LEVEL
    frame = zstandard.ZstdCompressor(level=level, write_checksum=True).compress(packed)
    return TRACE_SCHEMA.to_bytes(_SCHEMA_BYTES, "big") + frame


def decode_trace(raw: bytes) -> DraftTrace:
    """Return the trace that `raw` carries, its arrays read-only.

    Raises DecodeError, with `raw` and the cause, when the schema number, the frame, the fields, a dtype, a size
    or an alignment rule is not as written. Takes at most six times MAX_TRACE_BYTES of memory, whatever `raw` holds.
    """
    schema = int.from_bytes(raw[:_SCHEMA_BYTES], "big") if len(raw) > _SCHEMA_BYTES else None
    if schema != TRACE_SCHEMA:
        raise DecodeError(unknown_schema("trace", schema, TRACE_SCHEMA), raw)
    try:
        return _unpack(msgspec.msgpack.decode(_decompress(raw[_SCHEMA_BYTES:]), type=_Trace))
    except (zstandard.ZstdError, msgspec.MsgspecError, TraceInvalid, ValueError) as error:
        raise DecodeError(decode_reason(f"trace: {error}"), raw) from error


def decode_entries(
    rows: Iterable[tuple[str, bytes]], unseal: Callable[[bytes], bytes] = lambda raw: raw
) -> Iterator[TraceEntry]:
    """Decode (entry id, stored bytes) one by one; skip what cannot be decoded: claim makes it a dead letter.

    `unseal` gives the wire bytes of the stored ones, or raises DecodeError.
    """
    for entry_id, raw in rows:
        try:
            yield TraceEntry(entry_id, decode_trace(unseal(raw)))
        except DecodeError:
            continue


def _decompress(frame: bytes) -> bytes:
    size = zstandard.frame_content_size(frame)
    if not 0 <= size <= MAX_TRACE_BYTES:  # -1: the frame does not declare it
        raise ValueError(f"frame declares {size} bytes, expected 0..{MAX_TRACE_BYTES}")
    # Only after that check: the decompressor allocates whatever size the frame declares.
    return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)


def _pack(trace: DraftTrace) -> _Trace:
    plain = {name: getattr(trace, name) for name in _Trace.__struct_fields__}
    packed = {name: _pack_array(plain[name]) for name in _ARRAYS}
    arrays = {name: getattr(trace.rounds, name) for name in _Rounds.__struct_fields__}
    rounds: dict[str, Any] = {name: None if a is None else _pack_array(a) for name, a in arrays.items()}
    return _Trace(**(plain | packed | {"rounds": _Rounds(**rounds)}))


def _unpack(wire: _Trace) -> DraftTrace:
    plain: dict[str, Any] = {name: getattr(wire, name) for name in wire.__struct_fields__}
    unpacked = {name: _unpack_array(name, plain[name]) for name in _ARRAYS}
    arrays = {name: getattr(wire.rounds, name) for name in wire.rounds.__struct_fields__}
    rounds: dict[str, Any] = {name: None if a is None else _unpack_array(name, a) for name, a in arrays.items()}
    return DraftTrace(**(plain | unpacked | {"rounds": VerifyRounds(**rounds)}))


def _pack_array(array: npt.NDArray[Any]) -> _Array:
    little = np.ascontiguousarray(array, _DTYPES[array.dtype.name])
    # A view, which is encoded as the bytes that it is of: features of a wide target are not copied once more for it.
    return _Array(array.dtype.name, array.shape, cast(bytes, little.reshape(-1).view(np.uint8).data))


def _unpack_array(what: str, wire: _Array) -> npt.NDArray[Any]:
    dtype = _DTYPES.get(wire.dtype)
    if dtype is None:
        raise TraceInvalid(f"{what} dtype: got {wire.dtype!r}, expected one of {sorted(_DTYPES)}")
    expected = math.prod(wire.shape) * dtype.itemsize
    if len(wire.data) != expected or not all(0 <= axis <= MAX_TRACE_BYTES for axis in wire.shape):
        raise TraceInvalid(f"{what}: got {len(wire.data)} bytes, expected {expected} for shape {wire.shape}")
    return np.frombuffer(wire.data, dtype).reshape(wire.shape)
