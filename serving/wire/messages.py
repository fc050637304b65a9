"""Messages from the scheduler process to the courier process: captured forwards, and the scheduler's status.

A message is one MessagePack frame, and after it one frame for every large array, as it is in memory: the scheduler's
thread copies none of these, so that a message takes it as long whatever the width of the target. Both ends are of one
release and on one machine, so there is no schema number; nothing is executed to read it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ...buffer.board.member_status import MemberStatus, TracesSaid
from ...buffer.stream.trace import FeatureDtype, TreeShape
from .counts import DropReason
from .request_forward import Commit, RequestFacts

#: The longest a message waits before the courier takes it, in seconds.
POLL_S = 0.25
Arrays = Mapping[str, npt.NDArray[Any]]
#: An array of at least so many bytes is a frame of its own. pyzmq copies smaller frames all the same.
LARGE_BYTES = 1 << 16
#: int64, [requests, width + 2]: root and drafts, position of the root, accepted drafts plus the bonus token. Of a tree,
#: root and drafts are the path that draft_path.py keeps, -1 after its end.
VERDICTS = "verdicts"
#: int32 [requests, width, K] and float16 of that shape; LOGITS [requests, width, V] in place of both; BEST_IDS int64
#: [requests, width], the target's best token, where no request needs more.
TEACHER_IDS = "teacher_ids"
TEACHER_LOGPROBS = "teacher_logprobs"
LOGITS = "logits"
BEST_IDS = "best_ids"
#: float32 [requests, width, 2], under rejection sampling alone: see VerifyRounds.committed_logprobs.
COMMITTED_LOGPROBS = "committed_logprobs"
#: int32, [tokens of the whole prefill batch].
READ_IDS = "read_ids"
#: [rows, D]: of a prefill one per token read; of a verify round those of root and accepted drafts, request by request.
#: A device that quantises sends int8 [rows, 4 + D]: the bytes of a row's float32 scale, then its codes.
FEATURES = "features"
#: [requests, depth]: which rows of a verify round's FEATURES those are, then -1; without it those are all, or there are
#: as many for every request, the committed ones first. To choose them is a copy, and left to the courier.
NODES = "nodes"
#: int32 [words]: all arrays of a round of chains in one; see packed_round.py.
PACKED = "packed"


class VerifyHead(msgspec.Struct, frozen=True, tag="verify", kw_only=True):
    """One verify round of a batch; row i of every array belongs to request i."""

    request_ids: tuple[str, ...]
    draft_version: int
    target_version: str
    commits: tuple[Commit, ...]
    is_greedy: tuple[bool, ...]
    feature_dtype: FeatureDtype = FeatureDtype.FLOAT32
    is_tree: bool = False
    tree: TreeShape | None = None  # how it grew; None of NGRAM's
    packed_width: int = 0  # nodes of a request, where PACKED is all there is


class PrefillHead(msgspec.Struct, frozen=True, tag="prefill", kw_only=True):
    """One prefill of a batch."""

    request_ids: tuple[str, ...]
    draft_version: int
    target_version: str
    commits: tuple[Commit, ...]
    facts: tuple[RequestFacts, ...]
    spans: tuple[tuple[int, int, int], ...]  # position of the first token read; its rows' begin and end in the arrays
    feature_dtype: FeatureDtype = FeatureDtype.FLOAT32
    prefixes: tuple[bytes, ...] = ()  # int32 tokens before the first one read; without features alone


class Resume(msgspec.Struct, frozen=True):
    """The position of a courier that died; the first message to the next one."""

    counts: TracesSaid  # of its last receipt
    cut_off: tuple[str, ...]  # running requests: their beginning is gone
    begun_since: int  # requests that began after that receipt, so that its counts miss them


class WireForward(msgspec.Struct, frozen=True):
    """One captured forward."""

    head: VerifyHead | PrefillHead
    #: Name, dtype, shape, bytes; while a large one is on the line, the place of its frame in place of its bytes.
    arrays: tuple[tuple[str, str, tuple[int, ...], memoryview | int], ...] = ()


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """`lost` requests miss a forward before `forwards`; `status` has the scheduler's share of the replica's."""

    forwards: tuple[WireForward, ...] = ()
    lost: dict[str, DropReason] = {}
    ended: tuple[str, ...] = ()  # those of `lost` that ended with it: no forward of theirs follows
    lost_unnamed: dict[DropReason, int] = {}  # further requests, of which no forward was sent
    status: MemberStatus | None = None
    resume: Resume | None = None


class Receipt(msgspec.Struct, frozen=True):
    """The courier's answer: what it has read since it started, and its counts of exactly that."""

    received_bytes: int
    counts: TracesSaid
    member: str = ""  # that the courier beats under; empty while it has none


