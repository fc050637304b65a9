"""One round of learning, from claim to ack; or one of rest, which looks at the traces, keeps them and trains nothing.

The order is the guarantee. Publish, then checkpoint, then ack: a learner killed before the checkpoint learns the
same traces again from the same weights; killed behind it, its successor finds their outcomes in the checkpoint and
only acks. No trace is lost, learnt twice into the same weights, or counted twice. A learner that lost its lease on
the way publishes nothing and keeps nothing: somebody else may be at work.
"""

import logging
import time
from dataclasses import replace

from ..buffer.base import TraceBuffer, VersionBoard
from ..buffer.lease import Lease, require
from ..buffer.trace import DraftTrace
from ..buffer.version import BoardState, DraftVersion
from ..policies.guard import Alarm
from ..policies.learn_schedule import LearnChoice, LearnDecision
from ..policies.promotion import Promotion
from . import checkpoint
from .backlog import Backlog
from .claim_limiter import ClaimLimiter
from .config import LearnerConfig
from .delivery.canary import CanaryLimit
from .delivery.delivery import deliver, hold_out, judge_candidate
from .delivery.mlflow_registry import Registry
from .delivery.publisher import prune
from .delivery.run_record import record_of
from .heartbeat import Heartbeat
from .intake import KEPT, REFUSED, Outcome, Sorted, at_rest, counts_of, misreplayed
from .judging.alarms import gap_alarm, paused_by, rest_for
from .judging.calibration import Calibration
from .round_report import RoundKind, RoundReport
from .state import LearnerState, open_standing
from .training.trainer import FitReport

_log = logging.getLogger(__name__)


