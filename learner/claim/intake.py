"""Gives every claimed trace the outcome it is acked with: learned, rested, held out, or a reason for refusal."""

import hashlib
from collections.abc import Container, Iterable
from dataclasses import dataclass
from enum import StrEnum

from ...buffer.stream.trace import NO_DRAFT, DraftTrace, Int32s
from ...buffer.stream.trace_buffer import TraceEntry
from ...policies.trace_weighting import is_expired


class Outcome(StrEnum):
    """The outcome that a learner acks a trace with; the buffer counts traces by it."""

    LEARNED = "learned"
    RESTED = "rested"  # kept for replay and not trained on, because the learner rested
    HELD_OUT = "held_out"
    EXPIRED = "expired"  # past its time to live when it was claimed
    OTHER_TARGET_VERSION = "other_target_version"  # verified by another target, or by too old weights of it
    DUPLICATE = "duplicate"  # its trace_id is in the replay buffer, or was held out lately
    NO_FEATURES = "no_features"  # nothing to condition a draft on, and this learner recomputes nothing
    TARGET_MOVED = "target_moved"  # without features, and verified by other weights of the target than are on disk
    NO_PREFIX = "no_prefix"  # without features, and without all the tokens that the target had read
    MISREPLAYED = "misreplayed"  # part of a claim whose replay gives other lengths than were served
    INCOMPATIBLE = "incompatible"  # feature rows or token ids that do not fit the draft


ByOutcome = dict[Outcome, list[TraceEntry]]

#: Outcomes of traces that a learner keeps, acked once the checkpoint names them; all others but a duplicate are acked
#: at once. A duplicate may be of a trace in the same claim: acked before it, it would be taken for it after a death.
KEPT = (Outcome.LEARNED, Outcome.RESTED, Outcome.HELD_OUT)
REFUSED = tuple(outcome for outcome in Outcome if outcome not in {*KEPT, Outcome.DUPLICATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """The traces that a learner accepts."""

    target: str
    target_versions: tuple[str, ...]  # may be trained on, oldest first
    holdout_share: float  # of requests
    feature_width: int  # values per feature row
    vocabulary: int  # the target's token ids are below it
    ttl_s: float = 0.0  # from a trace's birth; 0: unlimited
    now_s: float = 0.0  # unix seconds
    judging_versions: tuple[str, ...] | None = None  # may be held out; None: the last of those trained on
    recomputed_version: str | None = None  # of the target, whose features can be recomputed; None: of no version

    def outcome(self, trace: DraftTrace) -> Outcome:
        """The trace's outcome, whatever else was claimed. A trace that does not fit would fail every learning round."""
        if is_expired(trace.born_at, self.now_s, self.ttl_s):
            return Outcome.EXPIRED
        if trace.target != self.target or trace.target_version not in self.target_versions:
            return Outcome.OTHER_TARGET_VERSION
        if not len(trace.features) and (why := self._why_not_recomputed(trace)):
            return why
        if not self._fits(trace):
            return Outcome.INCOMPATIBLE
        if not is_held_out(trace.request_id, self.holdout_share):
            return Outcome.LEARNED
        # Held-out traces are never trained on, and verdicts of a version that judges no draft are of no use.
        judging = self.target_versions[-1:] if self.judging_versions is None else self.judging_versions
        return Outcome.HELD_OUT if trace.target_version in judging else Outcome.OTHER_TARGET_VERSION

    def _why_not_recomputed(self, trace: DraftTrace) -> Outcome | None:
        """Return why a trace without features stays without; None where they can be recomputed."""
        if self.recomputed_version is None:
            return Outcome.NO_FEATURES
        if trace.target_version != self.recomputed_version:
            return Outcome.TARGET_MOVED
        return None if trace.has_whole_prefix else Outcome.NO_PREFIX

    def _fits(self, trace: DraftTrace) -> bool:
        drafted = trace.rounds.drafted[trace.rounds.drafted != NO_DRAFT]
        ids = (trace.tokens, drafted, trace.rounds.teacher_ids, trace.prefix)
        has_width = not len(trace.features) or trace.features.shape[1] == self.feature_width
        return has_width and all(map(self._has_ids, ids))

    def _has_ids(self, ids: Int32s) -> bool:
        return not ids.size or bool(ids.min() >= 0 and ids.max() < self.vocabulary)


def is_held_out(request_id: str, share: float) -> bool:
    """Return whether a request belongs to the `share` of requests kept from training.

    Decided by a hash of the request id alone, so all its traces agree, in every process and after every restart.
    """
    digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def sort_entries(entries: Iterable[TraceEntry], intake: Intake, seen: Container[str]) -> ByOutcome:
    """Give every entry one outcome, keeping the order within each; every outcome is a key, some without entries.

    `seen` holds trace ids known from earlier learning rounds; of two entries with one trace_id the second is a
    duplicate.
    """
    found: ByOutcome = {outcome: [] for outcome in Outcome}
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


def as_rested(claimed: ByOutcome) -> ByOutcome:
    """The same entries for a learning round that rests: what would have been learned has rested."""
    return {**claimed, Outcome.LEARNED: [], Outcome.RESTED: claimed[Outcome.LEARNED]}


def as_misreplayed(claimed: ByOutcome) -> ByOutcome:
    """The same entries when their replay cannot be trusted: none is kept."""
    kept = [entry for outcome in KEPT for entry in claimed[outcome]]
    return {**claimed, **{outcome: [] for outcome in KEPT}, Outcome.MISREPLAYED: kept}


def counts_of(claimed: ByOutcome) -> dict[str, int]:
    """Outcome -> number of entries, without zeros."""
    return {outcome.value: len(entries) for outcome, entries in claimed.items() if entries}
