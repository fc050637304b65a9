"""The schema of a member's status: what its heartbeat says, as the member fills it in and as every reader takes it.

Fields that a member does not send are unknown: None, or empty. Fields that this release does not know are ignored, so
members of other releases can be read. A field may be added; one that is here keeps its name, type and unit.
"""

from typing import Any

import msgspec

from ..plain_text import printable
from .counters import TraceCounters
from .reason import Why
from .speculation import Speculation


class AlarmSaid(msgspec.Struct, kw_only=True, gc=False):
    """One alarm as its member reports it."""

    name: str
    action: str
    figures: dict[str, float | str] = {}  # what it was raised on
    version: int | None = None  # the draft that it is about
    at: float | None = None  # unix seconds; None: it is active


class SwapSaid(msgspec.Struct, kw_only=True, gc=False):
    """What the commit of one swap did.

    A late one was asked for, given up on, and done when the scheduler reached its next iteration after all.
    """

    number: int
    stage_ms: float
    commit_ms: float
    at: float  # unix seconds, when the commit was done
    running: int  # requests in flight, which continued
    before: int | None = None  # the draft that it replaced
    late_s: float = 0.0  # since it was given up on; 0 in time
    asked_at: float | None = None  # unix seconds of the board's event
    # of what was served before and after it, while captured
    accept_length_before: float | None = None
    rounds_before: int = 0
    accept_length_after: float | None = None
    rounds_after: int = 0


class RefusalSaid(msgspec.Struct, kw_only=True, gc=False):
    """A version that a server refused to load."""

    number: int
    promoted_at: float  # unix seconds
    why: str


class GoodputSaid(msgspec.Struct, kw_only=True, gc=False):
    """Plain decoding beside drafts, in one bucket of batch sizes."""

    bucket: int
    plain_tokens_per_s: float
    tokens_per_s: float = 0.0
    steps: int = 0  # decode steps in the less measured of the two


class CatchUpSaid(msgspec.Struct, kw_only=True, gc=False):
    """How often the draft read what it had missed while nothing was drafted."""

    reason: str = ""  # why that is left to SGLang
    passes: dict[str, int] = {}  # by what they were for
    positions: int = 0


class PacingSaid(msgspec.Struct, kw_only=True, gc=False):
    """What a server's pacing has chosen and measured."""

    policy: str = ""
    reason: str = ""  # why it is off, or has ended
    goodput: list[GoodputSaid] = []
    cost_ms: dict[str, dict[str, float]] = {}  # of a decode step, by batch size and then by draft steps
    steps: dict[str, dict[str, int]] = {}  # decode steps, likewise
    unmatched: int = 0  # decode steps whose time is not known
    faults: int = 0
    catch_up: CatchUpSaid | None = None


class ProcessSaid(msgspec.Struct, kw_only=True, gc=False):
    """The process of a member: where it runs and of which releases it is; `sglang` of servers alone."""

    boot: str = ""
    started_at: float | None = None  # unix seconds
    host: str = ""
    paceline: str = ""
    sglang: str = ""
    speculation: Speculation | None = None


class TracesSaid(msgspec.Struct, kw_only=True, gc=False):
    """What became of the traces that were captured under a server's name, by servers before this one too."""

    captured: int = 0
    delivered: int = 0
    dropped: dict[str, int] = {}  # by reason
    rounds: int = 0
    payload_bytes: int = 0
    labels_refused: int = 0  # of the captured ones, those whose client named a label that may not be kept
    has_predecessor: bool = False  # the counts of the server before this one, if any, are included
    before_boot: TraceCounters | None = None  # the part of that server; in no heartbeat


class TargetSaid(msgspec.Struct, kw_only=True, gc=False):
    """The target's weights, as a trainer's updates leave them."""

    version: str = ""
    reason: str = ""  # why the weights that judge are of no version
    updates: int = 0
    update_ms: float | None = None  # the last one
    stale_prefixes: bool = False  # prompts are cached that earlier weights have read


class CourierSaid(msgspec.Struct, kw_only=True, gc=False):
    """The courier process of a server."""

    restarts: int = 0
    fault: str = ""  # how the one before ended
    backoff_s: float = 0.0  # between that and the start of this one


class RequestSaid(msgspec.Struct, array_like=True, gc=False):
    """The rounds of one request that has ended."""

    digest: str  # in place of its id
    accepted_at: list[int]  # accepted drafts by checkpoint
    accepted: int
    rounds: int


