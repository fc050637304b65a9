"""What every figure is: its unit, its formula, where it comes from, and how old it may be; said here alone."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One figure that people see under `name`, in commands, in MLflow and in the documentation alike."""

    name: str  # snake_case
    unit: str
    meaning: str  # one sentence
    formula: str  # of the counters in buffer/board/counters.py
    counted_in: str  # what Reading.count counts
    source: str  # which member sends it
    max_age_s: float  # older, it is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One figure with what it rests on; `value` is None where it is unknown, and `why_unknown` says why.

    `low` and `high` beside an unknown value are bounds of it that hold without a measurement.
    """

    name: str  # of its Definition
    value: float | None
    count: int = 0
    at: float | None = None  # unix seconds of the newest evidence
    low: float | None = None  # of its 95 % interval; None: none can be given
    high: float | None = None
    why_unknown: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.why_unknown):
            got = f"{self.name}: got value {self.value} with why_unknown {self.why_unknown!r}"
            raise ValueError(f"{got}, expected a reason exactly where the value is unknown")


_ALL = (
    Definition(
        name="accept_length",
        unit="tokens per verify round",
        meaning="Tokens that a verify round commits, the target's own one included; of captured requests.",
        formula="1 + accepted / rounds, over the served cells",
        counted_in="requests",
        source="courier",
        max_age_s=60.0,
    ),
    Definition(
        name="engine_accept_length",
        unit="tokens per verify round",
        meaning="Accept length of all requests that ended, captured or not, as SGLang counts them.",
        formula="1 + accepted / rounds, of the scheduler",
        counted_in="requests",
        source="scheduler",
        max_age_s=60.0,
    ),
    Definition(
        name="position_acceptance",
        unit="share",
        meaning="How often the draft at a position was accepted when all before it were.",
        formula="stood / tried",
        counted_in="rounds that reached the position",
        source="courier",
        max_age_s=60.0,
    ),
    Definition(
        name="output_accept_length",
        unit="tokens per verify round",
        meaning="Accept length by the output token where a round begins: 0-255, 256-511, 512-1023, 1024-2047, 2048+.",
        formula="1 + output_accepted / output_rounds",
        counted_in="rounds that began there",
        source="courier",
        max_age_s=60.0,
    ),
    Definition(
        name="context_accept_length",
        unit="tokens per verify round",
        meaning="Accept length by the tokens of prompt and output before a round: 0-511, 512-2047, 2048-8191, 8192+.",
        formula="1 + context_accepted / context_rounds",
        counted_in="rounds that began there",
        source="courier",
        max_age_s=60.0,
    ),
    Definition(
        name="tokens_per_second",
        unit="tokens per second",
        meaning="Tokens that decode steps committed, of all replicas together.",
        formula="tokens of the step cells / seconds of the period",
        counted_in="decode steps",
        source="scheduler",
        max_age_s=60.0,
    ),
    Definition(
        name="replica_tokens_per_second",
        unit="tokens per second",
        meaning="Tokens that decode steps committed, of one replica while its scheduler ran.",
        formula="tokens of the step cells / seconds of the scheduler, both added up over replicas",
        counted_in="decode steps",
        source="scheduler",
        max_age_s=60.0,
    ),
    Definition(
        name="request_tokens_per_second",
        unit="tokens per second",
        meaning="Tokens that one request gets while it runs.",
        formula="tokens of the step cells / seconds of the scheduler that were not idle / running",
        counted_in="decode steps",
        source="scheduler",
        max_age_s=60.0,
    ),
    Definition(
        name="step_time_ms",
        unit="ms",
        meaning="Mean time from one decode step to the next.",
        formula="1000 x seconds / steps, over the step cells",
        counted_in="decode steps",
        source="scheduler",
        max_age_s=60.0,
    ),
    Definition(
        name="running",
        unit="requests",
        meaning="Mean batch of a decode step.",
        formula="requests / steps, over the step cells",
        counted_in="decode steps",
        source="scheduler",
        max_age_s=60.0,
    ),
    Definition(
        name="tokens_per_request_step",
        unit="tokens",
        meaning="Tokens that one request gets from one decode step, plain steps included.",
        formula="tokens / requests, over the step cells",
        counted_in="decode steps",
        source="scheduler",
        max_age_s=60.0,
    ),
    Definition(
        name="decode_share",
        unit="share",
        meaning="Share of the time in which decode steps run; the rest is prefill, swaps and idleness.",
        formula="seconds of the step cells / seconds counted over, added up over replicas",
        counted_in="decode steps",
        source="scheduler",
        max_age_s=60.0,
    ),
    Definition(
        name="speed_over_plain",
        unit="times plain decoding",
        meaning=(
            "Tokens per second of speculative steps over what plain steps of the same batch sizes commit. Without plain"
            " steps only bounded: at most the tokens that a request gets from a step, at least those over all that are"
            " computed for them (policies/readings/speed.py)."
        ),
        formula="tokens of steps with drafts / sum over batch buckets of (their seconds x plain tokens per second)",
        counted_in="plain decode steps",
        source="scheduler",
        max_age_s=3600.0,
    ),
    Definition(
        name="traces_in_per_second",
        unit="traces per second",
        meaning="Traces that servers put into the buffer.",
        formula="growth of delivered / seconds of the period",
        counted_in="traces",
        source="learner",
        max_age_s=60.0,
    ),
    Definition(
        name="traces_out_per_second",
        unit="traces per second",
        meaning="Traces that left the backlog: acked, trimmed or dead letters.",
        formula="growth of acked + trimmed + dead_lettered / seconds of the period",
        counted_in="traces",
        source="learner",
        max_age_s=60.0,
    ),
    Definition(
        name="traces_captured",
        unit="traces",
        meaning="Traces that servers captured.",
        formula="growth of captured",
        counted_in="traces",
        source="courier",
        max_age_s=60.0,
    ),
    Definition(
        name="traces_dropped",
        unit="traces",
        meaning="Traces lost before they reached the buffer, by reason.",
        formula="growth of dropped",
        counted_in="captured traces",
        source="courier",
        max_age_s=60.0,
    ),
    Definition(
        name="oldest_unread_s",
        unit="s",
        meaning="For how long the oldest trace that nobody has learnt has waited.",
        formula="oldest_pending_s",
        counted_in="traces that wait",
        source="learner",
        max_age_s=60.0,
    ),
    Definition(
        name="oldest_kept_s",
        unit="s",
        meaning="Age of the oldest trace in the buffer.",
        formula="oldest_kept_s",
        counted_in="traces in the buffer",
        source="learner",
        max_age_s=60.0,
    ),
    Definition(
        name="buffer_holds_s",
        unit="s",
        meaning="For how long the buffer can keep a trace at this rate of new ones.",
        formula="max_bytes / (traces in per second x bytes / entries)",
        counted_in="traces in the buffer",
        source="learner",
        max_age_s=60.0,
    ),
    Definition(
        name="buffer_full_in_s",
        unit="s",
        meaning="Until traces that nobody has learnt are trimmed, if traces go on to come and to leave at these rates.",
        formula="(max_bytes - pending x bytes / entries) / ((traces in - out per second) x bytes / entries)",
        counted_in="traces that wait",
        source="learner",
        max_age_s=60.0,
    ),
    Definition(
        name="learner_seconds",
        unit="s",
        meaning="Time that the learner spent, by phase.",
        formula="growth of seconds",
        counted_in="learning rounds",
        source="learner",
        max_age_s=60.0,
    ),
    Definition(
        name="learner_rounds",
        unit="learning rounds",
        meaning="Learning rounds that ended, by verdict.",
        formula="growth of verdicts",
        counted_in="learning rounds",
        source="learner",
        max_age_s=60.0,
    ),
)

DEFINITIONS: Mapping[str, Definition] = {definition.name: definition for definition in _ALL}
