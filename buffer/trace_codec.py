"""The wire: a trace becomes bytes, and back.

A trace travels as two bytes of schema number, big-endian, then one zstd frame (checksummed, its size declared)
holding a msgpack map of the fields of DraftTrace. An array is ``[dtype, shape, bytes]``, little-endian, C order.
The schema number is outside the frame so that a later schema may change everything in it.

A release reads what it writes and what the release before it wrote. A trace is written in the oldest schema that holds
all of it, which most releases read.

Decoding trusts nothing: every refusal is a DecodeError that keeps the raw bytes. Decoded arrays are read-only.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from .base import TraceEntry
from .errors import DecodeError, TraceInvalid
from .schemas import decode_reason, unknown_schema
from .trace import DraftTrace, FeatureDtype, Sampling, VerdictRule, VerifyRounds

#: A larger trace is refused on both sides before memory is spent on it; Redis takes no value above this size.
MAX_TRACE_BYTES = 512 * 1024**2

_SCHEMA_BYTES = 2
_RULES_OF_SCHEMA_1 = frozenset({VerdictRule.GREEDY, VerdictRule.TARGET_ONLY, VerdictRule.REJECTION})
_MAX_AXES = 8  # no field has more than 3
#: Fields of a trace that are arrays, besides those of its rounds.
_ARRAYS = ("tokens", "features", "prefix", "feature_scales")
_LEVEL = 1  # features are noise to a compressor: higher levels cost the courier time and gain next to nothing
_DTYPES = {
    name: np.dtype(name).newbyteorder("<") for name in ("int32", "float16", "float32", "uint16", "int8", "uint8")
}


class _Array(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    dtype: str
    # Its length is bounded while it is read: a list of ints takes sixteen times the memory of its bytes on the wire.
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=_MAX_AXES)]
    data: bytes


class _Rounds1(msgspec.Struct, forbid_unknown_fields=True):
    starts: _Array
    drafted: _Array
    accepted: _Array
    teacher_ids: _Array
    teacher_logprobs: _Array


class _Rounds(_Rounds1, forbid_unknown_fields=True):
    committed_logprobs: _Array | None


class _Trace1(msgspec.Struct, forbid_unknown_fields=True):
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
    rounds: _Rounds1
    features: _Array
    feature_dtype: FeatureDtype
    replay_exact: bool
    finish: str


class _Trace2(_Trace1, forbid_unknown_fields=True, kw_only=True):
    rounds: _Rounds
    is_tree: bool


class _Trace3(_Trace2, forbid_unknown_fields=True, kw_only=True):
    label: str


class _Trace4(_Trace3, forbid_unknown_fields=True, kw_only=True):
    prompt: str


class _Trace5(_Trace4, forbid_unknown_fields=True, kw_only=True):
    prefix: _Array


class _Trace(_Trace5, forbid_unknown_fields=True, kw_only=True):
    feature_scales: _Array


#: Schema number -> how a trace, and its rounds, are laid out in it.
_LAYOUTS: dict[int, tuple[type[_Trace1], type[_Rounds1]]] = {
    1: (_Trace1, _Rounds1),
    2: (_Trace2, _Rounds),
    3: (_Trace3, _Rounds),
    4: (_Trace4, _Rounds),
    5: (_Trace5, _Rounds),
    6: (_Trace, _Rounds),
}


def encode_trace(trace: DraftTrace) -> bytes:
    """Return the wire bytes of `trace`. TraceInvalid when they would be larger than MAX_TRACE_BYTES unpacked."""
    schema = _schema_for(trace)
    packed = msgspec.msgpack.encode(_pack(trace, schema))
    if len(packed) > MAX_TRACE_BYTES:
        raise TraceInvalid(f"trace {trace.trace_id}: got {len(packed)} bytes, expected at most {MAX_TRACE_BYTES}")
    frame = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(packed)
    return schema.to_bytes(_SCHEMA_BYTES, "big") + frame


def decode_trace(raw: bytes) -> DraftTrace:
    """Return the trace that `raw` carries, its arrays read-only.

    Raises DecodeError, with `raw` and the cause, when the schema number, the frame, the fields, a dtype, a size
    or an alignment rule is not as written. Takes at most six times MAX_TRACE_BYTES of memory, whatever `raw` holds.
    """
    schema = int.from_bytes(raw[:_SCHEMA_BYTES], "big") if len(raw) > _SCHEMA_BYTES else None
    read = _TRACE_READERS.get(schema)
    if read is None:
        raise DecodeError(unknown_schema("trace", schema, _TRACE_READERS), raw)
    try:
        return read(raw[_SCHEMA_BYTES:])
    except (zstandard.ZstdError, msgspec.MsgspecError, TraceInvalid, ValueError) as error:
        raise DecodeError(decode_reason(f"trace: {error}"), raw) from error


def decode_entries(rows: Iterable[tuple[str, bytes]]) -> Iterator[TraceEntry]:
    """Decode (entry id, wire bytes) one by one; skip what cannot be decoded: claim makes it a dead letter."""
    for entry_id, raw in rows:
        try:
            yield TraceEntry(entry_id, decode_trace(raw))
        except DecodeError:
            continue


def _read_trace(layout: type[_Trace1], frame: bytes) -> DraftTrace:
    return _unpack(msgspec.msgpack.decode(_decompress(frame), type=layout))


#: Schema number -> what turns the rest of the bytes into the item, for every schema that this build reads.
_TRACE_READERS: dict[int | None, Callable[[bytes], DraftTrace]] = {
    schema: partial(_read_trace, layout) for schema, (layout, _) in _LAYOUTS.items()
}


def _decompress(frame: bytes) -> bytes:
    size = zstandard.frame_content_size(frame)
    if not 0 <= size <= MAX_TRACE_BYTES:  # -1: the frame does not declare it
        raise ValueError(f"frame declares {size} bytes, expected 0..{MAX_TRACE_BYTES}")
    # Only after that check: the decompressor allocates whatever size the frame declares.
    return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)


def _schema_for(trace: DraftTrace) -> int:
    """The oldest schema that holds all of `trace`."""
    if trace.feature_dtype.is_quantised:
        return 6
    if len(trace.prefix):
        return 5
    if trace.prompt:
        return 4
    if trace.label:
        return 3
    is_old = trace.verdict_rule in _RULES_OF_SCHEMA_1 and trace.rounds.committed_logprobs is None
    return 1 if is_old and not trace.is_tree else 2


def _pack(trace: DraftTrace, schema: int) -> _Trace1:
    whole, of_rounds = _LAYOUTS[schema]
    plain = {name: getattr(trace, name) for name in whole.__struct_fields__}
    arrays = {name: getattr(trace.rounds, name) for name in of_rounds.__struct_fields__}
    rounds: dict[str, Any] = {name: None if a is None else _pack_array(a) for name, a in arrays.items()}
    packed: dict[str, Any] = {name: _pack_array(plain[name]) for name in _ARRAYS if name in plain}
    return whole(**(plain | packed | {"rounds": of_rounds(**rounds)}))


def _unpack(wire: _Trace1) -> DraftTrace:
    plain: dict[str, Any] = {name: getattr(wire, name) for name in wire.__struct_fields__}
    arrays = {name: getattr(wire.rounds, name) for name in wire.rounds.__struct_fields__}
    rounds: dict[str, Any] = {name: None if a is None else _unpack_array(name, a) for name, a in arrays.items()}
    unpacked: dict[str, Any] = {name: _unpack_array(name, plain[name]) for name in _ARRAYS if name in plain}
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
