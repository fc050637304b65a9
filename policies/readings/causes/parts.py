"""What may make serving faster or slower: every part of a change, the cause it counts for, and what would change it.

tokens per second = load x speed of a request, of one replica. Load is how many requests run while the scheduler is not
idle, and clients decide it; everything else is what paceline, SGLang and the machine make of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Factor(StrEnum):
    """The factors of tokens per second."""

    RUNNING = "running"  # requests of a decode step
    ACCEPT_LENGTH = "accept length"  # tokens that a decode step commits for a request
    STEP_TIME = "step time"  # of a decode step
    DECODE_SHARE = "decode share"  # of the scheduler's time


class Cause(StrEnum):
    """What a finding names."""

    LOAD = "load"
    BATCH = "batch size"
    LABELS = "labels of the traffic"
    SAMPLING = "sampling of the traffic"
    DRAFT = "another draft"
    STALE = "stale draft"
    UNCAPTURED = "requests not captured"
    STEPS = "draft steps chosen"
    LEARNER = "learner at work"
    PREFILL = "prefill"
    SWAP = "swaps"
    REST = "rest of the step time"


class Part(StrEnum):
    """One bar of the waterfall."""

    RUNNING = "requests at a time"
    LABELS = "mix of labels"
    SAMPLING = "mix of sampling"
    DRAFT = "another draft"
    STALE = "same draft, same label"
    UNCAPTURED = "not captured"
    STEPS_LENGTH = "steps chosen: length"
    STEPS_TIME = "steps chosen: time"
    BATCH = "batch"
    LEARNER = "learner at work"
    REST = "rest"
    PREFILL = "prefill"
    SWAP = "swaps"
    UNTIMED = "untimed decoding"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class _Place:
    factor: Factor
    cause: Cause


_PLACES: Mapping[Part, _Place] = {
    Part.RUNNING: _Place(Factor.RUNNING, Cause.LOAD),
    Part.LABELS: _Place(Factor.ACCEPT_LENGTH, Cause.LABELS),
    Part.SAMPLING: _Place(Factor.ACCEPT_LENGTH, Cause.SAMPLING),
    Part.DRAFT: _Place(Factor.ACCEPT_LENGTH, Cause.DRAFT),
    Part.STALE: _Place(Factor.ACCEPT_LENGTH, Cause.STALE),
    Part.UNCAPTURED: _Place(Factor.ACCEPT_LENGTH, Cause.UNCAPTURED),
    Part.STEPS_LENGTH: _Place(Factor.ACCEPT_LENGTH, Cause.STEPS),
    Part.STEPS_TIME: _Place(Factor.STEP_TIME, Cause.STEPS),
    Part.BATCH: _Place(Factor.STEP_TIME, Cause.BATCH),
    Part.LEARNER: _Place(Factor.STEP_TIME, Cause.LEARNER),
    Part.REST: _Place(Factor.STEP_TIME, Cause.REST),
    Part.PREFILL: _Place(Factor.DECODE_SHARE, Cause.PREFILL),
    Part.SWAP: _Place(Factor.DECODE_SHARE, Cause.SWAP),
    Part.UNTIMED: _Place(Factor.DECODE_SHARE, Cause.UNCAPTURED),
    Part.IDLE: _Place(Factor.DECODE_SHARE, Cause.LOAD),
}

#: Cause -> what would change it, one sentence for people.
REMEDIES: Mapping[Cause, str] = {
    Cause.LOAD: "Nothing in paceline: clients send so many requests.",
    Cause.BATCH: "More replicas; --speculative-adaptive drafts less where drafts cost more than they save.",
    Cause.LABELS: "A draft that has learnt the new traffic: wait for the learner, and see what its gate says.",
    Cause.SAMPLING: "Nothing in paceline: sampled requests accept fewer drafts than greedy ones.",
    Cause.DRAFT: "`paceline rollback`, if this draft is the worse one.",
    Cause.STALE: "A learning round on the newest traffic; a label per kind of traffic tells which kind has moved.",
    Cause.UNCAPTURED: "A higher capture sample rate, so that the requests are seen and learnt from.",
    Cause.STEPS: "The limits of pacing (docs/pacing.md), if it chooses wrongly.",
    Cause.LEARNER: "A learner on cores or a GPU of its own, or longer pauses between learning rounds.",
    Cause.PREFILL: "Shorter prompts, a prefix cache that hits, or prefill on other servers.",
    Cause.SWAP: "Fewer swaps: more traces for each learning round.",
    Cause.REST: "Look at the machine: other processes, clocks, memory; paceline does not see what it was.",
}


def factor_of(part: Part) -> Factor:
    """The factor that a part belongs to."""
    return _PLACES[part].factor


def cause_of(part: Part) -> Cause:
    """The cause that a part counts for."""
    return _PLACES[part].cause


def parts_of(cause: Cause) -> tuple[Part, ...]:
    """The parts that count for a cause."""
    return tuple(part for part in Part if _PLACES[part].cause is cause)
