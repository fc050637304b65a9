"""What becomes of a claimed trace: learned, held out, or refused with the outcome it is acked with."""

import hashlib
from collections.abc import Container, Iterable
from dataclasses import dataclass
from enum import StrEnum

from ..buffer.base import TraceEntry
from ..buffer.trace import NO_DRAFT, DraftTrace, Int32s


class Outcome(StrEnum):
    """What a learner acks a trace with; the buffer counts traces by these words."""

    LEARNED = "learned"
    HELD_OUT = "held_out"
    OTHER_TARGET_VERSION = "other_target_version"  # judged by another target, or by other weights of it
    DUPLICATE = "duplicate"  # its trace_id is in the window or in the holdout already
    NO_FEATURES = "no_features"  # nothing to condition a draft on
    INCOMPATIBLE = "incompatible"  # feature rows or token ids that the draft has no place for


Sorted = dict[Outcome, list[TraceEntry]]


@dataclass(frozen=True, slots=True)
class Intake:
    """What a learner takes in."""

    target: str
    target_version: str
    holdout_share: float  # of requests
    feature_width: int  # numbers in a feature row
    vocabulary: int  # token ids of the target are below it

    def outcome(self, trace: DraftTrace) -> Outcome:
        """The trace's outcome, whatever else was claimed. One trace that does not fit would stop every round."""
        if (trace.target, trace.target_version) != (self.target, self.target_version):
            return Outcome.OTHER_TARGET_VERSION
        if not len(trace.features):
            return Outcome.NO_FEATURES
        if not self._fits(trace):
            return Outcome.INCOMPATIBLE
        return Outcome.HELD_OUT if is_held_out(trace.request_id, self.holdout_share) else Outcome.LEARNED

    def _fits(self, trace: DraftTrace) -> bool:
        drafted = trace.rounds.drafted[trace.rounds.drafted != NO_DRAFT]
        ids = (trace.tokens, drafted, trace.rounds.teacher_ids)
        return trace.features.shape[1] == self.feature_width and all(map(self._speaks, ids))

    def _speaks(self, ids: Int32s) -> bool:
        return not ids.size or bool(ids.min() >= 0 and ids.max() < self.vocabulary)


def is_held_out(request_id: str, share: float) -> bool:
    """Whether a request belongs to the `share` of requests kept from training.

    A hash of the name alone: every trace of a request, in every process and after every restart, falls the same way.
    """
    digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def sort_entries(entries: Iterable[TraceEntry], intake: Intake, seen: Container[str]) -> Sorted:
    """Give every entry one outcome, keeping the order within each; all outcomes are present, some empty.

    `seen` holds trace ids known from earlier rounds; a trace_id that comes twice in `entries` counts once.
    """
    found: Sorted = {outcome: [] for outcome in Outcome}
    fresh: set[str] = set()
    for entry in entries:
        trace = entry.trace
        outcome = intake.outcome(trace)
        if outcome in {Outcome.LEARNED, Outcome.HELD_OUT}:
            if trace.trace_id in fresh or trace.trace_id in seen:
                outcome = Outcome.DUPLICATE
            fresh.add(trace.trace_id)
        found[outcome].append(entry)
    return found
