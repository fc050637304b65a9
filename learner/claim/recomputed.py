"""Traces that hold tokens alone, with the features that the target on disk computes for them.

Whether it is the target that verified them is known by the name of its version, and by what it says of their tokens:
every trace has the best token of the target at most places, and the target on disk must agree, but for rounding.
"""

from collections.abc import Iterable

from ...buffer.stream.trace import DraftTrace, Int32s
from ...buffer.stream.trace_buffer import TraceEntry
from ..model.target_features import TargetFeatures
from ..training.batch import teacher_nodes
from .intake import KEPT, ByOutcome, Outcome

#: Places of a trace at which the target on disk may say another token than the one that verified it: so many, and this
#: share of all. Rounding, and other kernels or quantised weights on the server, move a few that were nearly equal.
_SPARE_PLACES = 2
_SPARE_SHARE = 0.25


def with_features(
    entries: Iterable[TraceEntry], source: TargetFeatures | None
) -> tuple[list[TraceEntry], list[TraceEntry]]:
    """The same entries; those whose traces hold no features get them from `source`. Without a source none has to.

    The second list are those, as they came, that another target than that of `source` has verified. Blocks while the
    target reads every such trace. Raises what TargetFeatures.read does.
    """
    kept: list[TraceEntry] = []
    moved: list[TraceEntry] = []
    for entry in entries:
        if source is None or len(entry.trace.features):
            kept.append(entry)
            continue
        found = source.read(entry.trace)
        if is_another_target(entry.trace, found.best_T):
            moved.append(entry)
        else:
            kept.append(TraceEntry(entry.entry_id, found.trace))
    return kept, moved


def is_another_target(trace: DraftTrace, best_T: Int32s) -> bool:
    """Return whether a target whose best tokens are `best_T` is not the one that verified `trace`.

    Never where the trace does not tell what the target's best tokens were: without a teacher, or of edited logits.
    """
    if trace.sampling.edited or not trace.rounds.teacher_ids.shape[2]:
        return False
    nodes_T = teacher_nodes(trace)
    is_known_T = (nodes_T >= 0) & (best_T >= 0)
    told_N = trace.rounds.teacher_ids[..., 0].reshape(-1)[nodes_T[is_known_T]]
    apart = int((told_N != best_T[is_known_T]).sum())
    return apart > _SPARE_PLACES + _SPARE_SHARE * len(told_N)


def needs_features(claimed: ByOutcome) -> bool:
    """Return whether a trace that is kept holds none."""
    return any(not len(entry.trace.features) for outcome in KEPT for entry in claimed[outcome])


def kept_with_features(claimed: ByOutcome, source: TargetFeatures | None) -> ByOutcome:
    """The same entries, all that are kept with features; what another target verified is refused."""
    found = {outcome: with_features(claimed[outcome], source) for outcome in KEPT}
    moved = [entry for _, others in found.values() for entry in others]
    kept = {outcome: entries for outcome, (entries, _) in found.items()}
    return {**claimed, **kept, Outcome.TARGET_MOVED: [*claimed[Outcome.TARGET_MOVED], *moved]}
