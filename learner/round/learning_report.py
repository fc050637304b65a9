"""What one learning round did, for the log, the heartbeat and the tests."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import msgspec

from ...buffer.board.reason import Why
from ...buffer.stream.trace_buffer import BufferCounts
from ...policies.guard import Alarm
from ...policies.judged_on import figures
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

    def status(self) -> dict[str, object]:
        """The report as JSON values for a heartbeat, without the figures that this learning round did not measure."""
        found: dict[str, object] = {"kind": self.kind.value, "why": msgspec.to_builtins(self.why)}
        if self.why_now:
            found["why_now"] = self.why_now
        if self.decision is not None:
            found |= {"learn": self.decision.choice.value, "learn_reason": self.decision.reason}
            found["standing_alarms"] = [self.alarm.as_json()] if self.alarm else []
        if self.fit is not None and self.fit.losses:
            found |= {"loss_first": self.fit.losses[0], "loss_last": self.fit.losses[-1], "round_s": self.seconds}
            found |= {"first_position_accept": self.fit.first_position_accept, "skipped_steps": self.fit.skipped_steps}
        if self.fit is not None:
            found |= {"fit": _fit_figures(self.fit), "traces": {**self.outcomes, "replayed": self.replayed}}
        if self.promotion is not None:
            found |= {"verdict": self.promotion.verdict.value}
            found["reason"] = msgspec.to_builtins(self.promotion.reason)
        if self.promotion is not None and self.promotion.ground is not None:
            found |= {"ground": self.promotion.ground.value, "reference": self.promotion.reference}
        if self.promotion is not None and self.promotion.measured is not None:
            found |= {"line_accept_length": self.promotion.measured.line_accept_length}
            found |= {"reference_accept_length": self.promotion.measured.reference_accept_length}
        if self.promotion is not None and self.promotion.judged_on is not None:
            judged = self.promotion.judged_on
            found |= figures(judged)
            found |= {"judged_labels": dict(judged.labels), "newest_labels": dict(judged.newest_labels)}
            found |= {"judged_drafts": {str(version): count for version, count in judged.drafts.items()}}
        if self.version is not None:
            found["version"] = self.version
        return found


def _fit_figures(fit: FitReport) -> dict[str, object]:
    """The whole report as JSON values; None where a figure is not known, and losses at MAX_LOSSES steps at most."""
    every = max(math.ceil(len(fit.losses) / MAX_LOSSES), 1)
    found = asdict(fit) | {"losses": fit.losses[::-every][::-1], "loss_every": every}
    return {name: _known(value) for name, value in found.items()}


def _known(value: object) -> object:
    if isinstance(value, tuple):
        return [_known(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def totals(
    notes: LearnerNotes, counts: BufferCounts, pending_registrations: int, targets: TargetHistory
) -> dict[str, object]:
    """Figures over the learner's life as JSON values for a heartbeat, and which versions the target has had lately."""
    compared = Calibration(equal=notes.equal, compared=notes.compared, excess=notes.excess)
    known = {"target_version": targets.newest, "trained_targets": list(targets.trained)} if targets.trained else {}
    return {
        **{outcome.value: counts.acked.get(outcome, 0) for outcome in Outcome},
        "pending": counts.pending,
        "pending_registrations": pending_registrations,
        "rounds": notes.rounds_trained,
        "rests": notes.rounds_rested,
        "optimiser_steps": notes.optimiser_steps,
        "identity_equal": compared.equal,
        "identity_compared": compared.compared,
        "calibration_gap": compared.gap,
        **known,
    }
