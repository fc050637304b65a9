"""The schema of a member's status: what its heartbeat says beside its counters, as every reader takes it.

Fields that a member does not send are unknown: None, or empty text. Fields that this release does not know are ignored,
so members of other releases can be read. A field may be added; one that is here keeps its name, type and unit.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from ..plain_text import printable
from .reason import Why


class AlarmSaid(msgspec.Struct, kw_only=True, gc=False):
    """One alarm as its member reports it."""

    name: str
    action: str
    detail: str = msgspec.field(name="reading")  # one sentence with figures
    version: int | None = None  # the draft that it is about
    at: float | None = None  # unix seconds; None: it is active


class SwapSaid(msgspec.Struct, kw_only=True, gc=False):
    """One swap as its server reports it."""

    number: int
    commit_ms: float
    at: float  # unix seconds, when the commit was done
    running: int | None = None  # requests in flight
    before: int | None = None  # the draft that it replaced
    stage_ms: float | None = None
    accept_length_before: float | None = None
    accept_length_after: float | None = None


class GoodputSaid(msgspec.Struct, kw_only=True, gc=False):
    """Plain decoding beside drafts, in one bucket of batch sizes."""

    bucket: int
    plain_tokens_per_s: float
    tokens_per_s: float | None = None
    steps: int | None = None  # decode steps in the less measured of the two


class PacingSaid(msgspec.Struct, kw_only=True, gc=False):
    """What a server's pacing has measured."""

    policy: str = ""
    reason: str = ""  # why it is off, or has ended
    goodput: list[GoodputSaid] = []
    cost_ms: dict[str, dict[str, float]] = {}  # of a decode step, by batch size and then by draft steps


class Speculation(msgspec.Struct, kw_only=True, gc=False):
    """Flags of speculation as SGLang resolved them."""

    algorithm: str | None = None
    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None
    adaptive: bool | None = None


class ProcessSaid(msgspec.Struct, kw_only=True, gc=False):
    """The process of a member: where it runs and of which releases it is; `sglang` of servers alone."""

    boot: str = ""
    started_at: float | None = None  # unix seconds
    host: str = ""
    paceline: str = ""
    sglang: str = ""
    speculation: Speculation | None = None


class WorkSaid(msgspec.Struct, kw_only=True, gc=False):
    """The phase that a learner is in, and how far it is."""

    phase: str
    phase_s: float
    block: int | None = None
    blocks: int | None = None
    step: int | None = None
    steps: int | None = None


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


class MemberStatus(msgspec.Struct, kw_only=True, gc=False):
    """A member's last status. Of a server the second part is known, of a learner the third."""

    at: float | None = None  # unix seconds by the member's clock, when it beat
    boot: str = ""
    wanted: str = ""  # the name that it was given, where another process has that
    ended: bool = False  # it ends on purpose
    beat_last_at: float | None = None  # its own last beat, where somebody else said that it has ended
    standing_alarms: list[AlarmSaid] = []  # active ones
    #: Read them with counters_of: those of another release may be unreadable where the rest is not.
    counters: Any = None

    draft_version: int | None = None
    capture: str = ""  # on or off
    capture_reason: str = ""
    buffer_error: str = ""
    captured: int | None = None
    delivered: int | None = None
    dropped: dict[str, int] | None = None  # by reason
    open: int | None = None
    queued: int | None = None
    payload_bytes: int | None = None
    swap: str = ""  # on or off
    swap_reason: str = ""
    is_canary: bool = False
    swaps: list[SwapSaid] = []  # the newest, oldest first
    alarms: list[AlarmSaid] = []  # past ones
    pacing: PacingSaid | None = None
    server: ProcessSaid | None = None

    kind: str = ""  # how far the last learning round went
    why: Why = ""
    learn: str = ""  # learn or rest
    learn_reason: str = ""
    fault: str = ""  # that ended the last learning round
    left: str = ""  # why it ended by itself
    stalled: str = ""  # why it starts no learning round
    work: WorkSaid | None = None
    beat: bool | None = None  # whether it starts learning rounds
    pending_registrations: int | None = None
    mlflow: MlflowRuns | None = None
    mlflow_waiting: MlflowWaiting | None = None
    learner: ProcessSaid | None = None

    @property
    def process(self) -> ProcessSaid:
        """The process that sent it; one of which nothing is known where it did not say."""
        return self.server or self.learner or ProcessSaid()


def read_status(status: Mapping[str, object]) -> tuple[MemberStatus, str]:
    """Return a status from its JSON values, and why it cannot be read: printable, empty where it can be.

    One that cannot be read says nothing at all: anybody may write to Redis, and half of a spoilt status misleads.
    """
    try:
        return msgspec.convert(dict(status), MemberStatus), ""
    except msgspec.ValidationError as error:
        return MemberStatus(), printable(f"status cannot be read: {error}")
