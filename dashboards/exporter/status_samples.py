"""Samples of what a member says of itself in its status, beside its counters.

Anybody may write to Redis: what is not of the type that members send is unknown, and has no sample.
"""

from collections.abc import Iterator, Mapping

from .samples import Sample

_PARTS = {"stage": "stage_ms", "commit": "commit_ms"}
_SIDES = {"before": "accept_length_before", "after": "accept_length_after"}


def status_samples(status: Mapping[str, object]) -> Iterator[Sample]:
    """Of a replica or a learner."""
    yield from _numbers("paceline_member_draft", "", {"": status.get("draft_version")})
    capture = {"on": 1.0, "off": 0.0}.get(str(status.get("capture")))
    yield from _numbers("paceline_capture_on", "", {"": capture})
    yield from _numbers("paceline_traces_waiting", "where", {name: status.get(name) for name in ("open", "queued")})
    yield from _numbers("paceline_mlflow_pending_registrations", "", {"": status.get("pending_registrations")})
    resting = {"rest": 1.0, "learn": 0.0}.get(str(status.get("learn")))
    yield from _numbers("paceline_learner_resting", "", {"": resting})
    yield from _last_swap(status.get("swaps"))
    yield from _pacing(status.get("pacing"))


def _last_swap(swaps: object) -> Iterator[Sample]:
    match swaps:
        case [*_, {"at": float() | int() as at, **swap}]:
            yield Sample("paceline_last_swap_timestamp_seconds", {}, at)
            took = {part: _in_seconds(swap.get(key)) for part, key in _PARTS.items()}
            yield from _numbers("paceline_last_swap_seconds", "part", took)
            lengths = {side: swap.get(key) for side, key in _SIDES.items()}
            yield from _numbers("paceline_last_swap_accept_length", "side", lengths)


def _pacing(pacing: object) -> Iterator[Sample]:
    match pacing:
        case {"goodput": [*rows]}:
            for row in rows:
                match row:
                    case {"bucket": int(bucket), "plain_tokens_per_s": float() | int() as rate}:
                        labels = {"source": "pacing", "batch": str(bucket)}
                        yield Sample("paceline_plain_tokens_per_second", labels, rate)


def _numbers(name: str, label: str, values: Mapping[str, object]) -> Iterator[Sample]:
    for key, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield Sample(name, {label: key} if label else {}, value)


def _in_seconds(ms: object) -> float | None:
    return ms / 1000 if isinstance(ms, int | float) else None
