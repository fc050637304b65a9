"""What becomes of a claimed trace: learned, rested, held out, or refused with the outcome it is acked with."""

import hashlib
from collections.abc import Container, Iterable
from dataclasses import dataclass
from enum import StrEnum

from ..buffer.base import TraceEntry
from ..buffer.trace import NO_DRAFT, DraftTrace, Int32s
from ..policies.trace_weighting import is_expired


class Outcome(StrEnum):
    """What a learner acks a trace with; the buffer counts traces by these words."""

    LEARNED = "learned"
    RESTED = "rested"  # kept for replay and not trained on: the learner was at rest
    HELD_OUT = "held_out"
    EXPIRED = "expired"  # past its time to live when it was claimed
    OTHER_TARGET_VERSION = "other_target_version"  # judged by another target, or by weights of it too old for their use
    DUPLICATE = "duplicate"  # its trace_id is in the window or in the holdout already
    NO_FEATURES = "no_features"  # nothing to condition a draft on
    MISREPLAYED = "misreplayed"  # of a claim whose replay gives other lengths than were served
    INCOMPATIBLE = "incompatible"  # feature rows or token ids that the draft has no place for


Sorted = dict[Outcome, list[TraceEntry]]

#: What a learner keeps, acked when its checkpoint names them; all other outcomes are acked at once.
KEPT = (Outcome.LEARNED, Outcome.RESTED, Outcome.HELD_OUT)
REFUSED = tuple(outcome for outcome in Outcome if outcome not in KEPT)


@dataclass(frozen=True, slots=True)
class Intake:
    """What a learner takes in."""

    target: str
    target_versions: tuple[str, ...]  # that may be trained on, oldest first; the last alone is judged on
    holdout_share: float  # of requests
    feature_width: int  # numbers in a feature row
    vocabulary: int  # token ids of the target are below it
    ttl_s: float = 0.0  # since a trace was born; 0: none
    now_s: float = 0.0  # unix seconds

    def outcome(self, trace: DraftTrace) -> Outcome:
        """The trace's outcome, whatever else was claimed. One trace that does not fit would stop every round."""
        if is_expired(trace.born_at, self.now_s, self.ttl_s):
            return Outcome.EXPIRED
        if trace.target != self.target or trace.target_version not in self.target_versions:
            return Outcome.OTHER_TARGET_VERSION
        if not len(trace.features):
            return Outcome.NO_FEATURES
        if not self._fits(trace):
            return Outcome.INCOMPATIBLE
        if not is_held_out(trace.request_id, self.holdout_share):
            return Outcome.LEARNED
        # Judged on what the newest target said, never trained on: of an older one there is nothing left to do with it.
        return Outcome.HELD_OUT if trace.target_version == self.target_versions[-1] else Outcome.OTHER_TARGET_VERSION

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


def at_rest(claimed: Sorted) -> Sorted:
    """The same entries where nothing is trained on: what would have been learned has rested."""
    return {**claimed, Outcome.LEARNED: [], Outcome.RESTED: claimed[Outcome.LEARNED]}


def misreplayed(claimed: Sorted) -> Sorted:
    """The same entries where none of them can be trusted."""
    kept = [entry for outcome in KEPT for entry in claimed[outcome]]
    return {**claimed, **{outcome: [] for outcome in KEPT}, Outcome.MISREPLAYED: kept}


def counts_of(claimed: Sorted) -> dict[str, int]:
    """Outcome -> entries, without the empty ones."""
    return {outcome.value: len(entries) for outcome, entries in claimed.items() if entries}
