"""The courier's end of the line from the scheduler process."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import zmq

from ..wire.messages import Message, Receipt, Resume, decode_message, encode_receipt
from ..wire.teacher_width import TeacherWidth
from .split import CapturedForward

#: A receipt that says nothing new is sent this often all the same, to show that the courier is not hung.
RECEIPT_S = 1.0


@dataclass(slots=True)
class Received:
    """Forwards, oldest first, and what was lost on the way.

    Add the forwards before dropping the lost requests: their earlier forwards are among them.
    """

    forwards: list[CapturedForward] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)  # requests of which a forward is missing
    faulty: set[str] = field(default_factory=set)  # those of `lost` that a fault lost; the others found the line full
    lost_unnamed: int = 0  # further requests, of which no forward came


class CourierReceiver:
    """Reads messages at `endpoint`, where one scheduler process sends. For one thread."""

    def __init__(
        self,
        endpoint: str,
        teacher: TeacherWidth,
        on_resume: Callable[[Resume], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)  # the sender counts bytes, what waits here included
        self._socket.bind(endpoint)
        self._teacher, self._on_resume, self._clock = teacher, on_resume, clock
        self._received_bytes = 0
        self._receipt: Receipt | None = None  # sent last
        self._receipt_at_s = 0.0
        self._pause = threading.Event()  # never set
        self.status: dict[str, Any] = {}  # what the scheduler process reported last

    def take(self, wait_s: float, max_messages: int = 256) -> Received:
        """Wait `wait_s`; return what has arrived by then, of at most `max_messages`."""
        # Not until the first message comes: many small turns cost more than few large ones.
        self._pause.wait(wait_s)
        received = Received()
        for _ in range(max_messages):
            try:
                frame = self._socket.recv(flags=zmq.NOBLOCK)
            except zmq.Again:
                break
            self._received_bytes += len(frame)
            self._read(decode_message(frame), received)
        return received

    def acknowledge(self, counts: dict[str, Any]) -> None:
        """Report what was read so far, and the courier's counts, where another one would go on; never blocks.

        A receipt that equals the last one is sent when RECEIPT_S have passed.
        """
        receipt, now_s = Receipt(self._received_bytes, counts), self._clock()
        if receipt == self._receipt and now_s - self._receipt_at_s < RECEIPT_S:
            return
        try:
            self._socket.send(encode_receipt(receipt), flags=zmq.NOBLOCK)
        except zmq.Again:
            return  # nobody listens yet: the next receipt says the same and more
        self._receipt, self._receipt_at_s = receipt, now_s

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _read(self, message: Message, received: Received) -> None:
        if message.resume is not None:
            self._on_resume(message.resume)
        if message.status is not None:
            self.status = message.status
        received.lost.update(message.lost)
        received.faulty.update(message.faulty)
        received.lost_unnamed += message.lost_unnamed
        received.forwards += [CapturedForward(forward, self._teacher) for forward in message.forwards]
