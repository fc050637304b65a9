"""When a learner works, and when it is idle: lease, reasons to wait, claim, ack.

A learning round is learning_round.py's; what is acked here was made durable there.
"""

import logging
import time
from dataclasses import replace

import msgspec

from ...buffer import retention
from ...buffer.board.lease import Lease, require
from ...buffer.board.member_status import MemberStatus, ModelFreeSaid, ScheduleSaid
from ...buffer.board.reason import ReasonCode
from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.board.version import BoardState
from ...buffer.board.version_board import VersionBoard
from ...buffer.board.version_store import store_of
from ...buffer.errors import StoreUnavailable
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...buffer.stream.trace_buffer import TraceBuffer
from ..claim.backlog import Backlog
from ..claim.claim_limiter import ClaimLimiter
from ..claim.intake import KEPT, REFUSED, ByOutcome, Outcome, counts_of
from ..claim.recomputed import kept_with_features, needs_features
from ..config import LearnerConfig
from ..delivery.mlflow_registry import Registry, open_registry
from ..delivery.publisher import prune
from ..delivery.rollout import CanaryLimit
from ..heartbeat import Heartbeat
from ..judging.alarms import paused_by
from ..recovery import open_state
from ..state import checkpoint
from ..state.learner_state import LearnerState
from ..state.stored_checkpoints import StoredCheckpoints
from ..training.device_memory import memory_errors_named
from .learning_report import LearningKind, LearningReport, life_said
from .learning_round import LearningRound

_log = logging.getLogger(__name__)

#: Why a learning round that may claim gets nothing.
_HELD_ELSEWHERE = "another learner holds what is pending"


