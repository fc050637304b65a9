"""Samples of what a member says of itself in its status, beside its counters; what it did not say has no sample."""

from collections.abc import Iterator, Mapping

from ...buffer.board.member_status import MemberStatus, SwapSaid
from .samples import Sample

_CAPTURE = {"on": 1.0, "off": 0.0}
_RESTING = {"rest": 1.0, "learn": 0.0}


def status_samples(said: MemberStatus) -> Iterator[Sample]:
    """Of a replica or a learner."""
    yield from _known("paceline_member_draft", said.draft_version)
    yield from _known("paceline_capture_on", _CAPTURE.get(said.capture))
    yield from _by("paceline_traces_waiting", "where", {"open": said.open, "queued": said.queued})
    yield from _known("paceline_mlflow_pending_registrations", said.pending_registrations)
    yield from _known("paceline_learner_resting", _RESTING.get(said.learn))
    if said.swaps:
        yield from _last_swap(said.swaps[-1])
    for row in said.pacing.goodput if said.pacing else []:
        labels = {"source": "pacing", "batch": str(row.bucket)}
        yield Sample("paceline_plain_tokens_per_second", labels, row.plain_tokens_per_s)


def _last_swap(swap: SwapSaid) -> Iterator[Sample]:
    yield Sample("paceline_last_swap_timestamp_seconds", {}, swap.at)
    parts = {"stage": swap.stage_ms / 1000, "commit": swap.commit_ms / 1000}
    yield from _by("paceline_last_swap_seconds", "part", parts)
    lengths = {"before": swap.accept_length_before, "after": swap.accept_length_after}
    yield from _by("paceline_last_swap_accept_length", "side", lengths)


def _known(name: str, value: float | None) -> Iterator[Sample]:
    if value is not None:
        yield Sample(name, {}, value)


def _by(name: str, label: str, values: Mapping[str, float | None]) -> Iterator[Sample]:
    for key, value in values.items():
        if value is not None:
            yield Sample(name, {label: key}, value)
