"""Counts what captured requests are served, round by round and request by request, since the courier's server started.

Rounds are those that DraftMonitor counts for its trials and alarms: of requests that are captured, with drafts, and
committed. Of a tree the accepted path counts, and the first draft after it.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from ...buffer.board.counters import LENGTH_EDGES, ServedCounters
from ..wire.request_forward import RequestFacts, RequestForward, RequestPrefill, RequestVerify
from .served_cells import ServedCells

#: Requests that run. One that is aborted while it waits never reports its end; this bounds those.
MAX_RUNNING = 4096
#: Of a label: clients may choose longer ones, for which a heartbeat has no room.
MAX_SHOWN_CHARS = 32


@dataclass(slots=True, kw_only=True)
class _Request:
    label: str
    kind: str
    draft: int = -1
    rounds: int = 0  # with that draft
    accepted: int = 0
    all_rounds: int = 0
    all_accepted: int = 0


class ServedCounts:
    """Counts the rounds of one replica; for the courier's thread."""

    def __init__(self) -> None:
        self._running: dict[str, _Request] = {}
        self._cells = ServedCells()
        self._draft: int | None = None
        self._lengths = [0] * (len(LENGTH_EDGES) + 1)
        self._forgotten = self._unattributed = 0

    def add(self, forward: RequestForward) -> None:
        """Count one forward."""
        if isinstance(forward, RequestPrefill):
            self._begin(forward.request_id, forward.facts)
        elif forward.commit.tokens and len(forward.drafted):
            self._count(forward)
        if forward.commit.finish:
            self._end(forward.request_id)

    def lose(self, request_ids: Iterable[str]) -> None:
        """A forward of these requests is missing, so their rounds are counted no further."""
        for request_id in request_ids:
            request = self._running.pop(request_id, None)
            if request is not None:
                self._end_stretch(request)

    def adopt(self, before: ServedCounters) -> None:
        """Go on from the counters of a courier before this one."""
        self._cells.add(before.cells, before.positions)
        for i, requests in enumerate(before.request_lengths[: len(self._lengths)]):
            self._lengths[i] += requests
        self._forgotten += before.forgotten
        self._unattributed += before.unattributed

    def counters(self) -> ServedCounters:
        """As they are now; a copy."""
        return ServedCounters(
            cells=self._cells.cells(),
            positions=self._cells.positions(),
            request_lengths=[*self._lengths],
            forgotten=self._forgotten,
            unattributed=self._unattributed,
        )

    def _begin(self, request_id: str, facts: RequestFacts) -> None:
        if request_id in self._running:
            return  # a later chunk, or prefilled again after a retraction
        self._running[request_id] = _Request(label=facts.label[:MAX_SHOWN_CHARS], kind=kind_of(facts))
        if len(self._running) > MAX_RUNNING:
            self._forgotten += 1
            self.lose([next(iter(self._running))])

    def _count(self, verify: RequestVerify) -> None:
        request = self._running.get(verify.request_id)
        if request is None:
            self._unattributed += 1
            return
        draft = verify.draft_version
        if draft != self._draft:
            self._draft = draft
            self._cells.begin(draft)
        if draft != request.draft:
            self._end_stretch(request)
            request.draft = draft
        request.rounds += 1
        request.accepted += verify.accepted
        drafted = int((verify.drafted >= 0).sum()) if verify.tree else len(verify.drafted)
        self._cells.count(
            draft,
            request.label,
            request.kind,
            accepted=verify.accepted,
            drafted=drafted,
            output=verify.commit.output_index,
            context=verify.root + 1,
        )

    def _end(self, request_id: str) -> None:
        request = self._running.pop(request_id, None)
        if request is None:
            return
        self._end_stretch(request)
        if request.all_rounds:
            length = 1.0 + request.all_accepted / request.all_rounds
            self._lengths[bisect_left(LENGTH_EDGES, length)] += 1

    def _end_stretch(self, request: _Request) -> None:
        if request.rounds:
            self._cells.end(
                request.draft, request.label, request.kind, rounds=request.rounds, accepted=request.accepted
            )
        request.all_rounds += request.rounds
        request.all_accepted += request.accepted
        request.rounds = request.accepted = 0


def kind_of(facts: RequestFacts) -> str:
    """Kind of sampling, as ServedCell names it: accept lengths of different kinds are not comparable."""
    if facts.sampling.edited:
        return "edited"
    return "sampled" if facts.sampling.temperature > 0.0 else "greedy"
