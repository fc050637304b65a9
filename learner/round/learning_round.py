"""One learning round from claim to checkpoint: it trains, or rests (compares the traces, keeps them, trains nothing).

The order is the guarantee. Publish, then checkpoint, then ack (in loop.py): when a learner is killed before the
checkpoint, the next one learns the same traces again from the same weights; when it is killed after the checkpoint, the
next one finds the outcomes there and only acks. No trace is lost, learned twice into the same weights, or counted
twice. A learner that lost its lease publishes and saves nothing more: another one may be at work.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...buffer.board.lease import Lease, require
from ...buffer.board.reason import ReasonCode, because
from ...buffer.board.version import BoardState, DraftVersion
from ...buffer.board.version_board import VersionBoard
from ...buffer.errors import StoreUnavailable
from ...buffer.plain_text import printable
from ...buffer.stream.trace_buffer import TraceBuffer, TraceEntry
from ...policies.guard import Alarm
from ...policies.learn_schedule import LearnChoice, LearnDecision
from ...policies.promotion import Promotion, Verdict
from ...policies.verdict_words import alarm_sentence, lead, sentence
from ..claim.intake import ByOutcome, Outcome, as_misreplayed, as_rested, counts_of
from ..delivery.delivery import deliver, judge_candidate, reserve
from ..delivery.mlflow_registry import Registry
from ..delivery.round_evidence import RoundEvidence, evidence_of
from ..delivery.run_record import record_of
from ..heartbeat import Heartbeat
from ..judging.alarms import gap_alarm, gone_alarm, rest_for
from ..judging.calibration import Calibration
from ..judging.line_judge import LineJudge
from ..state import checkpoint
from ..state.learner_state import LearnerState
from ..training.trainer import FitReport
from .learning_blocks import blocks_of, learn
from .learning_report import LearningKind, LearningReport
from .prediction import predict

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LearningRound:
    """A claim being worked on, with all that it changes. Belongs to the worker's thread."""

    state: LearnerState
    buffer: TraceBuffer  # only read: what waits for the next round predicts
    board: VersionBoard
    board_state: BoardState  # read before the claim
    registry: Registry
    heartbeat: Heartbeat
    lease: Lease
    claimed: ByOutcome  # a rest, or an alarm, changes the outcomes
    may_replay: bool  # whether the replay buffer is trained on beside the claimed traces
    calibration: Calibration = field(default_factory=Calibration)
    started_at: float = field(default_factory=time.time)  # unix seconds

    def run(self) -> LearningReport:
        """Compare, then train or rest. When it returns, everything but the acks of `claimed` is durable."""
        with self.heartbeat.at_work("comparing"), self.heartbeat.tally.phase("compare"):
            self.calibration = self.state.compare(self.claimed, self.board_state)
        alarm = gap_alarm(self.calibration)
        if alarm is not None:
            return self._set_aside(alarm)
        with self.heartbeat.tally.phase("compare"):
            self.state.model_free.observe(self.state.judging_traces(self.claimed))
        self.state.record_rollback(self.board_state, time.time())
        now_s = time.time()
        decision = self.state.decide(self.claimed, now_s)
        if decision.has_drifted:
            self.heartbeat.tally.record_drift(now_s)
        if decision.choice is LearnChoice.REST:
            with self.heartbeat.at_work("resting"):
                return self._rest(decision)
        with self.heartbeat.at_work("learning"):
            return self._learn(decision)

    def _set_aside(self, alarm: Alarm) -> LearningReport:
        """Keep none of the traces, whose replay differs from what was served, and remember which they were."""
        _log.error("alarm %s: %s", alarm.name, alarm_sentence(alarm.name, alarm.figures))
        self.claimed = as_misreplayed(self.claimed)
        require(self.lease, "nothing was saved")
        self.state.record_set_aside(self.claimed, self.calibration)
        checkpoint.save_notes(self.state.config.checkpoints_dir, self.state.saved_notes)
        return self._rested(rest_for(alarm), alarm)

    def _rest(self, decision: LearnDecision) -> LearningReport:
        """Put the traces where learning will find them: into the replay buffer."""
        self.claimed = as_rested(self.claimed)
        require(self.lease, "nothing was saved")
        self.state.record_rest(self.claimed, self.calibration)
        checkpoint.save_notes(self.state.config.checkpoints_dir, self.state.saved_notes)
        _log.info(
            "learning round rested (rest %d): %d traces kept for replay, %d held out; %s",
            self.state.notes.rounds_rested,
            len(self.claimed[Outcome.RESTED]),
            len(self.claimed[Outcome.HELD_OUT]),
            sentence(decision.reason),
        )
        return self._rested(decision)

    def _rested(self, decision: LearnDecision, alarm: Alarm | None = None) -> LearningReport:
        return LearningReport(
            kind=LearningKind.RESTED,
            why=decision.reason,
            outcomes=counts_of(self.claimed),
            calibration=self.calibration,
            decision=decision,
            alarm=alarm,
        )

    def _learn(self, decision: LearnDecision) -> LearningReport:
        state = self.state
        learned = self.claimed[Outcome.LEARNED]
        held_out = self.claimed[Outcome.HELD_OUT]
        tally = self.heartbeat.tally
        replayed: list[TraceEntry] = []
        state.match_draft_steps([*learned, *held_out])
        fit: FitReport | None = None
        promotion: Promotion | None = None
        version: DraftVersion | None = None
        judge = state.line_judge(self.board_state)
        alarm = None if judge else gone_alarm(self.board_state)
        if alarm is not None:
            _log.error("alarm %s: %s", alarm.name, alarm_sentence(alarm.name, alarm.figures))
        if learned:
            replayed = self._replayed()
            fit = self._fit(replayed, judge)
            number = reserve(state, self.board, judge)
            with tally.phase("judge"):
                promotion = judge_candidate(
                    state, self.board_state, claimed=self.claimed, line_judge=judge, number=number, now_s=time.time()
                )
                promotion = self._predicted(promotion)
            state.record_verdict(fit, promotion, time.time())
            evidence = evidence_of(
                state, claimed=self.claimed, replayed=replayed, judge=judge, started_at=self.started_at
            )
            with tally.phase("publish"):
                version, promotion = self._publish(
                    fit=fit, promotion=promotion, judge=judge, decision=decision, number=number, evidence=evidence
                )
        require(self.lease, "nothing was saved")
        state.record_learning(claimed=self.claimed, calibration=self.calibration, fit=fit, version=version, judge=judge)
        with tally.phase("publish"):
            checkpoint.save(
                state.config.checkpoints_dir, state.saved_notes, state.trainer.save, state.config.kept_checkpoints
            )
        why = promotion.reason if promotion else "every claimed trace was held out"
        _log.info(
            "learning round %d: %d traces learned in %d passes, %d held out; %s (%s)",
            state.notes.rounds_trained,
            len(learned),
            state.trainer.plan.passes,
            len(held_out),
            lead(why),
            sentence(decision.reason),
        )
        return LearningReport(
            kind=LearningKind.LEARNED,
            why=why,
            outcomes=counts_of(self.claimed),
            fit=fit,
            promotion=promotion,
            version=version.number if version else None,
            calibration=self.calibration,
            decision=decision,
            alarm=alarm,
            replayed=len(replayed),
        )

    def _fit(self, replayed: Sequence[TraceEntry], judge: LineJudge | None) -> FitReport:
        """Train on the claim, with as many passes as the learner has time for."""
        traces = len(self.claimed[Outcome.LEARNED])
        self.state.begin_fit(traces)
        old = [entry.trace for entry in replayed]
        fit = learn(self.state.trainer, blocks_of(self.claimed), replayed=old, judge=judge, tally=self.heartbeat.tally)
        self.state.record_fit(traces, fit)
        return fit

    def _predicted(self, promotion: Promotion) -> Promotion:
        """The same with what the draft should have accepted, where it is to serve."""
        # Traces that wait may be what learning failed of, and are not what this round is about.
        if promotion.verdict not in {Verdict.PROMOTE, Verdict.UNJUDGED} or not self.may_replay:
            return promotion
        try:
            found = predict(self.state, self.claimed, self.buffer)
        except Exception as failure:  # noqa: BLE001 - a draft that is trained must not be lost for a figure about it
            _log.warning("the draft is not predicted: %s", printable(f"{type(failure).__name__}: {failure}"))
            return promotion
        reason = promotion.reason if found is None else promotion.reason.but(**found.figures)
        return replace(promotion, prediction=found, reason=reason)

    def _publish(
        self,
        *,
        fit: FitReport,
        promotion: Promotion,
        judge: LineJudge | None,
        decision: LearnDecision,
        number: int | None,
        evidence: RoundEvidence,
    ) -> tuple[DraftVersion | None, Promotion]:
        """Put the trained draft on the board and make its registration pending; None when gate or store waits."""
        state = self.state
        require(self.lease, "nothing was published")
        judged = self.board_state
        try:
            version = deliver(
                state, self.board, judged=judged, promotion=promotion, claimed=self.claimed, number=number
            )
        except StoreUnavailable as fault:
            return None, _unpublished(promotion, judge, fault)
        if version is not None:
            record = record_of(
                version,
                state.trainer.plan,
                fit,
                promotion,
                born_at=time.time(),
                first_step=state.notes.optimiser_steps,
                learn_reason=sentence(decision.reason),
                evidence=evidence,
            )
            self.registry.enqueue(record)
        return version, promotion

    def _replayed(self) -> list[TraceEntry]:
        """The replay buffer, or nothing after a learning round that failed.

        Rested traces were never trained on, so the one that fails every learning round may be in the replay buffer.
        Training without it shows whether the claimed traces are at fault.
        """
        return [*self.state.replay_buffer] if self.may_replay else []


def _unpublished(promotion: Promotion, judge: LineJudge | None, fault: StoreUnavailable) -> Promotion:
    """What becomes of a draft that the store did not take: the next learning round publishes its line's newest."""
    _log.error("the draft is not published: %s", fault)
    if judge is not None:
        judge.delivery.serves = judge.live  # a proof of the line stays one
    return replace(promotion, verdict=Verdict.WAIT, reason=because(ReasonCode.NOT_STORED, fault=str(fault)))
