"""The scheduler's end of the line to the courier process: bounded, and it never blocks.

The courier is a process of its own, because a thread beside SGLang's scheduler would take the GIL from it at every
turn. ZeroMQ (SGLang's own choice between its processes) carries the messages on its I/O thread.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import zmq

from ...buffer.board.member_status import MemberStatus, TracesSaid
from ..wire.counts import DropReason
from ..wire.messages import (
    Message,
    PrefillHead,
    Receipt,
    Resume,
    VerifyHead,
    WireForward,
    decode_receipt,
    encode_message,
)
from ..wire.request_forward import NOTHING_VISIBLE, Commit
from .lost_requests import LostRequests, Step

log = logging.getLogger(__name__)

#: Running requests remembered. A request aborted while it waits never reports its end; this bounds those.
MAX_RUNNING = 4096


class CourierSender:
    """Sends messages to the process that listens at `endpoint`, now or later; at most `max_bytes` of them are unread.

    Forwards that find the line full are lost. The ids of their requests, but for those that had ended already, go with
    the next message, so that the courier can drop their windows instead of joining what is not contiguous. Memory stays
    bounded while nobody reads. Any thread may call.
    """

    def __init__(self, endpoint: str, max_bytes: int) -> None:
        self._endpoint = endpoint
        self._max_bytes = max_bytes
        self._socket = _connected(endpoint)
        self._lock = threading.Lock()
        self._sent_bytes = 0  # to the courier that listens now
        self._receipt: Receipt | None = None
        self._receipts = 0  # read so far, of all couriers
        self.member = ""  # the name that couriers beat under, by the last receipt; empty until there is one
        self._resumed: Resume | None = None  # where the courier that listens now was asked to go on
        self._status: MemberStatus | None = None  # sent last to this courier
        self._status_end_bytes = 0  # `_sent_bytes` after it
        self._lost = LostRequests()
        self._running: dict[str, None] = {}  # captured requests that have not ended, oldest first
        self._begun: deque[tuple[int, int]] = deque()  # (bytes sent then, requests that began), covered by no receipt

    @property
    def sent_bytes(self) -> int:
        """Bytes sent so far to the courier that listens now."""
        return self._sent_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether a message of about this size, and the names of lost requests with it, may be sent now."""
        with self._lock:
            return self._has_room(size_bytes + self._lost.size_bytes)

    def offer(self, forwards: Sequence[WireForward]) -> bool:
        """Send forwards, oldest first; never blocks. A full line: False, and their requests marked as lost."""
        with self._lock:
            followed = [self._follow(forward.head) for forward in forwards]
            if self._send_lost(Message(forwards=tuple(forwards))):
                return True
            for steps in followed:
                self._lost.mark(steps, DropReason.QUEUE_FULL)
            return False

    def refuse(self, heads: Iterable[VerifyHead | PrefillHead]) -> None:
        """Mark the requests of forwards that are not offered, since there is no room, as lost."""
        with self._lock:
            for head in heads:
                self._lost.mark(self._follow(head), DropReason.QUEUE_FULL)

    def lose(
        self,
        request_ids: Sequence[str],
        commits: Sequence[Commit] | None = None,
        reason: DropReason = DropReason.FAULT,
        *,
        may_begin: bool = True,
    ) -> None:
        """Mark requests as lost that miss a forward; `commits` say which end with it, without them none.

        A request never seen before begins with this forward, or, unless it may, had ended before: then it lost nothing.
        """
        with self._lock:
            commits = commits or [NOTHING_VISIBLE] * len(request_ids)
            self._lost.mark(self._follow_each(request_ids, commits, may_begin=may_begin), reason)

    def report(self, status: MemberStatus) -> None:
        """Send the scheduler's share of the replica's status if it has changed; never blocks.

        A full line takes one status that is not read yet, and no more: the next call sends what is new by then.
        """
        with self._lock:
            self._read_receipts()
            if status == self._status and not self._lost:
                return
            if self._send_lost(Message(status=status), is_urgent=self._read_bytes() >= self._status_end_bytes):
                self._status = status
                self._status_end_bytes = self._sent_bytes

    def read_receipts(self) -> int:
        """Read what the couriers answered; return how many receipts have come so far. Never blocks."""
        with self._lock:
            self._read_receipts()
            return self._receipts

    def resume(self) -> Resume:
        """Send the next courier the position of the one that died, and return it. Call once after each death."""
        with self._lock:
            self._read_receipts()
            where = self._resumed = self._position()
            # A new line: messages that wait on the old one begin in the middle of what was lost.
            self._socket.close()
            self._socket = _connected(self._endpoint)
            self._sent_bytes = 0
            self._receipt = None
            self._status = None
            self._status_end_bytes = 0
            self._begun.clear()
            # All of them are in `where`: they had begun, and either are among its counts or began after those.
            self._lost.clear()
            self._send(encode_message(Message(resume=where)))
        return where

    def close(self) -> None:
        """Drop what was not read yet."""
        with self._lock:
            self._socket.close()

    def _position(self) -> Resume:
        begun = sum(count for _, count in self._begun)
        before = self._resumed
        receipt = self._receipt
        running = tuple(self._running)
        if before is not None and (receipt is None or not receipt.received_bytes):
            return Resume(before.counts, running, before.begun_since + begun)  # it died before it read that
        return Resume(receipt.counts if receipt else TracesSaid(), running, begun)

    def _follow(self, head: VerifyHead | PrefillHead) -> list[Step]:
        return self._follow_each(head.request_ids, head.commits, may_begin=isinstance(head, PrefillHead))

    def _follow_each(self, request_ids: Sequence[str], commits: Sequence[Commit], *, may_begin: bool) -> list[Step]:
        """Note which requests begin and end with a forward; return its requests without those that had ended before."""
        steps = []
        for request_id, commit in zip(request_ids, commits, strict=True):
            begins = may_begin and request_id not in self._running
            if begins or commit.tokens or request_id in self._running:
                steps.append(Step(request_id, begins, bool(commit.finish)))
                self._running[request_id] = None
            if commit.finish:
                self._running.pop(request_id, None)
        self._note_begun(sum(step.begins for step in steps))
        self._forget_oldest()
        return steps

    def _note_begun(self, count: int) -> None:
        if count and self._begun and self._begun[-1][0] == self._sent_bytes:
            self._begun[-1] = (self._sent_bytes, self._begun[-1][1] + count)
        elif count:
            self._begun.append((self._sent_bytes, count))

    def _forget_oldest(self) -> None:
        while len(self._running) > MAX_RUNNING:
            del self._running[next(iter(self._running))]

    def _has_room(self, size_bytes: int) -> bool:
        if self._unread_bytes() + size_bytes > self._max_bytes:
            self._read_receipts()
        return self._unread_bytes() + size_bytes <= self._max_bytes

    def _unread_bytes(self) -> int:
        return self._sent_bytes - self._read_bytes()

    def _read_bytes(self) -> int:
        return self._receipt.received_bytes if self._receipt else 0

    def _send_lost(self, message: Message, *, is_urgent: bool = False) -> bool:
        """Send `message` with the lost requests if there is room, or if it is urgent; whether it was sent."""
        frames = encode_message(msgspec.structs.replace(message, **self._lost.message_fields()))
        if not (is_urgent or self._has_room(sum(map(len, frames)))) or not self._send(frames):
            return False
        self._lost.clear()
        return True

    def _send(self, frames: Sequence[bytes | memoryview]) -> bool:
        try:
            # Large frames are not copied: ZeroMQ's thread writes them to the line, and keeps them alive until then.
            self._socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        self._sent_bytes += sum(map(len, frames))
        return True

    def _read_receipts(self) -> None:
        while True:
            try:
                self._receipt = decode_receipt(self._socket.recv(flags=zmq.NOBLOCK))
            except zmq.Again:
                return
            except msgspec.DecodeError as fault:
                log.warning("paceline: a receipt of the courier is unreadable: %s", fault)
                continue
            self._receipts += 1
            self.member = self._receipt.member or self.member
            while self._begun and self._begun[0][0] < self._receipt.received_bytes:
                self._begun.popleft()


def _connected(endpoint: str) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)  # CourierSender bounds it by bytes instead
    socket.connect(endpoint)
    return socket
