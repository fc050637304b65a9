"""The state that the live view shows at one moment, read from the speculator and from the answers so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..dashboards.tables import VersionLine
from ..rig.reader import SpeculatorReader, TraceAccount
from ..rig.traffic import Served, pooled

#: Requests that one point of an accept-length curve is pooled over.
CURVE_REQUESTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """Everything the view shows at one moment."""

    phase: str
    elapsed_s: float
    requests_done: int = 0
    requests_total: int = 0
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)  # domain -> pooled accept lengths, oldest first
    live: int | None = None
    versions: Sequence[VersionLine] = ()
    traces: TraceAccount = field(default_factory=TraceAccount)
    swaps: int | None = None  # None: the server has not said
    stall_ms: float | None = None  # longest wait for a token around the last swap
    answer: str = ""  # the newest one, for a reader; empty where a target says nothing that can be read

    @property
    def remaining_s(self) -> float | None:
        """Time left at the pace so far; None before the first request is done."""
        if not self.requests_done:
            return None
        return self.elapsed_s / self.requests_done * (self.requests_total - self.requests_done)


def read_state(
    reader: SpeculatorReader,
    results: Sequence[Served],
    *,
    phase: str,
    requests_total: int,
    elapsed_s: float,
    answer: str = "",
) -> ViewState:
    """The state after `results`, `elapsed_s` into the traffic; blocks for a few round trips to Redis."""
    swaps = reader.swaps()
    traces = reader.traces()
    return ViewState(
        phase=phase,
        elapsed_s=elapsed_s,
        requests_done=len(results),
        requests_total=requests_total,
        curves=curves(results),
        live=reader.live(),
        versions=reader.versions(reader.served()),
        traces=traces,
        swaps=None if traces.captured is None else len(swaps),
        stall_ms=swaps[-1].stall_ms(results) if swaps else None,
        answer=answer,
    )


def curves(results: Sequence[Served]) -> dict[str, list[float]]:
    """Domain -> accept lengths, each pooled over CURVE_REQUESTS requests in the order they ended.

    The requests after the last full group have no point yet.
    """
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