class BegunSaid(msgspec.Struct, array_like=True, gc=False):
    """How one request that still runs began."""

    digest: str
    accepted_at: list[int]


class StretchesSaid(msgspec.Struct, kw_only=True, gc=False):
    """How the newest requests of a server's present draft went: the live arm of a canary elsewhere."""

    version: int | None = None
    ended: list[RequestSaid] = []
    begun: list[BegunSaid] = []


class ArmSaid(msgspec.Struct, kw_only=True, gc=False):
    """One arm of a canary's trial."""

    requests: int
    rounds: int
    accept_length: float | None = None  # None without rounds


class TrialSaid(msgspec.Struct, kw_only=True, gc=False):
    """The trial of a canary on the server that runs it."""

    version: int
    canary: ArmSaid
    live: ArmSaid
    gain: float | None = None
    interval: tuple[float, float] | None = None  # of the gain
    looks: int = 0
    requests_left: int = 0


class WorkSaid(msgspec.Struct, kw_only=True, gc=False):
    """The phase that a learner is in, and how far it is."""

    phase: str
    phase_s: float
    block: int | None = None
    blocks: int | None = None
    step: int | None = None
    steps: int | None = None


class FitSaid(msgspec.Struct, kw_only=True, gc=False):
    """The last learning round that trained; a figure that is not known is None."""

    round_s: float = 0.0  # the whole learning round
    traces: dict[str, int] = {}  # by outcome, and `replayed`
    losses: list[float | None] = []  # every `loss_every`-th, the last one among them
    loss_first: float | None = None
    loss_every: int = 1
    steps: int = 0  # optimiser steps
    skipped_steps: int = 0
    seconds: float | None = None
    first_position_accept: float | None = None
    first_position_attainable: float | None = None
    mean_acceptance: list[float | None] = []  # by draft step
    is_cold: bool = False
    weighting: str = ""
    context_weight: float | None = None
    learning_rate: float | None = None
    out_of_vocabulary_labels: int = 0
    unusable_traces: int = 0
    part_tokens: int = 0


class VerdictSaid(msgspec.Struct, kw_only=True, gc=False):
    """The last verdict of a learner, and what it was judged on."""

    verdict: str
    reason: Why = ""
    ground: str = ""
    reference: int | None = None  # the version that the line was compared with
    line_accept_length: float | None = None
    reference_accept_length: float | None = None
    requests: int | None = None
    median_age_s: float | None = None
    oldest_age_s: float | None = None
    labels: dict[str, int] = {}
    newest_labels: dict[str, int] = {}
    drafts: dict[str, int] = {}  # by version


class LifeSaid(msgspec.Struct, kw_only=True, gc=False):
    """Figures over a learner's life, restarts included."""

    traces: dict[str, int] = {}  # by outcome
    pending: int = 0
    rounds: int = 0
    rests: int = 0
    optimiser_steps: int = 0
    identity_equal: int = 0  # verify rounds that replayed with the served length
    identity_compared: int = 0
    calibration_gap: float = 0.0
    target_version: str = ""  # the newest one that was learnt from
    trained_targets: list[str] = []


class ScheduleSaid(msgspec.Struct, kw_only=True, gc=False):
    """What a learner's schedule waits for."""

    next: str  # what ends the rest or begins one
    flat_rounds: int = 0
    rest_after_flat_rounds: int = 0
    rested_s: float | None = None  # None: it learns


class DrafterSaid(msgspec.Struct, kw_only=True, gc=False):
    """A drafter without a model on text that a draft served."""

    drafter: str
    accept_length: float
    gain: float  # verify rounds of the draft over its own
    low: float | None = None  # of the gain; None: too few traces
    high: float | None = None


class LabelDraftersSaid(msgspec.Struct, kw_only=True, gc=False):
    """Drafters without a model on the traces of one label."""

    label: str | None = None  # None: of all labels together
    traces: int
    tokens: int
    accept_length: float  # of the drafts that served
    drafters: list[DrafterSaid] = []


class ModelFreeSaid(msgspec.Struct, kw_only=True, gc=False):
    """What drafters without a model would have done on the newest traces."""

    by_label: list[LabelDraftersSaid] = []  # all labels first
    left_out: dict[str, int] = {}  # traces, by reason
    microseconds_per_round: dict[str, float] = {}  # processor time by drafter


class MlflowRuns(msgspec.Struct, kw_only=True, gc=False):
    """Where people find the newest drafts in MLflow."""

    run_page: str = ""  # with {run} in place of an id; empty where MLflow has no pages of its own
    runs: dict[str, str] = {}  # number of the draft -> id of its run