_MESSAGES = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def to_wire(head: VerifyHead | PrefillHead, arrays: Arrays) -> WireForward:
    """A forward as a message holds it; arrays are not copied where they are contiguous."""
    blocks = ((name, np.ascontiguousarray(array)) for name, array in arrays.items())
    return WireForward(
        head,
        tuple((name, block.dtype.str, block.shape, block.reshape(-1).view(np.uint8).data) for name, block in blocks),
    )


def arrays_of(forward: WireForward) -> dict[str, npt.NDArray[Any]]:
    """Its arrays, read-only views of the message's frames; ValueError when one does not fit its shape."""
    arrays = {}
    for name, dtype, shape, block in forward.arrays:
        wanted_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if isinstance(block, int) or len(block) != wanted_bytes:
            got = f"frame {block}" if isinstance(block, int) else f"{len(block)} bytes"
            raise ValueError(f"message: array {name} got {got}, expected {wanted_bytes} bytes")
        arrays[name] = np.frombuffer(block.toreadonly(), dtype).reshape(shape)
    return arrays


def encode_message(message: Message) -> list[bytes | memoryview]:
    """As frames. Those of large arrays are views of them: they must not change until the frames are sent."""
    large: list[bytes | memoryview] = []
    forwards = tuple([_set_apart(forward, large) for forward in message.forwards])
    return [_encoder.encode(msgspec.structs.replace(message, forwards=forwards)), *large]


def decode_message(frames: Sequence[bytes | memoryview]) -> Message:
    """From its frames, of which it holds views; msgspec.DecodeError for anything else."""
    message = _MESSAGES.decode(frames[0])
    forwards = tuple([_put_back(forward, frames[1:]) for forward in message.forwards])
    return msgspec.structs.replace(message, forwards=forwards)


def _set_apart(forward: WireForward, large: list[bytes | memoryview]) -> WireForward:
    """Move its large arrays to the end of `large`."""
    arrays = []
    for name, dtype, shape, block in forward.arrays:
        if isinstance(block, int) or len(block) < LARGE_BYTES:
            arrays.append((name, dtype, shape, block))
        else:
            arrays.append((name, dtype, shape, len(large)))
            large.append(block)
    return WireForward(forward.head, tuple(arrays))


def _put_back(forward: WireForward, large: Sequence[bytes | memoryview]) -> WireForward:
    found = ((name, dtype, shape, _block(name, block, large)) for name, dtype, shape, block in forward.arrays)
    return WireForward(forward.head, tuple(found))


def _block(name: str, block: memoryview | int, large: Sequence[bytes | memoryview]) -> memoryview:
    if not isinstance(block, int):
        return block
    if not 0 <= block < len(large):
        raise msgspec.DecodeError(f"array {name}: got frame {block}, expected one of {len(large)}")
    return memoryview(large[block])


def encode_receipt(receipt: Receipt) -> bytes:
    """As one frame."""
    return _encoder.encode(receipt)


def decode_receipt(frame: bytes) -> Receipt:
    """From one frame; msgspec.DecodeError for anything else."""
    return msgspec.msgpack.decode(frame, type=Receipt)
