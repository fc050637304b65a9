"""The courier's end of the line from the scheduler process."""

import threading
from collections.abc import Callable
from typing import Any

import zmq

from .cut import Forward, TeacherWidth
from .letters import Letter, Receipt, Resume, decode_letter, encode_receipt


class Inlet:
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

    def take(self, wait_s: float, max_letters: int = 256) -> tuple[list[Forward], set[str]]:
        """Wait `wait_s`; return the forwards that are there then, oldest first, and the requests lost among them.

        Add the forwards before dropping the lost requests: their earlier steps are among them.
        """
        # Not until the first letter comes: many small turns cost more than few large ones.
        self._pause.wait(wait_s)
        forwards: list[Forward] = []
        lost: set[str] = set()
        for _ in range(max_letters):
            try:
                frame = self._socket.recv(flags=zmq.NOBLOCK)
            except zmq.Again:
                break
            self._received_bytes += len(frame)
            self._read(decode_letter(frame), forwards, lost)
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

    def _read(self, letter: Letter, forwards: list[Forward], lost: set[str]) -> None:
        if letter.resume is not None:
            self._on_resume(letter.resume)
        if letter.status is not None:
            self.status = letter.status
        lost.update(letter.lost)
        forwards += [Forward(posting, self._teacher) for posting in letter.postings]
