"""The scheduler's end of the line to the courier process: bounded, and it never blocks.

A process of its own, because a thread beside SGLang's scheduler would take the GIL from it at every turn. ZeroMQ
(SGLang's own choice between its processes) carries the letters on its I/O thread.
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

#: Running requests remembered. A request aborted while it waits never says that it ended; this bounds those.
MAX_RUNNING = 4096


class CourierSender:
    """Sends letters to whoever listens at `endpoint`, now or later; holds at most `max_bytes` unread ones.

    Forwards that find the line full are lost; their request ids go with the next letter, so that the courier can drop
    their windows instead of gluing together what does not belong together. Any thread may call.
    """

    def __init__(self, endpoint: str, max_bytes: int) -> None:
        self._endpoint, self._max_bytes = endpoint, max_bytes
        self._socket = _connected(endpoint)
        self._lock = threading.Lock()
        self._sent_bytes = 0  # to the courier that listens now
        self._receipt: Receipt | None = None
        self._told: dict[str, Any] | None = None  # status that this courier knows
        self._lost: set[str] = set()
        self._running: dict[str, None] = {}  # captured requests that have not ended, oldest first
        self._begun: deque[int] = deque()  # bytes sent when a request began, of those that no receipt covers

    def offer(self, forwards: Sequence[WireForward]) -> bool:
        """Send forwards, oldest first; never blocks. A full line: False, and their requests marked as lost."""
        with self._lock:
            for forward in forwards:
                self._follow(forward.head)
            frame = encode_message(Message(tuple(forwards), tuple(self._lost)))
            if not self._has_room(len(frame)) or not self._send(frame):
                for forward in forwards:
                    self._lost.update(forward.head.request_ids)
                return False
            self._lost.clear()
            return True

    def lose(self, request_ids: Iterable[str]) -> None:
        """Mark requests of which a step is missing."""
        with self._lock:
            self._lost.update(request_ids)

    def tell(self, status: dict[str, Any]) -> None:
        """Send the scheduler's share of the replica's reading when it is news, whether the line is full or not.

        Never blocks.
        """
        with self._lock:
            self._read_receipts()
            if status == self._told and not self._lost:
                return
            if self._send(encode_message(Message(lost=tuple(self._lost), status=status))):
                self._lost.clear()
                self._told = status

    def resume(self) -> Resume:
        """Tell the next courier where the one that died stood, and return that.

        Call once after each death, before it is replaced.
        """
        with self._lock:
            self._read_receipts()
            counts = self._receipt.counts if self._receipt else {}
            where = Resume(counts, tuple(self._running), len(self._begun))
            # A new line: letters that wait on the old one begin in the middle of what was lost.
            self._socket.close()
            self._socket = _connected(self._endpoint)
            self._sent_bytes, self._receipt, self._told = 0, None, None
            self._begun.clear()
            self._send(encode_message(Message(resume=where)))
        return where

    def close(self) -> None:
        """Drop what was not read yet."""
        with self._lock:
            self._socket.close()

    def _follow(self, head: VerifyHead | PrefillHead) -> None:
        for request_id, commit in zip(head.request_ids, head.commits, strict=True):
            if isinstance(head, PrefillHead) and request_id not in self._running:
                self._begun.append(self._sent_bytes)
            self._running[request_id] = None
            if commit.finish:
                del self._running[request_id]
        while len(self._running) > MAX_RUNNING:
            del self._running[next(iter(self._running))]

    def _has_room(self, size_bytes: int) -> bool:
        if self._unread_bytes() + size_bytes > self._max_bytes:
            self._read_receipts()
        return self._unread_bytes() + size_bytes <= self._max_bytes

    def _unread_bytes(self) -> int:
        return self._sent_bytes - (self._receipt.received_bytes if self._receipt else 0)

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
            while self._begun and self._begun[0] < self._receipt.received_bytes:
                self._begun.popleft()


def _connected(endpoint: str) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)  # the link bounds it by bytes instead
    socket.connect(endpoint)
    return socket