class MlflowWait(msgspec.Struct, kw_only=True, gc=False):
    """One thing that MLflow was not told."""

    what: str
    since: float  # unix seconds
    why: str = ""
    action: str = ""


class MlflowWaiting(msgspec.Struct, kw_only=True, gc=False):
    """All that MLflow was not told."""

    at: float  # unix seconds, when the learner looked
    count: int
    longest: list[MlflowWait] = []


class MemberStatus(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A member's last status. Of a server the second part is known, of a learner the third."""

    unreadable: str = ""  # why nothing of it is known: for readers, printable, never sent
    at: float | None = None  # unix seconds by the member's clock, when it beat
    boot: str = ""
    wanted: str = ""  # the name that it was given, where another process has that
    ended: bool = False  # it ends on purpose
    beat_last_at: float | None = None  # its own last beat, where somebody else said that it has ended
    standing_alarms: list[AlarmSaid] = []  # active ones
    #: A member puts its Counters here. Read them with counters_of: those of another release may be unreadable where the
    #: rest is not.
    counters: Any = None

    draft_version: int | None = None  # None where no weights propose, too
    capture: str = ""  # on or off
    capture_reason: str = ""
    buffer_error: str = ""
    traces: TracesSaid | None = None
    skipped: dict[str, int] = {}  # requests that were never captured, by reason
    open: int | None = None  # traces
    queued: int | None = None  # traces
    engine_rounds: int = 0  # verified in requests that are to be captured
    captured_rounds: int = 0
    swap: str = ""  # on, off, or follows: another rank of its server swaps for it, and no canary is given to it
    swap_reason: str = ""
    swaps: list[SwapSaid] = []  # the newest, oldest first
    swaps_refused: int = 0
    refusals: list[RefusalSaid] = []  # the newest
    published_sha256: str = ""  # of the file swapped in last
    loaded_sha256: str = ""  # of the weights that the model holds
    is_canary: bool = False  # a canary drafts here
    is_canary_out: bool = False  # one drafts on any replica
    canary_window_s: float = 0.0  # for so long it drafts before the live version does, here in turns; 0: all the time
    trial: TrialSaid | None = None
    stretches: StretchesSaid | None = None
    alarms: list[AlarmSaid] = []  # past ones
    learning_paused: str = ""  # why learners should wait
    target: TargetSaid | None = None
    pacing: PacingSaid | None = None
    courier: CourierSaid | None = None
    clock_offset_s: float | None = None  # by which this host is ahead of Redis
    clock_reason: str = ""  # why the scheduler's time is not accounted for
    penalties_reason: str = ""  # why requests with penalties are not counted
    server: ProcessSaid | None = None

    kind: str = ""  # how far the last learning round went
    why: Why = ""
    why_now: str = ""  # why the last learning round started when it did
    learn: str = ""  # learn or rest
    learn_reason: Why = ""
    fault: str = ""  # that ended the last learning round
    left: str = ""  # why it ended by itself
    stalled: str = ""  # why it starts no learning round
    work: WorkSaid | None = None
    beat: bool | None = None  # whether it starts learning rounds
    fit: FitSaid | None = None
    judged: VerdictSaid | None = None
    version: int | None = None  # published last
    life: LifeSaid | None = None
    schedule: ScheduleSaid | None = None
    model_free: ModelFreeSaid | None = None
    pending_registrations: int | None = None
    mlflow: MlflowRuns | None = None
    mlflow_waiting: MlflowWaiting | None = None
    learner: ProcessSaid | None = None

    @property
    def process(self) -> ProcessSaid:
        """The process that sent it; one of which nothing is known where it did not say."""
        return self.server or self.learner or ProcessSaid()

    @property
    def has_draft(self) -> bool:
        """Whether a draft's weights propose on this server, or nothing is known of it."""
        return (self.process.speculation or Speculation()).has_draft

    @property
    def account(self) -> TracesSaid:
        """`traces`; zeros where it did not say."""
        return self.traces or TracesSaid()


def read_status(raw: bytes) -> MemberStatus:
    """A status from its JSON.

    One that cannot be read says why and nothing else: anybody may write to Redis, and half of a spoilt status misleads.
    """
    try:
        said = _DECODER.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return MemberStatus(unreadable=printable(f"status cannot be read: {error}"))
    said.unreadable = ""  # a word of readers alone
    return said


_DECODER = msgspec.json.Decoder(MemberStatus)
