"""What is served: figures of all members' counters, for the headline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..policies.readings.definitions import Reading
from ..policies.readings.loop_readings import traces_captured, traces_dropped
from ..policies.readings.served_drafts import ServedDraft, served_drafts
from ..policies.readings.serving_readings import (
    accept_length,
    context_accept_length,
    output_accept_length,
    step_time_ms,
    tokens_per_second,
)
from ..policies.readings.speed import speed_over_plain, tokens_computed
from ..policies.readings.tables import StepKey, StepSums
from ..policies.readings.traffic_move import MIN_REQUESTS, TrafficMove, traffic_move
from ..policies.readings.windows import BEFORE_S, Window, windowed
from .by_start import CONTEXT_BUCKETS, OUTPUT_BUCKETS
from .snapshot import REPLICA, Snapshot

#: "Now" is so many newest seconds.
WINDOW_S = 600.0
#: The traffic of now is so many newest seconds, if they hold enough requests: ten minutes mix it with that before.
TRAFFIC_S = 60.0
#: How far back histories must reach for it.
HISTORY_S = WINDOW_S + BEFORE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Figures of one snapshot; those of now are of its newest WINDOW_S seconds."""

    by_draft: Mapping[int, ServedDraft]  # in all that the histories hold
    speed: Reading
    speed_where: str  # the batch size at which most of the time was spent
    length: Reading
    by_replica: Mapping[str, Reading]  # accept length of each that is present
    by_output: Mapping[str, Reading]  # accept length by the bucket of output tokens where rounds began
    by_context: Mapping[str, Reading]  # and by that of prompt and output so far
    rate: Reading  # tokens per second
    step_ms: Reading
    captured: Reading
    dropped: Mapping[str, Reading]  # by reason
    move: TrafficMove  # since the live draft was judged, until now

    def lengths(self) -> dict[int, float | None]:
        """By draft, the accept length that it served."""
        return {draft: served.sums.accept_length for draft, served in self.by_draft.items()}

    def readings(self) -> Sequence[Reading]:
        """Those of now, by their definitions."""
        return self.speed, self.length, self.rate, self.step_ms, self.captured, *self.dropped.values()


def recent(seen: Snapshot, member: str | None = None) -> Window:
    """What the members counted in the newest WINDOW_S seconds, or one of them alone."""
    histories = seen.histories if member is None else {member: seen.histories.get(member, ())}
    return windowed(histories, seen.at - WINDOW_S, seen.at)


def served_now(seen: Snapshot) -> Served:
    """Read the figures off what the members count."""
    window = recent(seen)
    return Served(
        by_draft=served_drafts(seen.counters()),
        speed=speed_over_plain(window, _computed(seen)),
        speed_where=_where(window),
        length=accept_length(window),
        by_replica={name: accept_length(recent(seen, name)) for name in seen.present(REPLICA)},
        by_output=dict(zip(OUTPUT_BUCKETS, output_accept_length(window), strict=True)),
        by_context=dict(zip(CONTEXT_BUCKETS, context_accept_length(window), strict=True)),
        rate=tokens_per_second(window),
        step_ms=step_time_ms(window),
        captured=traces_captured(window),
        dropped=traces_dropped(window),
        move=_move(seen, window),
    )


def _where(window: Window) -> str:
    seconds: dict[int, float] = {}
    taken = {key: row for key, row in (window.table("scheduler", "steps") or {}).items() if row.steps}
    for key, row in (taken or window.steps_since_boot).items():
        seconds |= _spent(key, row, seconds)
    bucket = max(seconds, key=lambda size: seconds[size], default=0)
    if not bucket:
        return "batch unknown"
    return f"batch {bucket}" if bucket <= 2 else f"batch {bucket // 2 + 1}-{bucket}"


def _computed(seen: Snapshot) -> int | None:
    """The most tokens that a server computes for a request in a step, by its flags; None where one does not say."""
    found: list[int] = []
    for one in seen.present(REPLICA).values():
        flags = one.said.process.speculation
        if flags is None or flags.adaptive is not False:
            return None
        if flags.num_steps is None or flags.eagle_topk is None or flags.num_draft_tokens is None:
            return None
        if not one.said.has_draft:  # the target alone computes
            found.append(flags.num_draft_tokens)
            continue
        found.append(tokens_computed(flags.num_steps, flags.eagle_topk, flags.num_draft_tokens))
    return max(found, default=None)


def _spent(key: StepKey, row: StepSums, so_far: Mapping[int, float]) -> dict[int, float]:
    return {key.bucket: so_far.get(key.bucket, 0.0) + row.seconds} if key.draft_steps else {}


def _move(seen: Snapshot, window: Window) -> TrafficMove:
    """The traffic of now, whatever drafts it, beside the newest when the live draft was judged."""
    live = seen.state.live
    judged = None if live is None else seen.state.rows[live].version.judged_on
    if judged is None:
        return TrafficMove(share=None, why_unknown="the live draft was not judged")
    newest = _requests(windowed(seen.histories, seen.at - TRAFFIC_S, seen.at))
    now_s = TRAFFIC_S
    if sum(newest.values()) < MIN_REQUESTS:
        newest = _requests(window)
        now_s = WINDOW_S
    return replace(traffic_move(judged.newest_labels, newest), now_s=now_s)


def _requests(window: Window) -> dict[str, int]:
    """Requests by label, whatever drafted them."""
    requests: dict[str, int] = {}
    for key, row in (window.table("served", "cells") or {}).items():
        requests[key.label] = requests.get(key.label, 0) + row.requests
    return requests