class Learner:
    """Learns from one speculator's buffer and publishes to its board. One thread; several processes may try at once."""

    def __init__(self, config: LearnerConfig, buffer: TraceBuffer, board: VersionBoard, registry: Registry) -> None:
        self._config = config
        self._buffer = buffer
        self._board = board
        self._registry = registry
        self._standing: LearnerState | None = None
        self._pulse = Heartbeat(config, board)
        self._caution = ClaimLimiter(config.max_claim, config.checkpoints_dir / f"attempt-{config.name}.json")
        self._canary_limit = CanaryLimit(config.canary_limit_s)
        self._backlog = Backlog(config)

    def learn_once(self) -> RoundReport:
        """Do one round, or return an idle report when too few traces wait or another learner is at work.

        Blocks for the whole training. Raises BufferUnavailable, ConfigError and whatever training raises; the next
        call then starts from the last checkpoint with the same traces, as a new process would, and takes fewer of them
        when they may be the cause. LeaseLost when the lease ended meanwhile: no more was published, nothing acked.
        """
        with self._board.lease(f"learner:{self._config.speculator}", self._config.round_lease_s) as lease:
            if not lease:
                # What this learner remembers grows old while another one learns.
                self._standing = None
                report = RoundReport(RoundKind.IDLE, f"another learner of {self._config.speculator} is at work")
                self._pulse.beat(report.status())
                return report
            try:
                standing, self._standing = self._stand(), None
                report = self._round(standing, lease)
            except BaseException as failure:  # an interrupt too: what was claimed must be offered again
                self._caution.fail(failure, lease)
                self._buffer.resume(self._config.name)
                raise
            # Kept only when the round ended well: half a round in memory must not be trained on.
            self._standing = standing
            self._caution.succeed()
        self._pulse.beat(report.status() | self._totals(standing))
        return report

    def _stand(self) -> LearnerState:
        """What this learner remembers; opened anew when it remembers nothing, or the board another life.

        Or when another learner has saved a round meanwhile: what this one remembers has grown old.
        """
        kept = self._standing
        if kept is None or not kept.matches_board(self._board.read()):
            return self._open()
        return kept if checkpoint.is_newest(self._config.checkpoints_dir, kept.notes) else self._open()

    def _open(self) -> LearnerState:
        self._caution.recall()
        return open_standing(self._config, self._buffer, self._board)

    def _round(self, standing: LearnerState, lease: Lease) -> RoundReport:
        started = time.perf_counter()
        standing.forget_expired(time.time())
        state = self._board.read()
        self._canary_limit.end_overdue(self._board, state)
        mlflow_answers = self._registry.follow(state)
        if state.canary is not None:  # the next candidate is compared with whatever is live behind this one
            return RoundReport(RoundKind.IDLE, f"version {state.canary} is canary; traces wait until it is decided")
        if paused := paused_by(self._board.heartbeats()):  # what it serves may bear the wrong version's number
            return RoundReport(RoundKind.IDLE, f"paused by {paused}; traces wait")
        why_too_few = self._backlog.why_too_few(self._buffer.counts())
        if why_too_few:
            return RoundReport(RoundKind.IDLE, why_too_few)
        claimed = self._claim(standing)
        if not any(claimed[outcome] for outcome in KEPT):
            return RoundReport(RoundKind.IDLE, "nothing claimed could be learnt from", counts_of(claimed))
        with self._pulse.at_work("comparing"):
            calibration = standing.compare(claimed, state)
        alarm = gap_alarm(calibration)
        if alarm is not None:
            return self._set_aside(standing, claimed, calibration, alarm, lease)
        hold_out(standing, claimed, state)
        standing.note_fate(state, time.time())
        decision = standing.decide(claimed, time.time())
        if decision.choice is LearnChoice.REST:
            claimed = at_rest(claimed)
            with self._pulse.at_work("resting"):
                report = self._rest(standing, claimed, calibration, decision, lease)
        else:
            with self._pulse.at_work("learning"):
                report = self._learn(standing, state, claimed, calibration, decision, lease)
        self._ack(claimed, KEPT)
        if report.version is not None:
            self._tidy(mlflow_answers)
        return replace(report, decision=decision, seconds=time.perf_counter() - started)

    def _claim(self, standing: LearnerState) -> Sorted:
        """Take traces and give each its outcome; what is refused is acked here."""
        checkpoint.require_room(self._config.checkpoints_dir)
        self._caution.repay(self._buffer.forgive)
        self._caution.begin()
        entries = self._buffer.claim(self._config.name, self._caution.max_claim, self._caution.take)
        if not entries:
            self._caution.take(())
        claimed = standing.sort(entries)
        self._ack(claimed, REFUSED)
        return claimed

    def _tidy(self, mlflow_answers: bool) -> None:
        """Tell MLflow about the version of this round, then make room; its weights must be there to be told."""
        state = self._board.read()
        if mlflow_answers:
            self._registry.follow(state)
        gone = prune(self._config.versions_dir, state, self._config.kept_versions)
        if gone:
            _log.info("weights of versions %s were removed from %s", gone, self._config.versions_dir)

    def _set_aside(
        self, standing: LearnerState, claimed: Sorted, calibration: Calibration, alarm: Alarm, lease: Lease
    ) -> RoundReport:
        """Keep nothing of traces that replay otherwise than they were served, and remember which they were."""
        _log.error("alarm %s: %s", alarm.name, alarm.detail)
        claimed, decision = misreplayed(claimed), rest_for(alarm)
        require(lease, "nothing was saved")
        standing.note_set_aside(claimed, calibration)
        checkpoint.save_notes(self._config.checkpoints_dir, standing.notes)
        self._ack(claimed, (Outcome.MISREPLAYED,))
        report = RoundReport(RoundKind.RESTED, decision.reason, counts_of(claimed), calibration=calibration)
        return replace(report, decision=decision, alarm=alarm)

    def _rest(
        self, standing: LearnerState, claimed: Sorted, calibration: Calibration, decision: LearnDecision, lease: Lease
    ) -> RoundReport:
        """As `_learn`, without training: the traces go where learning will find them."""
        rested, held_out = claimed[Outcome.RESTED], claimed[Outcome.HELD_OUT]
        standing.window.extend(rested)
        require(lease, "nothing was saved")
        standing.note_rest(claimed, calibration)
        checkpoint.save_notes(self._config.checkpoints_dir, standing.notes)
        _log.info(
            "rest %d: %d rested, %d held out; %s", standing.notes.rests, len(rested), len(held_out), decision.reason
        )
        return RoundReport(RoundKind.RESTED, decision.reason, counts_of(claimed), calibration=calibration)

    def _learn(
        self,
        standing: LearnerState,
        state: BoardState,
        claimed: Sorted,
        calibration: Calibration,
        decision: LearnDecision,
        lease: Lease,
    ) -> RoundReport:
        """Everything between claim and ack; its effects are durable when it returns."""
        learnt, held_out = claimed[Outcome.LEARNED], claimed[Outcome.HELD_OUT]
        standing.draft_as_served([*learnt, *held_out])
        fit = promotion = version = None
        if learnt:
            fit = standing.trainer.fit([entry.trace for entry in learnt], self._replayed(standing))
            promotion = judge_candidate(standing, state)
            standing.note_gain(fit, promotion, time.time())
            require(lease, "nothing was published")
            version = deliver(standing, self._board, state, promotion, learnt)
            standing.window.extend(learnt)
            if version is not None:
                self._hand_in(standing, version, fit, promotion, decision)
        require(lease, "nothing was saved")
        standing.note_round(claimed, calibration, fit, version)
        checkpoint.save(self._config.checkpoints_dir, standing.notes, standing.trainer.save)
        number = version.number if version else None
        why = promotion.reason if promotion else "only held-out traces came"
        done = standing.notes.round, len(learnt), len(held_out), why, decision.reason
        _log.info("round %d: %d learnt, %d held out; %s (%s)", *done)
        return RoundReport(RoundKind.LEARNED, why, counts_of(claimed), fit, promotion, number, calibration)

    def _replayed(self, standing: LearnerState) -> list[DraftTrace]:
        """The window; nothing behind a round that failed.

        Rested traces were never trained on, so the one that fails every round may lie there. Without the window those
        claimed prove their innocence, and the next whole round costs one more failure, not them.
        """
        return [] if self._caution.has_suspects else [entry.trace for entry in standing.window]

    def _hand_in(
        self, own: LearnerState, version: DraftVersion, fit: FitReport, promotion: Promotion, decision: LearnDecision
    ) -> None:
        record = record_of(
            version,
            own.trainer.plan,
            fit,
            promotion,
            born_at=time.time(),
            first_step=own.notes.optimiser_steps,
            learn_reason=decision.reason,
        )
        self._registry.hand_in(record)

    def _ack(self, claimed: Sorted, outcomes: tuple[Outcome, ...]) -> None:
        for outcome in outcomes:
            if claimed[outcome]:
                self._buffer.ack([entry.entry_id for entry in claimed[outcome]], outcome)

    def _totals(self, standing: LearnerState) -> dict[str, object]:
        notes, counts = standing.notes, self._buffer.counts()
        total = Calibration(notes.equal, notes.compared, notes.excess)
        return {
            **{outcome.value: counts.acked.get(outcome, 0) for outcome in Outcome},
            "pending": counts.pending,
            "rounds": notes.round,
            "rests": notes.rests,
            "optimiser_steps": notes.optimiser_steps,
            "identity_equal": total.equal,
            "identity_compared": total.compared,
            "calibration_gap": total.gap,
            "at": time.time(),
        }
