"""Reads the board, the buffer and the heartbeats while the demo runs, and turns them into what is shown."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..buffer.base import TraceBuffer, VersionBoard
from ..dashboards.tables import VersionLine, as_counts, as_int, version_lines
from ..policies.acceptance import Tally
from ..rig.traffic import Served, longest_gap_ms, pooled
from .view import TraceLine, ViewState

#: Requests one point of an accept-length curve is pooled over.
CURVE_REQUESTS = 12


@dataclass(frozen=True, slots=True)
class Swap:
    """One swap as the replica reported it."""

    number: int
    commit_ms: float
    running: int  # requests in flight
    at: float  # unix seconds, when the commit was done

    def stall_ms(self, results: Sequence[Served]) -> float:
        """Longest wait for a token among requests that streamed while the scheduler copied the weights."""
        return longest_gap_ms(results, (self.at - self.commit_ms / 1000.0, self.at))


class Watch:
    """One speculator seen from outside: reads only, and every call is a few round trips to Redis."""

    def __init__(self, buffer: TraceBuffer, board: VersionBoard, replica: str, learner: str) -> None:
        self._buffer, self._board = buffer, board
        self._replica, self._learner = f"replica:{replica}", f"learner:{learner}"
        self._began = time.monotonic()

    def replica(self) -> Mapping[str, object]:
        """The server's last reading; empty when it is silent."""
        return self._board.heartbeats().get(self._replica, {})

    def learner(self) -> Mapping[str, object]:
        """The learner's last reading; empty when it is silent."""
        return self._board.heartbeats().get(self._learner, {})

    def traces(self) -> TraceLine:
        """Where the traces are; the replica's part is up to a second old."""
        replica, counts = self.replica(), self._buffer.counts()
        kept = ("learned", "held_out", "rested")
        other = {outcome: count for outcome, count in counts.acked.items() if outcome not in kept}
        return TraceLine(
            captured=as_int(replica, "captured"),
            delivered=as_int(replica, "delivered"),
            dropped=as_counts(replica, "dropped"),
            learned=counts.acked.get("learned", 0),
            held_out=counts.acked.get("held_out", 0),
            rested=counts.acked.get("rested", 0),
            pending=counts.pending,
            set_aside={**other, "trimmed": counts.trimmed, "dead_lettered": counts.dead_lettered},
        )

    def versions(self, served: Mapping[int, Tally]) -> list[VersionLine]:
        """All versions, oldest first, with what each had accepted as far as `served` knows it."""
        return version_lines(self._board.read(), served)

    def swaps(self) -> list[Swap]:
        """Swaps the replica made, oldest first."""
        told = self.replica().get("swaps")
        if not isinstance(told, list):
            return []
        return [Swap(s["number"], s["commit_ms"], s["running"], s["at"]) for s in told]

    def is_learning(self, min_new_traces: int) -> bool:
        """Whether a round runs, or enough traces wait for one to start."""
        return self.learner().get("kind") == "learning" or self._buffer.counts().pending >= min_new_traces

    def state(self, phase: str, results: Sequence[Served], total: int) -> ViewState:
        """Everything the view shows now."""
        swaps, state = self.swaps(), self._board.read()
        return ViewState(
            phase=phase,
            elapsed_s=time.monotonic() - self._began,
            requests_done=len(results),
            requests_total=total,
            curves=curves(results),
            live=state.live,
            versions=self.versions({}),
            traces=self.traces(),
            swaps=len(swaps),
            stall_ms=swaps[-1].stall_ms(results) if swaps else None,
        )


def curves(results: Sequence[Served]) -> dict[str, list[float]]:
    """Domain -> accept length over time, each point pooled over CURVE_REQUESTS requests in the order they ended."""
    by_domain: dict[str, list[Served]] = {}
    for result in results:
        by_domain.setdefault(result.prompt.domain, []).append(result)
    return {
        domain: [
            pooled(done[at : at + CURVE_REQUESTS]).accept_length
            for at in range(0, len(done) - CURVE_REQUESTS + 1, CURVE_REQUESTS)
        ]
        for domain, done in by_domain.items()
    }
