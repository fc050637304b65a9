"""What the scheduler process tells the courier process: one letter per captured forward, and now and then its state.

A letter is a list of byte frames: its head as MessagePack, then the arrays it names, as they lie in memory. Both ends
are of one release and one machine, so there is no schema number; nothing is executed to read it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..buffer.trace import FeatureDtype
from .steps import Commit, RequestFacts

Arrays = Mapping[str, npt.NDArray[Any]]
#: int32, [requests, width + 2]: root and drafts, position of the root, accepted drafts plus the bonus token.
VERDICTS = "verdicts"
#: int32 [requests, width, K] and float16 of that shape; LOGITS [requests, width, V] in place of both.
TEACHER_IDS, TEACHER_LOGPROBS, LOGITS = "teacher_ids", "teacher_logprobs", "logits"
#: int32, [tokens of the whole prefill batch].
READ_IDS = "read_ids"
#: [rows, D]: of a prefill one per token read; of a verify round `depth` per request, the accepted ones first.
FEATURES = "features"


class VerifyHead(msgspec.Struct, frozen=True, tag="verify"):
    """One verify round of a batch; row i of every array belongs to request i."""

    request_ids: tuple[str, ...]
    draft_version: int
    commits: tuple[Commit, ...]
    feature_dtype: FeatureDtype = FeatureDtype.FLOAT32


class PrefillHead(msgspec.Struct, frozen=True, tag="prefill"):
    """One prefill of a batch."""

    request_ids: tuple[str, ...]
    draft_version: int
    commits: tuple[Commit, ...]
    facts: tuple[RequestFacts, ...]
    spans: tuple[tuple[int, int, int], ...]  # position of the first token read; its rows' begin and end in the arrays
    feature_dtype: FeatureDtype = FeatureDtype.FLOAT32


class Resume(msgspec.Struct, frozen=True):
    """Where the courier before this one stood when it died; the first letter to another one."""

    counts: dict[str, Any]  # of its last receipt
    cut_off: tuple[str, ...]  # running requests: their beginning is gone
    begun_since: int  # requests that began behind that receipt, so that its counts miss them


class Letter(msgspec.Struct, frozen=True):
    """`lost` requests miss a step from here on; `status` is the scheduler's own share of the replica's reading."""

    head: VerifyHead | PrefillHead | None = None
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...] = ()  # name, dtype, shape
    lost: tuple[str, ...] = ()
    status: dict[str, Any] | None = None
    resume: Resume | None = None


class Receipt(msgspec.Struct, frozen=True):
    """The courier's answer: what it has read since it began, and its counts of just that."""

    received_bytes: int
    counts: dict[str, Any]


_LETTERS = msgspec.msgpack.Decoder(Letter)
_encoder = msgspec.msgpack.Encoder()


def encode_letter(letter: Letter, arrays: Arrays) -> list[bytes | memoryview]:
    """Frames of `letter`, which need not name its arrays yet; the arrays are not copied."""
    blocks = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    named = tuple((name, block.dtype.str, block.shape) for name, block in blocks.items())
    head = _encoder.encode(msgspec.structs.replace(letter, arrays=named))
    return [head, *(block.reshape(-1).view(np.uint8).data for block in blocks.values())]


def decode_letter(frames: Sequence[bytes]) -> tuple[Letter, dict[str, npt.NDArray[Any]]]:
    """Head and arrays; the arrays are read-only views of the frames. ValueError when they do not fit the head."""
    letter = _LETTERS.decode(frames[0])
    if len(frames) != len(letter.arrays) + 1:
        raise ValueError(f"letter: got {len(frames) - 1} arrays, expected {len(letter.arrays)}")
    arrays = {}
    for (name, dtype, shape), frame in zip(letter.arrays, frames[1:], strict=True):
        wanted_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if len(frame) != wanted_bytes:
            raise ValueError(f"letter: array {name} got {len(frame)} bytes, expected {wanted_bytes}")
        arrays[name] = np.frombuffer(frame, dtype).reshape(shape)
    return letter, arrays


def encode_receipt(receipt: Receipt) -> bytes:
    """As one frame."""
    return _encoder.encode(receipt)


def decode_receipt(frame: bytes) -> Receipt:
    """From one frame; msgspec.DecodeError for anything else."""
    return msgspec.msgpack.decode(frame, type=Receipt)
