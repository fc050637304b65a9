"""Traces that hold tokens alone, with the features that the target on disk computes for them."""

from collections.abc import Iterable

from ..buffer.base import TraceEntry
from .intake import KEPT, ByOutcome
from .model.target_features import TargetFeatures


def with_features(entries: Iterable[TraceEntry], source: TargetFeatures | None) -> list[TraceEntry]:
    """The same entries; those whose traces hold no features get them from `source`. Without a source none has to.

    Blocks while the target reads every such trace. Raises what TargetFeatures.filled does.
    """
    return [
        entry if source is None or len(entry.trace.features) else TraceEntry(entry.entry_id, source.filled(entry.trace))
        for entry in entries
    ]


def needs_features(claimed: ByOutcome) -> bool:
    """Whether a trace that is kept holds none."""
    return any(not len(entry.trace.features) for outcome in KEPT for entry in claimed[outcome])


def kept_with_features(claimed: ByOutcome, source: TargetFeatures | None) -> ByOutcome:
    """The same entries under the same outcomes; all that are kept have features."""
    return {**claimed, **{outcome: with_features(claimed[outcome], source) for outcome in KEPT}}
