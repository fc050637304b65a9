"""What becomes of a claimed trace: learned, held out, or refused with the outcome it is acked with."""

import hashlib
from collections.abc import Container, Iterable
from enum import StrEnum

from ..buffer.base import TraceEntry
from ..buffer.trace import DraftTrace


class Outcome(StrEnum):
    """What a learner acks a trace with; the buffer counts traces by these words."""

    LEARNED = "learned"
    HELD_OUT = "held_out"
    OTHER_TARGET_VERSION = "other_target_version"  # judged by another target, or by other weights of it
    DUPLICATE = "duplicate"  # its trace_id is in the window or in the holdout already
    NO_FEATURES = "no_features"  # nothing to condition a draft on


Sorted = dict[Outcome, list[TraceEntry]]


def is_held_out(request_id: str, share: float) -> bool:
    """Whether a request belongs to the `share` of requests kept from training.

    A hash of the name alone: every trace of a request, in every process and after every restart, falls the same way.
    """
    digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def sort_entries(
    entries: Iterable[TraceEntry], target: str, target_version: str, share: float, seen: Container[str]
) -> Sorted:
    """Give every entry one outcome, keeping the order within each; all outcomes are present, some empty.

    `seen` holds trace ids known from earlier rounds; a trace_id that comes twice in `entries` counts once.
    """
    found: Sorted = {outcome: [] for outcome in Outcome}
    fresh: set[str] = set()
    for entry in entries:
        trace = entry.trace
        outcome = _outcome(trace, target, target_version, share)
        if outcome in {Outcome.LEARNED, Outcome.HELD_OUT}:
            if trace.trace_id in fresh or trace.trace_id in seen:
                outcome = Outcome.DUPLICATE
            fresh.add(trace.trace_id)
        found[outcome].append(entry)
    return found


def _outcome(trace: DraftTrace, target: str, target_version: str, share: float) -> Outcome:
    if (trace.target, trace.target_version) != (target, target_version):
        return Outcome.OTHER_TARGET_VERSION
    if not len(trace.features):
        return Outcome.NO_FEATURES
    return Outcome.HELD_OUT if is_held_out(trace.request_id, share) else Outcome.LEARNED
