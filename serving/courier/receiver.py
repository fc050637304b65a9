"""The courier's end of the line from the scheduler process."""

import threading
from collections.abc import Callable
from typing import Any

import zmq

from ..wire.messages import Message, Receipt, Resume, decode_message, encode_receipt
from ..wire.teacher_width import TeacherWidth
from .split import CapturedForward


class CourierReceiver:
    """Reads letters at `endpoint`, where one scheduler process sends. For one thread."""

    def __init__(self, endpoint: str, teacher: TeacherWidth, on_resume: Callable[[Resume], None]) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)  # the sender counts bytes, what waits here included
        self._socket.bind(endpoint)
        self._teacher, self._on_resume = teacher, on_resume
        self._received_bytes = 0
        self._told: Receipt | None = None  # last
        self._pause = threading.Event()  # never set
        self.status: dict[str, Any] = {}  # what the scheduler process said last

    def take(self, wait_s: float, max_messages: int = 256) -> tuple[list[CapturedForward], set[str]]:
        """Wait `wait_s`; return the forwards that are there then, oldest first, and the requests lost among them.

        Add the forwards before dropping the lost requests: their earlier steps are among them.
        """
        # Not until the first letter comes: many small turns cost more than few large ones.
        self._pause.wait(wait_s)
        forwards: list[CapturedForward] = []
        lost: set[str] = set()
        for _ in range(max_messages):
            try:
                frame = self._socket.recv(flags=zmq.NOBLOCK)
            except zmq.Again:
                break
            self._received_bytes += len(frame)
            self._read(decode_message(frame), forwards, lost)
        return forwards, lost

    def acknowledge(self, counts: dict[str, Any]) -> None:
        """Say what was read so far, and the courier's counts: where another one would go on. Never blocks."""
        receipt = Receipt(self._received_bytes, counts)
        if receipt == self._told:
            return
        try:
            self._socket.send(encode_receipt(receipt), flags=zmq.NOBLOCK)
        except zmq.Again:
            return  # nobody listens yet: the next receipt says the same and more
        self._told = receipt

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _read(self, letter: Message, forwards: list[CapturedForward], lost: set[str]) -> None:
        if letter.resume is not None:
            self._on_resume(letter.resume)
        if letter.status is not None:
            self.status = letter.status
        lost.update(letter.lost)
        forwards += [CapturedForward(forward, self._teacher) for forward in letter.forwards]
