"""Traffic of the learner's tests: how many traces are sent at once, and which of them the learner holds out."""

from collections.abc import Sequence

from paceline.buffer.trace import DraftTrace
from paceline.learner.intake import is_held_out

SHARE = 0.25
BATCH = 24


def held_out(traces: Sequence[DraftTrace]) -> list[DraftTrace]:
    """Those whose requests are never trained on."""
    return [trace for trace in traces if is_held_out(trace.request_id, SHARE)]


def ids(traces: Sequence[DraftTrace]) -> list[str]:
    """Trace ids in the order of `traces`."""
    return [trace.trace_id for trace in traces]


def not_held_out(traces: Sequence[DraftTrace]) -> list[DraftTrace]:
    """The others: those that a learner may train on."""
    return [trace for trace in traces if not is_held_out(trace.request_id, SHARE)]
