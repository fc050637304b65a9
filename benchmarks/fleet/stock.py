"""Traces that simulated replicas send: made by the real hooks and a real courier, or recorded from a real server."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...buffer.stream.feature_rows import NO_SCALES, quantised
from ...buffer.stream.trace import DraftTrace, FeatureDtype
from ...buffer.stream.trace_codec import encode_trace
from ...learner.claim.intake import Intake
from ..wide.deployed import deployed
from ..wide.traffic import ActedScheduler, Load

#: What PACELINE_FEATURE_FORMAT and PACELINE_CAPTURE_FEATURES choose from.
FORMS = ("captured", "int8", "fp8", "tokens")
_QUANTISED = {"int8": FeatureDtype.INT8, "fp8": FeatureDtype.E4M3}


def acted(folder: Path, load: Load) -> list[DraftTrace]:
    """What a courier delivers of `load`, one trace per request where a window holds it; its features are random."""
    with deployed(folder) as there:
        spent = ActedScheduler(load, there.capture, there.hold).run()
        there.settle(spent.prompts)
        return [entry.trace for entry in there.buffer.replay(max(there.buffer.counts().entries, 1))]


def in_form(trace: DraftTrace, form: str) -> DraftTrace:
    """The same trace with its features as captured, in one byte per value, or without them."""
    if form == "captured":
        return trace
    if form == "tokens":
        none = trace.features[:0]
        return replace(trace, features=none, feature_scales=NO_SCALES, replay_exact=False)
    kind = _QUANTISED[form]
    codes, scales = quantised(trace.features, trace.feature_dtype, kind)
    return replace(trace, features=codes, feature_scales=scales, feature_dtype=kind, replay_exact=False)


def sent_by(replica: str, trace: DraftTrace) -> DraftTrace:
    """The same content as another request's, answered by `replica`."""
    return replace(trace, trace_id=uuid.uuid4().hex, request_id=uuid.uuid4().hex, replica=replica)


def intake_of(trace: DraftTrace) -> Intake:
    """That of a learner which takes traces like this one, with features or without."""
    return Intake(
        target=trace.target,
        target_versions=(trace.target_version,),
        holdout_share=0.0,
        feature_width=trace.features.shape[1],
        vocabulary=np.iinfo(np.int32).max,
        recomputed_version=trace.target_version,
    )


def bytes_per_token(traces: Sequence[DraftTrace]) -> float:
    """As Redis keeps them."""
    return sum(len(encode_trace(trace)) for trace in traces) / sum(len(trace.tokens) for trace in traces)
