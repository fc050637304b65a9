"""Samples of what a learner does, and of the buffer as it sees it."""

from collections.abc import Iterator

from ...buffer.board.counters import LearnerCounters
from .samples import Sample

#: Among a learner's verdicts, the rounds that an exception ended.
_FAILED = "failed"


def learner_samples(part: LearnerCounters) -> Iterator[Sample]:
    """Every learner tells of the same buffer: take the greatest of several, not their sum."""
    yield from _rounds(part)
    for phase, spent in part.seconds.items():
        yield Sample("paceline_learner_phase_seconds_total", {"phase": phase}, spent)
    yield Sample("paceline_learner_cpu_seconds_total", {}, part.process_cpu_s)
    yield Sample("paceline_learner_drifts_total", {}, part.drifts)
    yield Sample("paceline_learner_optimiser_steps_total", {}, part.optimiser_steps)
    yield Sample("paceline_learner_checkpoints_not_stored_total", {}, part.unstored_checkpoints)
    yield Sample("paceline_learner_busy", {}, float(part.is_busy))
    yield from _buffer(part)


def _rounds(part: LearnerCounters) -> Iterator[Sample]:
    judged = {verdict: count for verdict, count in part.verdicts.items() if verdict != _FAILED}
    by_kind = [*((("learned", verdict), count) for verdict, count in judged.items())]
    by_kind += [(("learned", ""), max(part.rounds - sum(judged.values()), 0))]
    by_kind += [(("rested", ""), part.rests), ((_FAILED, ""), part.verdicts.get(_FAILED, 0))]
    for (kind, verdict), count in by_kind:
        yield Sample("paceline_rounds_total", {"kind": kind, "verdict": verdict}, count)


def _buffer(part: LearnerCounters) -> Iterator[Sample]:
    for outcome, count in part.acked.items():
        yield Sample("paceline_buffer_acked_total", {"outcome": outcome}, count)
    for name in ("delivered", "trimmed", "dead_lettered"):
        yield Sample(f"paceline_buffer_{name}_total", {}, getattr(part, name))
    known = {
        "pending": part.pending,
        "entries": part.entries,
        "bytes": part.bytes,
        "max_bytes": part.max_bytes,
        "oldest_pending_seconds": part.oldest_pending_s,
        "oldest_kept_seconds": part.oldest_kept_s,
    }
    for name, value in known.items():
        if value is not None:
            yield Sample(f"paceline_buffer_{name}", {}, value)
