"""Counters: what members count since they started, as JSON in their heartbeats and in the history of the board.

Every number only grows until its member restarts, which `boot` shows; so the difference of two entries of one boot is
what happened in between. Nothing here names a request or holds content.

Whoever reads an hour of many members makes 100 000 of these structs; they hold no cycles, and `gc=False` spares the
collector the walk over them.
"""

import msgspec

#: Stands for the drafts older than the newest MAX_DRAFTS. The newest drafts alone are told apart.
OLDER_DRAFTS = -1
MAX_DRAFTS = 8
#: Stands for drafts that no weights propose: SGLang's NGRAM takes them from a table of n-grams. Traces say so too.
MODEL_FREE = -2
#: Labels told apart; OTHER_LABELS (version.py) stands for the rest.
MAX_LABELS = 16

#: Upper edges of `ServedCounters.request_lengths`, accept length per request; the last bin is open.
LENGTH_EDGES = (1.05, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)
#: First output token, and least tokens of context, of every bucket that rounds are counted in by where they begin.
OUTPUT_STARTS = (0, 256, 512, 1024, 2048)
CONTEXT_STARTS = (0, 512, 2048, 8192)
#: Upper edges of `StepCell.durations`, milliseconds; the last bin is open.
STEP_MS_EDGES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


class ServedCell(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """Rounds that one draft served for requests of one label and kind of sampling."""

    draft: int
    label: str
    kind: str  # greedy, sampled, or edited (penalties, bias or a grammar changed the logits)
    rounds: int = 0  # as they are served, of requests that still run too
    accepted: int = 0
    #: Of the stretches that ended: the fields of RatioSums (policies/readings/ratio_sums.py).
    ended: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)


class DraftPositions(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """Of one draft, by position in its chain: how often it was reached, and how often it was accepted then.

    And rounds with their accepted drafts by where they begin: by the output tokens before their first one
    (OUTPUT_STARTS), and by the tokens of prompt and output so far (CONTEXT_STARTS). Buckets after the last one that had
    a round are left out.
    """

    draft: int
    tried: list[int] = []  # rounds whose earlier positions were all accepted, and which drafted this one
    stood: list[int] = []
    output_rounds: list[int] = []
    output_accepted: list[int] = []
    context_rounds: list[int] = []
    context_accepted: list[int] = []


class ServedCounters(msgspec.Struct, kw_only=True, gc=False):
    """What captured requests were served; the courier counts them.

    Their number is bounded, so a cell may give way and is then poured into another one: a label's into that of
    OTHER_LABELS of its draft and kind, a draft's into those of OLDER_DRAFTS. So take differences between two times
    cell by cell only of what is told apart at the later one; the differences of OTHER_LABELS, and of OLDER_DRAFTS, are
    what is left of the difference of the sum over the draft, and over all. A cell that is smaller than before has
    given way in between and has begun again from 0.
    """

    cells: list[ServedCell] = []
    positions: list[DraftPositions] = []
    request_lengths: list[int] = []  # requests that ended, by LENGTH_EDGES
    forgotten: int = 0  # requests counted no further, since too many never reported their end
    unattributed: int = 0  # rounds of requests whose beginning was not seen: in none of the above


#: Bucket and draft steps of the StepCell that stands for those that have no room of their own.
OTHER_BATCHES = 0
OTHER_STEPS = -1


class StepCell(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """Decode steps of one batch bucket and one number of draft steps; 0 draft steps are plain decoding."""

    bucket: int  # the largest batch size of the bucket: 1, 2, 4, 8 ...
    draft_steps: int
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0  # committed and visible, of all requests of the batch
    requests: int = 0  # sum of the batch sizes, requests that had ended left out
    durations: list[int] = []  # steps by STEP_MS_EDGES


class SchedulerCounters(msgspec.Struct, kw_only=True, gc=False):
    """What the scheduler process counts, captured requests or not."""

    steps: list[StepCell] = []
    seconds: dict[str, float] = {}  # of its clock: decode, prefill, swap, idle
    requests_ended: int = 0
    requests_counted: int = 0  # of them, those with penalties or min_new_tokens, which are counted token by token
    rounds: int = 0  # verify rounds of requests that ended, captured or not, as SGLang counts them
    accepted: int = 0
    swaps: int = 0
    swaps_refused: int = 0


class TraceCounters(msgspec.Struct, kw_only=True, gc=False):
    """captured == delivered + dropped + open + queued."""

    captured: int = 0
    delivered: int = 0
    dropped: dict[str, int] = {}
    skipped: dict[str, int] = {}


class LearnerCounters(msgspec.Struct, kw_only=True, gc=False):
    """What a learner has done."""

    rounds: int = 0
    rests: int = 0
    drifts: int = 0  # rests that ended since what is served had changed
    drifted_at: float | None = None  # when the last of them ended, unix seconds
    optimiser_steps: int = 0
    unstored_checkpoints: int = 0  # that the store did not take: they are on the learner's disk alone
    verdicts: dict[str, int] = {}
    seconds: dict[str, float] = {}  # by phase: claim, judge, train, publish, register, idle
    process_cpu_s: float = 0.0
    is_busy: bool = False  # as of now: whether a learning round runs
    delivered: int = 0  # traces in the buffer, over its life
    acked: dict[str, int] = {}  # by outcome
    trimmed: int = 0
    dead_lettered: int = 0
    pending: int = 0
    oldest_pending_s: float | None = None  # as of now: for how long the oldest trace that is not acked has waited
    oldest_kept_s: float | None = None  # as of now: age of the oldest trace in the buffer
    entries: int = 0  # as of now: traces in the buffer, acked ones included
    bytes: int = 0  # as of now: of their payload
    max_bytes: int | None = None  # the bound they are trimmed to


class Counters(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One member's counters at one time; parts that it does not count are None."""

    at: float  # unix seconds
    boot: str  # identifies the process that counts: after a restart another one
    started_at: float | None = None  # unix seconds; that process began to count, at 0, then or soon after
    draft: int | None = None  # that drafts here now
    target_version: str = ""
    served: ServedCounters | None = None
    scheduler: SchedulerCounters | None = None
    traces: TraceCounters | None = None
    learner: LearnerCounters | None = None


def counters_of(value: object) -> Counters | None:
    """Counters from a status or a history entry; None where it is none, since anybody may write to Redis."""
    try:
        return msgspec.convert(value, Counters, strict=False)
    except msgspec.ValidationError:
        return None
