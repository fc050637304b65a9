"""What a trace weighs on the wire, by what a capture keeps: teacher entries per node, and the target's features."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...buffer.trace import DraftTrace
from ...buffer.trace_codec import encode_trace
from .stream import with_top_k

TOP_KS = (0, 1, 4, 16, 64)
#: Traces weighed per setting: they are much alike, and a trace with features takes milliseconds to compress.
WEIGHED = 48


@dataclass(frozen=True, slots=True)
class WireSize:
    """Mean over recorded traces of one setting, in bytes per committed token."""

    setting: str
    top_k: int
    with_features: float
    without_features: float


def wire_sizes(setting: str, traces: Sequence[DraftTrace]) -> list[WireSize]:
    """One line per number of teacher entries, as the codec writes the traces; none beyond what was recorded."""
    recorded = max((trace.rounds.teacher_ids.shape[2] for trace in traces), default=0)
    return [
        WireSize(
            setting,
            top_k,
            _bytes_per_token([with_top_k(trace, top_k) for trace in traces]),
            _bytes_per_token([without_features(with_top_k(trace, top_k)) for trace in traces]),
        )
        for top_k in TOP_KS
        if traces and top_k <= recorded
    ]


def without_features(trace: DraftTrace) -> DraftTrace:
    """The trace as a capture of verdicts alone would have written it; nothing can be drafted from it."""
    return replace(trace, features=trace.features[:0])


def _bytes_per_token(traces: Sequence[DraftTrace]) -> float:
    return sum(len(encode_trace(trace)) for trace in traces) / sum(trace.committed_len for trace in traces)