class Learner:
    """Learns from one speculator's buffer and publishes to its board. One thread; several processes may try at once."""

    def __init__(
        self,
        config: LearnerConfig,
        buffer: TraceBuffer,
        board: VersionBoard,
        *,
        registry: Registry,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """`heartbeat` is the one that beats for this process; without it this learner beats by itself as it works."""
        self._config = config
        self._buffer = buffer
        self._board = board
        self._registry = registry
        self._state: LearnerState | None = None
        self._heartbeat = heartbeat or Heartbeat(config, board, buffer)
        self._limiter = ClaimLimiter(config.max_claim, config.checkpoints_dir / f"attempt-{config.name}.json")
        self._canary_limit = CanaryLimit(config.canary_limit_s)
        self._backlog = Backlog(config)
        self._stored = StoredCheckpoints.of(config)

    def learn_once(self) -> LearningReport:
        """Do one learning round, or return an idle report: too few traces are pending, or another learner is at work.

        Blocks for the whole training. Raises BufferUnavailable, ConfigError, DeviceOutOfMemory and whatever training
        raises; the next call then starts from the last checkpoint with the same traces, as a new process would, and
        claims fewer of them when they may be the cause. LeaseLost when the lease ended meanwhile: nothing more was
        published or acked.
        """
        with self._board.lease(f"learner:{self._config.speculator}", self._config.round_lease_s) as lease:
            if not lease:
                # While another learner learns, what this one remembers becomes outdated.
                self._state = None
                report = _idle(f"another learner of {self._config.speculator} is at work")
                self._heartbeat.beat(report.fill)
                return report
            try:
                # Half a learning round in memory must not be trained on: the state is kept only when all went well.
                with memory_errors_named(self._config):
                    with self._heartbeat.tally.phase("load"):
                        state = self._current_state()
                        self._state = None
                    report = self._round(state, lease)
            except BaseException as failure:  # an interrupt too: what was claimed must be delivered again
                self._limiter.record_failure(failure, lease)
                self._buffer.resume(self._config.name)
                self._heartbeat.fail(failure)
                raise
            self._state = state
            self._limiter.record_success()
        self._count(report)
        life = life_said(state.notes, self._buffer.counts(), state.targets)
        standing = state.schedule.standing(time.time())

        def fill(said: MemberStatus) -> None:
            report.fill(said)
            said.fault = ""
            said.life = life
            said.schedule = msgspec.convert(standing, ScheduleSaid, from_attributes=True)
            said.model_free = msgspec.convert(state.model_free, ModelFreeSaid, from_attributes=True)
            said.pending_registrations = self._registry.pending_registrations
            said.mlflow = self._registry.runs_told() or said.mlflow
            said.mlflow_waiting = self._registry.waiting_told()

        self._heartbeat.beat(fill)
        return report

    def _count(self, report: LearningReport) -> None:
        tally = self._heartbeat.tally
        if report.kind is LearningKind.RESTED:
            tally.record_rest()
        if report.kind is LearningKind.LEARNED:
            promotion = report.promotion
            verdict = promotion.verdict.value if promotion else None
            if promotion and promotion.reason.code is ReasonCode.NOT_STORED:
                verdict = promotion.reason.code.value
            tally.record_learning(report.fit.steps if report.fit else 0, verdict)

    def _current_state(self) -> LearnerState:
        """Return what this learner remembers; opened again when the board lost its data or another one has saved."""
        kept = self._state
        folder = self._config.checkpoints_dir
        board_state = self._board.read()
        if kept is not None and kept.matches_board(board_state) and checkpoint.is_newest(folder, kept.notes):
            return kept
        self._limiter.load_attempt()
        self._adopt_newer(board_state)
        return open_state(self._config, self._buffer, self._board)

    def _round(self, state: LearnerState, lease: Lease) -> LearningReport:
        started = time.perf_counter()
        state.drop_expired(time.time())
        board_state = self._board.read()
        self._canary_limit.end_overdue(self._board, board_state)
        self._register(board_state)
        why_paused = self._why_paused(board_state)
        if why_paused:
            return _idle(why_paused)
        due = self._backlog.due(self._buffer, has_suspects=self._limiter.has_suspects)
        if not due.is_due:
            return _idle(due.why)
        if self._adopt_newer(board_state):
            return _idle("a learner on another disk has learned meanwhile; its checkpoint was fetched")
        with self._heartbeat.tally.phase("claim"):
            claimed = self._claim(state)
        if not any(claimed[outcome] for outcome in KEPT):
            why = "every claimed trace was refused" if any(claimed.values()) else _HELD_ELSEWHERE
            require(lease, "nothing was saved")
            self._ack(claimed, (Outcome.DUPLICATE,))
            self._keep_targets(state)
            self._backlog.finish()
            return replace(_idle(why), outcomes=counts_of(claimed))
        _log.info("learning round starts: %s", due.why)
        work = LearningRound(
            state=state,
            buffer=self._buffer,
            board=self._board,
            board_state=board_state,
            registry=self._registry,
            heartbeat=self._heartbeat,
            lease=lease,
            claimed=claimed,
            may_replay=not self._limiter.has_suspects,
        )
        report = work.run()
        self._store_checkpoint()
        self._ack(work.claimed, (*KEPT, Outcome.DUPLICATE, Outcome.MISREPLAYED))
        self._backlog.finish()
        if report.version is not None:
            self._tidy(state.notes.needed)
        return replace(report, why_now=due.why, seconds=time.perf_counter() - started)

    def _register(self, board_state: BoardState) -> None:
        with self._heartbeat.tally.phase("register"):
            self._registry.sync(board_state, self._board)

    def _why_paused(self, board_state: BoardState) -> str:
        """Return why nothing is claimed now, however many traces are pending; empty when nothing speaks against it."""
        if board_state.canary is not None:  # the next candidate is compared with whatever is live after this canary
            return f"version {board_state.canary} is canary; traces wait until it is decided"
        paused = paused_by(self._board.heartbeats())  # its traces may carry the wrong version's number
        return f"paused by {paused}; traces wait" if paused else ""

    def _claim(self, state: LearnerState) -> ByOutcome:
        """Claim traces and give each its outcome; what is refused is acked here."""
        checkpoint.require_room(self._config.checkpoints_dir)
        self._limiter.forgive_owed(self._buffer.forgive)
        self._limiter.prepare()
        entries = self._buffer.claim(self._config.name, self._limiter.claim_limit, self._limiter.record_claim)
        if not entries:
            self._limiter.record_claim(())
        state.follow(entries)
        claimed = state.sort(entries)
        if needs_features(claimed):
            with self._heartbeat.at_work("recomputing"), self._heartbeat.tally.phase("recompute"):
                claimed = kept_with_features(claimed, state.target_features)
        self._ack(claimed, REFUSED)
        return claimed

    def _keep_targets(self, state: LearnerState) -> None:
        """Save which versions of the target were seen: refused traces count too, towards one that was set back.

        After they are acked: a death in between loses the count of one claim, and never counts a trace twice.
        """
        folder = self._config.checkpoints_dir
        if state.record_targets() and checkpoint.is_newest(folder, state.notes):
            checkpoint.save_notes(folder, state.saved_notes)

    def _adopt_newer(self, board_state: BoardState) -> bool:
        """Whether the store had a newer checkpoint than this disk, which is now the newest here.

        None of an empty board is asked for: its first version comes from the draft that the servers began with.
        """
        if self._stored is None or not board_state.rows:
            return False
        with self._heartbeat.tally.phase("load"):
            return self._stored.adopt_newer(self._config.checkpoints_dir, board_state)

    def _store_checkpoint(self) -> None:
        """Put the newest checkpoint into the store before its traces are acked: nobody else would learn them then.

        Where the store does not take it, the learning round counts all the same: it is on this disk.
        """
        if self._stored is None:
            return
        try:
            with self._heartbeat.tally.phase("publish"):
                self._stored.put(self._config.checkpoints_dir, self._board.read())
        except StoreUnavailable as fault:
            self._heartbeat.tally.record_unstored_checkpoint()
            _log.warning("the checkpoint is on this machine's disk alone until the next learning round: %s", fault)

    def _ack(self, claimed: ByOutcome, outcomes: tuple[Outcome, ...]) -> None:
        for outcome in outcomes:
            if claimed[outcome]:
                self._buffer.ack([entry.entry_id for entry in claimed[outcome]], outcome)

    def _tidy(self, needed: frozenset[int]) -> None:
        """Register this learning round's version with MLflow, which reads its weights, and only then free space."""
        board_state = self._board.read()
        self._register(board_state)
        store = store_of(self._config.buffer)
        gone = prune(self._config.versions_dir, board_state, self._config.kept_versions, needed, store=store)
        if gone:
            _log.info("removed the weights of versions %s from %s", gone, self._config.versions_dir)


def open_learner(config: LearnerConfig, heartbeat: Heartbeat) -> Learner:
    """Connect to Redis and return a learner that has not started a learning round yet.

    Raises BufferUnavailable, and ConfigError where nothing may reach a disk and Redis writes to one.
    """
    client = connect(config.redis_url, config.redis_ca)
    retention.begin(client, config.buffer)
    buffer = RedisTraceBuffer(client, config.buffer)
    board = RedisVersionBoard(client, config.buffer)
    return Learner(config, buffer, board, registry=open_registry(config), heartbeat=heartbeat)


def _idle(why: str) -> LearningReport:
    return LearningReport(kind=LearningKind.IDLE, why=why)
