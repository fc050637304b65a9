"""What a learning round learnt from and was judged on, as MLflow records it: counts, times, labels, ids of the stream.

Never a token, and never a client's own words but its labels: request ids are hashed with a salt that nobody keeps.
"""

import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ...buffer.board.version import OTHER_LABELS
from ...buffer.stream.trace_buffer import TraceEntry, entry_order
from ...policies.judged_on import MAX_LABELS
from ..claim.intake import KEPT, ByOutcome, Outcome
from ..judging.line_judge import LineJudge
from ..state.learner_state import LearnerState

#: Contexts of the two data sets of a run.
TRAFFIC_WINDOW = "traffic"
JUDGED = "judged requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Some traces of the stream, described."""

    digest: str  # over the sorted entry ids
    traces: int
    requests: int
    labels: Mapping[str, int]  # requests by label; "" is of those that named none, OTHER_LABELS of further labels
    first_at: float | None = None  # unix seconds at which the first and the last window were closed; None: not known
    last_at: float | None = None

    @classmethod
    def of(cls, entries: Sequence[TraceEntry]) -> "Traffic":
        """Describe `entries`, in any order."""
        labels = Counter({entry.trace.request_id: entry.trace.label for entry in entries}.values())
        times = [t for t in (entry.trace.born_at for entry in entries) if math.isfinite(t) and t > 0.0]
        digest = digest_of([entry.entry_id for entry in entries])
        requests = labels.total()
        return cls(
            digest=digest,
            traces=len(entries),
            requests=requests,
            labels=_most(labels),
            first_at=min(times, default=None),
            last_at=max(times, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRow:
    """One judged request: what was accepted of it with the line and with the reference."""

    request: str  # salted hash of its id
    label: str
    accept_length: float
    reference_accept_length: float
    x: float  # its bet: Paired.gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """All that repeating the fit needs beside the checkpoint and the traces; see reproduce.py."""

    rounds_trained: int  # before this learning round: names the checkpoint that it went on from
    plan: Mapping[str, Any]  # the fields of TrainingPlan
    target_versions: tuple[str, ...]
    learned: tuple[str, ...]  # entry ids, in the order claimed
    held_out: tuple[str, ...]
    replayed: tuple[str, ...]  # the replay buffer, oldest first
    device: str
    threads: int  # of torch: sums of another number of threads may differ in the last bit


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEvidence:
    """One learning round, for people who review its draft."""

    started_at: float  # unix seconds
    learner: str
    refit: Refit
    traffic: Mapping[str, Traffic] = field(default_factory=dict)  # TRAFFIC_WINDOW and JUDGED
    gate_rows: tuple[GateRow, ...] = ()


def evidence_of(
    state: LearnerState,
    *,
    claimed: ByOutcome,
    replayed: Sequence[TraceEntry],
    judge: LineJudge | None,
    started_at: float,
) -> RoundEvidence:
    """Return what is known once the gate has judged and before the replay buffer takes the claim.

    `replayed` is what the fit was given of the replay buffer; the learning round began at `started_at`, unix seconds.
    """
    trainer = state.trainer
    refit = Refit(
        rounds_trained=state.notes.rounds_trained,
        plan=asdict(trainer.plan),
        target_versions=tuple(trainer.target_versions),
        learned=_ids(claimed[Outcome.LEARNED]),
        held_out=_ids(claimed[Outcome.HELD_OUT]),
        replayed=_ids(replayed),
        device=trainer.draft.device.type,
        threads=torch.get_num_threads(),
    )
    judged_ids = {trace.trace_id for trace in judge.judged} if judge else set()
    judged = [entry for outcome in KEPT for entry in claimed[outcome] if entry.trace.trace_id in judged_ids]
    traffic = {TRAFFIC_WINDOW: Traffic.of(claimed[Outcome.LEARNED]), JUDGED: Traffic.of(judged)}
    return RoundEvidence(
        started_at=started_at,
        learner=state.config.name,
        refit=refit,
        traffic=traffic,
        gate_rows=gate_rows(judge) if judge else (),
    )


def gate_rows(judge: LineJudge, salt: bytes | None = None) -> tuple[GateRow, ...]:
    """One row per judged request, in the order they came; `salt` is drawn and forgotten where none is given."""
    salt = secrets.token_bytes(16) if salt is None else salt
    labels = {trace.request_id: trace.label for trace in judge.judged}
    return tuple(
        GateRow(
            request=hashlib.blake2b(request.encode(), key=salt, digest_size=8).hexdigest(),
            label=labels[request],
            accept_length=pair.line.accept_length,
            reference_accept_length=pair.reference.accept_length,
            x=pair.gain,
        )
        for request, pair in judge.by_request.items()
    )


def digest_of(entry_ids: Sequence[str]) -> str:
    """The same for the same ids in any order: 32 hex digits, as MLflow takes at most 36."""
    joined = "\n".join(sorted(entry_ids, key=entry_order))
    return hashlib.sha256(joined.encode()).hexdigest()[:32]


def _ids(entries: Sequence[TraceEntry]) -> tuple[str, ...]:
    return tuple(entry.entry_id for entry in entries)


def _most(labels: Counter[str]) -> dict[str, int]:
    """The most frequent labels by name, the rest together."""
    kept = {"", *[label for label, _ in labels.most_common() if label][:MAX_LABELS]}
    found: Counter[str] = Counter()
    for label, count in labels.items():
        found[label if label in kept else OTHER_LABELS] += count
    return dict(found)
