"""Verify rounds of one request drafted by one version, as far as a trial needs them: accepted drafts by checkpoint."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

from ...buffer.board.member_status import BegunSaid, RequestSaid
from ...policies.acceptance import Tally

#: No request has more rounds or accepted drafts; a larger number is not a count.
MAX_COUNT = 2**31
#: For so many rounds after its last checkpoint a running request stays in its replica's heartbeat: for several beats.
FRESH_ROUNDS = 256


@dataclass(slots=True, kw_only=True)
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

    @property
    def digest(self) -> str:
        """For other replicas: a client chose the id."""
        return blake2b(self.request_id.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()

    def said(self) -> RequestSaid:
        """For a heartbeat, with a digest in place of the id; `read_request_rounds` is the way back."""
        return RequestSaid(self.digest, self.accepted_at, self.accepted, self.rounds)


def begun_said(running: Iterable[RequestRounds], most: int) -> list[BegunSaid]:
    """How requests that still run began, for a heartbeat: at most `most` of them.

    Of more it is a sample by digest, which says nothing of how they began, and in which a request stays until it has
    run on for FRESH_ROUNDS after the last checkpoint. By falling digest, so that rows in front may be left out.
    """
    fresh = [r for r in running if r.accepted_at and r.rounds <= r.checkpoints[-1] + FRESH_ROUNDS]
    return [BegunSaid(request.digest, request.accepted_at) for request in sorted(fresh, key=_by_digest)[:most][::-1]]


def _by_digest(request: RequestRounds) -> str:
    return request.digest


def read_begun(said: BegunSaid, checkpoints: Sequence[int]) -> list[Tally]:
    """The first rounds of another replica's request up to each checkpoint that was reached.

    Empty for figures that make no sense, since heartbeats are not trusted.
    """
    if len(said.accepted_at) > len(checkpoints) or not _rises([0, *said.accepted_at, MAX_COUNT]):
        return []
    return [Tally(*begin) for begin in zip(said.accepted_at, checkpoints, strict=False)]


def read_request_rounds(said: RequestSaid, checkpoints: Sequence[int]) -> RequestRounds | None:
    """Rounds from another replica's heartbeat; None for figures that make no sense: heartbeats are not trusted."""
    reached = sum(checkpoint <= said.rounds for checkpoint in checkpoints)
    is_count = 0 < said.rounds <= MAX_COUNT >= said.accepted
    if not is_count or len(said.accepted_at) != reached or not _rises([0, *said.accepted_at, said.accepted]):
        return None
    return RequestRounds(
        request_id=said.digest,
        checkpoints=checkpoints,
        accepted_at=said.accepted_at,
        accepted=said.accepted,
        rounds=said.rounds,
    )


def _rises(counts: Sequence[int]) -> bool:
    return all(a <= b for a, b in pairwise(counts))
