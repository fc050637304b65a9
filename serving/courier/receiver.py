"""The courier's end of the line from the scheduler process."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

import zmq

from ...buffer.board.member_status import MemberStatus, TracesSaid
from ..wire.messages import Message, Receipt, Resume, decode_message, encode_receipt

#: A receipt that says nothing new is sent this often all the same, to show that the courier is not hung.
RECEIPT_S = 1.0


class Source(Protocol):
    """Where forwards come from; CourierReceiver is the one that ships."""

    status: MemberStatus  # what the scheduler process reported last

    def take(self, wait_s: float) -> list[Message]:
        """Return the messages that have come, oldest first; waits up to `wait_s`."""
        ...

    def acknowledge(self, counts: TracesSaid, member: str) -> None:
        """Report that all received so far is in `counts`, and that `member`'s courier is not hung; never blocks."""
        ...


class CourierReceiver:
    """Reads messages at `endpoint`, where one scheduler process sends. For one thread."""

    def __init__(
        self,
        endpoint: str,
        on_resume: Callable[[Resume], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)  # the sender counts bytes, what waits here included
        self._socket.bind(endpoint)
        self._on_resume = on_resume
        self._clock = clock
        self._received_bytes = 0
        self._receipt: Receipt | None = None  # sent last
        self._receipt_at_s = 0.0
        self._pause = threading.Event()  # never set
        self.status = MemberStatus()  # what the scheduler process reported last

    def take(self, wait_s: float, max_messages: int = 256) -> list[Message]:
        """Wait `wait_s`; return what has arrived by then, oldest first, of at most `max_messages`."""
        # Not until the first message comes: many small turns cost more than few large ones.
        self._pause.wait(wait_s)
        received = []
        for _ in range(max_messages):
            try:
                frames = [frame.buffer for frame in self._socket.recv_multipart(flags=zmq.NOBLOCK, copy=False)]
            except zmq.Again:
                break
            self._received_bytes += sum(map(len, frames))
            received.append(self._read(decode_message(frames)))
        return received

    def acknowledge(self, counts: TracesSaid, member: str) -> None:
        """Report what was read so far, and the courier's counts and name, where another one would go on; never blocks.

        A receipt that equals the last one is sent when RECEIPT_S have passed.
        """
        receipt = Receipt(self._received_bytes, counts, member)
        now_s = self._clock()
        if receipt == self._receipt and now_s - self._receipt_at_s < RECEIPT_S:
            return
        try:
            self._socket.send(encode_receipt(receipt), flags=zmq.NOBLOCK)
        except zmq.Again:
            return  # nobody listens yet: the next receipt says the same and more
        self._receipt = receipt
        self._receipt_at_s = now_s

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _read(self, message: Message) -> Message:
        if message.resume is not None:
            self._on_resume(message.resume)
        if message.status is not None:
            self.status = message.status
        return message
