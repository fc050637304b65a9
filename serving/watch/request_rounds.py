"""Verify rounds of one request drafted by one version, as far as a trial needs them: accepted drafts by checkpoint."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from ...policies.acceptance import Tally

#: No request has more rounds or accepted drafts; a larger number is not a count.
MAX_COUNT = 2**31


@dataclass(slots=True)
class RequestRounds:
    """Accepted drafts of one request under one version; `accepted_at[i]` of them after `checkpoints[i]` rounds."""

    request_id: str
    checkpoints: Sequence[int]  # numbers of rounds, ascending
    accepted_at: list[int] = field(default_factory=list)
    accepted: int = 0
    rounds: int = 0

    def add(self, accepted: int) -> None:
        """One more round. Plain integers: the courier calls this thousands of times a second."""
        self.accepted += accepted
        self.rounds += 1
        if self.rounds in self.checkpoints:
            self.accepted_at.append(self.accepted)

    def segments(self) -> Iterator[Tally]:
        """The rounds in order, cut at the checkpoints that were reached; they add up to all of them."""
        before = Tally()
        for rounds, accepted in zip(self.checkpoints, self.accepted_at, strict=False):
            yield Tally(accepted - before.accepted, rounds - before.rounds)
            before = Tally(accepted, rounds)
        yield Tally(self.accepted - before.accepted, self.rounds - before.rounds)

    def status(self) -> list[object]:
        """As JSON values; `read_request_rounds` is the way back. A client chose the id, so a digest replaces it."""
        name = blake2b(self.request_id.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        return [name, self.accepted_at, self.accepted, self.rounds]


def read_request_rounds(value: Any, checkpoints: Sequence[int]) -> RequestRounds | None:
    """Rounds from another replica's heartbeat; None for malformed input, since heartbeats are not trusted."""
    match value:
        case [str(name), [*values], int(accepted), int(rounds)] if 0 < rounds <= MAX_COUNT >= accepted:
            accepted_at = [value for value in values if isinstance(value, int)]
            rises, reached = [0, *accepted_at, accepted], sum(checkpoint <= rounds for checkpoint in checkpoints)
            if len(values) == len(accepted_at) == reached and all(a <= b for a, b in pairwise(rises)):
                return RequestRounds(name, checkpoints, accepted_at, accepted, rounds)
    return None
