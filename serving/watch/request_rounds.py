"""Rounds of one request drafted by one version, as far as a trial needs them: how it begins, and how much in all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from ...policies.acceptance import Tally

#: No request has more rounds or accepted drafts; a number beyond is nobody's count.
MAX_COUNT = 2**31


@dataclass(slots=True)
class RequestRounds:
    """Accepted drafts of one request under one version; marks[i] is what had been accepted after looks[i] rounds."""

    request_id: str
    looks: Sequence[int]  # numbers of rounds, ascending
    marks: list[int] = field(default_factory=list)
    accepted: int = 0
    rounds: int = 0

    def add(self, accepted: int) -> None:
        """One more round. Plain integers: the courier comes here thousands of times a second."""
        self.accepted += accepted
        self.rounds += 1
        if self.rounds in self.looks:
            self.marks.append(self.accepted)

    def pieces(self) -> Iterator[Tally]:
        """The rounds in order, cut at the looks it reached; they add up to all of them."""
        told = Tally()
        for rounds, accepted in zip(self.looks, self.marks, strict=False):
            yield Tally(accepted - told.accepted, rounds - told.rounds)
            told = Tally(accepted, rounds)
        yield Tally(self.accepted - told.accepted, self.rounds - told.rounds)

    def status(self) -> list[object]:
        """As JSON values; `read_request_rounds` is the way back. A client chose the id, so it goes as a digest."""
        name = blake2b(self.request_id.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        return [name, self.marks, self.accepted, self.rounds]


def read_request_rounds(value: Any, looks: Sequence[int]) -> RequestRounds | None:
    """A stretch from another replica's reading; None when it is not one: what stands there is somebody else's."""
    match value:
        case [str(name), [*told], int(accepted), int(rounds)] if 0 < rounds <= MAX_COUNT >= accepted:
            marks = [mark for mark in told if isinstance(mark, int)]
            rises, reached = [0, *marks, accepted], sum(look <= rounds for look in looks)
            if len(told) == len(marks) == reached and all(a <= b for a, b in pairwise(rises)):
                return RequestRounds(name, looks, marks, accepted, rounds)
    return None
