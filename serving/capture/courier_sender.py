"""The scheduler's end of the line to the courier process: bounded, and it never blocks.

The courier is a process of its own, because a thread beside SGLang's scheduler would take the GIL from it at every
turn. ZeroMQ (SGLang's own choice between its processes) carries the messages on its I/O thread.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import zmq

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

log = logging.getLogger(__name__)

#: Running requests remembered. A request aborted while it waits never reports its end; this bounds those.
MAX_RUNNING = 4096
#: Lost requests named in one message. Of the rest, those that also began meanwhile are counted and not named.
MAX_LOST = 4096
#: Of a name in a message, beside its characters.
NAME_BYTES = 5


class CourierSender:
    """Sends messages to the process that listens at `endpoint`, now or later; at most `max_bytes` of them are unread.

    Forwards that find the line full are lost; their request ids go with the next message, so that the courier can drop
    their windows instead of joining what is not contiguous. Memory stays bounded while nobody reads. Any thread may
    call.
    """

    def __init__(self, endpoint: str, max_bytes: int) -> None:
        self._endpoint, self._max_bytes = endpoint, max_bytes
        self._socket = _connected(endpoint)
        self._lock = threading.Lock()
        self._sent_bytes = 0  # to the courier that listens now
        self._receipt: Receipt | None = None
        self._receipts = 0  # read so far, of all couriers
        self._resumed: Resume | None = None  # where the courier that listens now was asked to go on
        self._status: dict[str, Any] | None = None  # sent last to this courier
        self._status_end_bytes = 0  # `_sent_bytes` after it
        self._lost: dict[str, bool] = {}  # request -> whether a fault lost a forward of it; else the line was full
        self._lost_unnamed = 0
        self._running: dict[str, None] = {}  # captured requests that have not ended, oldest first
        self._begun: deque[tuple[int, int]] = deque()  # (bytes sent then, requests that began), covered by no receipt

    def has_room(self, size_bytes: int) -> bool:
        """Whether a message of about this size, and the names of lost requests with it, may be sent now."""
        with self._lock:
            return self._has_room(size_bytes + sum(len(name) + NAME_BYTES for name in self._lost))

    def offer(self, forwards: Sequence[WireForward]) -> bool:
        """Send forwards, oldest first; never blocks. A full line: False, and their requests marked as lost."""
        with self._lock:
            begun = [self._follow(forward.head) for forward in forwards]
            if self._send_lost(Message(tuple(forwards))):
                return True
            for forward, ids in zip(forwards, begun, strict=True):
                self._mark_lost(forward.head.request_ids, ids)
            return False

    def refuse(self, heads: Iterable[VerifyHead | PrefillHead]) -> None:
        """Mark the requests of forwards that are not offered, since there is no room, as lost."""
        with self._lock:
            for head in heads:
                self._mark_lost(head.request_ids, self._follow(head))

    def lose(self, request_ids: Iterable[str]) -> None:
        """Mark requests as lost of which a fault cost a forward."""
        with self._lock:
            ids = tuple(request_ids)
            self._mark_lost(ids, self._begin(ids), is_fault=True)

    def report(self, status: dict[str, Any]) -> None:
        """Send the scheduler's share of the replica's status if it has changed; never blocks.

        A full line takes one status that is not read yet, and no more: the next call sends what is new by then.
        """
        with self._lock:
            self._read_receipts()
            if status == self._status and not self._lost:
                return
            if self._send_lost(Message(status=status), is_urgent=self._read_bytes() >= self._status_end_bytes):
                self._status, self._status_end_bytes = status, self._sent_bytes

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
            self._sent_bytes, self._receipt, self._status, self._status_end_bytes = 0, None, None, 0
            self._begun.clear()
            # All of them are in `where`: they had begun, and either are among its counts or began after those.
            self._lost.clear()
            self._lost_unnamed = 0
            self._send(encode_message(Message(resume=where)))
        return where

    def close(self) -> None:
        """Drop what was not read yet."""
        with self._lock:
            self._socket.close()

    def _position(self) -> Resume:
        begun, before, receipt = sum(count for _, count in self._begun), self._resumed, self._receipt
        running = tuple(self._running)
        if before is not None and (receipt is None or not receipt.received_bytes):
            return Resume(before.counts, running, before.begun_since + begun)  # it died before it read that
        return Resume(receipt.counts if receipt else {}, running, begun)

    def _follow(self, head: VerifyHead | PrefillHead) -> tuple[str, ...]:
        """Note which requests begin and end with a forward; return those that begin."""
        begun = self._begin(head.request_ids if isinstance(head, PrefillHead) else ())
        for request_id, commit in zip(head.request_ids, head.commits, strict=True):
            self._running[request_id] = None
            if commit.finish:
                del self._running[request_id]
        self._forget_oldest()
        return begun

    def _begin(self, request_ids: tuple[str, ...]) -> tuple[str, ...]:
        begun = tuple(request_id for request_id in request_ids if request_id not in self._running)
        self._running.update(dict.fromkeys(begun))
        if begun and self._begun and self._begun[-1][0] == self._sent_bytes:
            self._begun[-1] = (self._sent_bytes, self._begun[-1][1] + len(begun))
        elif begun:
            self._begun.append((self._sent_bytes, len(begun)))
        self._forget_oldest()
        return begun

    def _forget_oldest(self) -> None:
        while len(self._running) > MAX_RUNNING:
            del self._running[next(iter(self._running))]

    def _mark_lost(self, request_ids: tuple[str, ...], begun: tuple[str, ...], *, is_fault: bool = False) -> None:
        """A request beyond MAX_LOST is counted if it begins here; if not, the gap is found by the courier."""
        for request_id in request_ids:
            if request_id in self._lost or len(self._lost) < MAX_LOST:
                self._lost[request_id] = is_fault or self._lost.get(request_id, False)
            elif request_id in begun:
                self._lost_unnamed += 1

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
        faulty = tuple(request_id for request_id, is_fault in self._lost.items() if is_fault)
        lost = {"lost": tuple(self._lost), "faulty": faulty, "lost_unnamed": self._lost_unnamed}
        frame = encode_message(msgspec.structs.replace(message, **lost))
        if not (is_urgent or self._has_room(len(frame))) or not self._send(frame):
            return False
        self._lost.clear()
        self._lost_unnamed = 0
        return True

    def _send(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame, flags=zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._sent_bytes += len(frame)
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
            while self._begun and self._begun[0][0] < self._receipt.received_bytes:
                self._begun.popleft()


def _connected(endpoint: str) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)  # CourierSender bounds it by bytes instead
    socket.connect(endpoint)
    return socket
