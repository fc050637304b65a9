"""What one learning round did, for the log, the heartbeat and the tests."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import msgspec

from ...buffer.board.member_status import AlarmSaid, FitSaid, LifeSaid, MemberStatus, VerdictSaid
from ...buffer.board.reason import Why
from ...buffer.stream.trace_buffer import BufferCounts
from ...policies.guard import Alarm
from ...policies.learn_schedule import LearnDecision
from ...policies.promotion import Promotion
from ...policies.target_history import TargetHistory
from ..claim.intake import Outcome
from ..judging.calibration import Calibration
from ..state.checkpoint import LearnerNotes
from ..training.trainer import FitReport

#: Losses that a heartbeat has room for; the last one is always among them.
MAX_LOSSES = 40


class LearningKind(StrEnum):
    """The stage that a learning round reached."""

    IDLE = "idle"  # nothing to train on, or another learner works for the speculator
    LEARNED = "learned"  # the trainer took steps and its checkpoint is on disk
    RESTED = "rested"  # traces were compared and kept for replay; nothing was trained


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningReport:
    """One call of Learner.learn_once, after everything it did is durable."""

    kind: LearningKind
    why: Why
    outcomes: Mapping[str, int] = field(default_factory=dict)  # outcome -> traces acked with it in this learning round
    fit: FitReport | None = None
    promotion: Promotion | None = None
    version: int | None = None  # published in this learning round, promoted or refused
    calibration: Calibration = field(default_factory=Calibration)  # over the traces of this learning round
    seconds: float = 0.0
    decision: LearnDecision | None = None  # to learn or to rest; None where there was nothing to decide on
    why_now: str = ""  # why the learning round started when it did; empty of one that did not start
    alarm: Alarm | None = None  # raised by the traces of this learning round
    replayed: int = 0  # traces of the replay buffer that batches were filled up from

    def fill(self, said: MemberStatus) -> None:
        """Put the report into a heartbeat, and leave there what this learning round did not measure."""
        said.kind = self.kind.value
        said.why = self.why
        said.why_now = self.why_now or said.why_now
        if self.decision is not None:
            said.learn = self.decision.choice.value
            said.learn_reason = self.decision.reason
            raised = [self.alarm] if self.alarm else []
            said.standing_alarms = [
                AlarmSaid(name=one.name, action=one.action, figures=dict(one.figures)) for one in raised
            ]
        if self.fit is not None:
            said.fit = _fit_said(self.fit)
            said.fit.round_s = self.seconds
            said.fit.traces = {**self.outcomes, "replayed": self.replayed}
        if self.promotion is not None:
            said.judged = _verdict_said(self.promotion)
        if self.version is not None:
            said.version = self.version


def _fit_said(fit: FitReport) -> FitSaid:
    """The whole report; losses at MAX_LOSSES steps at most."""
    every = max(math.ceil(len(fit.losses) / MAX_LOSSES), 1)
    said = msgspec.convert({name: _known(value) for name, value in asdict(fit).items()}, FitSaid)
    said.loss_first = said.losses[0] if said.losses else None
    said.losses = said.losses[::-every][::-1]
    said.loss_every = every
    return said


def _known(value: object) -> object:
    if isinstance(value, tuple):
        return [_known(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def _verdict_said(promotion: Promotion) -> VerdictSaid:
    said = VerdictSaid(
        verdict=promotion.verdict.value,
        reason=promotion.reason,
        ground=promotion.ground.value if promotion.ground else "",
        reference=promotion.reference,
    )
    if promotion.measured is not None:
        said.line_accept_length = promotion.measured.line_accept_length
        said.reference_accept_length = promotion.measured.reference_accept_length
    if promotion.judged_on is not None:
        on = promotion.judged_on
        said.requests = on.requests
        said.median_age_s = on.median_age_s
        said.oldest_age_s = on.oldest_age_s
        said.labels = dict(on.labels)
        said.newest_labels = dict(on.newest_labels)
        said.drafts = {str(version): count for version, count in on.drafts.items()}
    return said


def life_said(notes: LearnerNotes, counts: BufferCounts, targets: TargetHistory) -> LifeSaid:
    """Figures over the learner's life, and which versions the target has had lately."""
    compared = Calibration(equal=notes.equal, compared=notes.compared, excess=notes.excess)
    return LifeSaid(
        traces={outcome.value: counts.acked.get(outcome, 0) for outcome in Outcome},
        pending=counts.pending,
        rounds=notes.rounds_trained,
        rests=notes.rounds_rested,
        optimiser_steps=notes.optimiser_steps,
        identity_equal=compared.equal,
        identity_compared=compared.compared,
        calibration_gap=compared.gap,
        target_version=targets.newest or "",
        trained_targets=list(targets.trained),
    )
