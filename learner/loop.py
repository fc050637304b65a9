"""One round of learning, from claim to ack.

The order is the guarantee. Publish, then checkpoint, then ack: a learner killed before the checkpoint learns the
same traces again from the same weights; killed behind it, its successor finds their outcomes in the checkpoint and
only acks. No trace is lost, learnt twice into the same weights, or counted twice. A learner that lost its lease on
the way publishes nothing and keeps nothing: somebody else may be at work.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ..buffer.base import BufferCounts, TraceBuffer, VersionBoard
from ..buffer.errors import BufferUnavailable, LeaseLost
from ..buffer.lease import Lease, renewed
from ..buffer.version import BoardState, DraftVersion
from ..policies.promotion import Promotion
from . import checkpoint
from .canary import end_overdue
from .caution import Caution
from .config import LearnerConfig
from .delivery import deliver, judge_candidate
from .identity import Calibration, compare_with_served
from .intake import Outcome, Sorted
from .publisher import prune
from .record import record_of
from .registry import Registry
from .report import RoundKind, RoundReport
from .standing import Standing, open_standing
from .trainer import FitReport

_log = logging.getLogger(__name__)

#: Rounds a heartbeat outlives its round by, so that one slow round does not look like a death.
_BEATS_MISSED = 4

_REFUSALS = (Outcome.OTHER_TARGET_VERSION, Outcome.DUPLICATE, Outcome.NO_FEATURES, Outcome.INCOMPATIBLE)


class Learner:
    """Learns from one speculator's buffer and publishes to its board. One thread; several processes may try at once."""

    def __init__(self, config: LearnerConfig, buffer: TraceBuffer, board: VersionBoard, registry: Registry) -> None:
        self._config = config
        self._buffer = buffer
        self._board = board
        self._registry = registry
        self._standing: Standing | None = None
        self._reading: dict[str, object] = {}
        self._caution = Caution(config.max_claim)
        self._trimmed: int | None = None

    def learn_once(self) -> RoundReport:
        """Do one round, or return an idle report when too few traces wait or another learner is at work.

        Blocks for the whole training. Raises BufferUnavailable, ConfigError and whatever training raises; the next
        call then starts from the last checkpoint with the same traces, as a new process would, but takes fewer of them
        at a time. Raises LeaseLost when the lease ended meanwhile: nothing more was published, and nothing was acked.
        """
        with self._board.lease(f"learner:{self._config.speculator}", self._config.round_lease_s) as lease:
            if not lease:
                # What this learner remembers grows old while another one learns.
                self._standing = None
                report = RoundReport(RoundKind.IDLE, f"another learner of {self._config.speculator} is at work")
                self._beat(report.reading(), self._between_rounds_s)
                return report
            try:
                standing, self._standing = self._standing or self._open(), None
                report = self._round(standing, lease)
            except BaseException:  # an interrupt too: what was claimed must be offered again
                self._caution.fail()
                self._buffer.resume(self._config.name)
                raise
            # Kept only when the round ended well: half a round in memory must not be trained on.
            self._standing = standing
            self._caution.succeed()
        self._beat(report.reading() | self._totals(standing), self._between_rounds_s)
        return report

    def _open(self) -> Standing:
        return open_standing(self._config, self._buffer, self._board)

    def _round(self, standing: Standing, lease: Lease) -> RoundReport:
        started = time.perf_counter()
        state = self._board.read()
        end_overdue(self._board, state, self._config.canary_limit_s, time.time())
        mlflow_answers = self._registry.follow(state)
        if state.canary is not None:  # the next candidate is compared with whatever is live behind this one
            return RoundReport(RoundKind.IDLE, f"version {state.canary} is canary; traces wait until it is decided")
        counts = self._buffer.counts()
        self._warn_of_trimmed(counts)
        if counts.pending < self._config.min_new_traces and not self._fills_half(counts):
            why = f"{counts.pending} traces wait, {self._config.min_new_traces} make a round"
            return RoundReport(RoundKind.IDLE, why)
        entries = self._buffer.claim(self._config.name, self._caution.max_claim)
        self._caution.take(entry.entry_id for entry in entries)
        claimed = standing.sort(entries)
        self._ack(claimed, _REFUSALS)
        if not claimed[Outcome.LEARNED] and not claimed[Outcome.HELD_OUT]:
            return RoundReport(RoundKind.IDLE, "nothing claimed could be learnt from", _counts(claimed))
        ttl_s = self._config.round_lease_s
        self._beat({"kind": "learning"}, ttl_s)
        with renewed(partial(self._beat_again, dict(self._reading), ttl_s), ttl_s):
            report = self._learn(standing, state, claimed, lease)
        self._ack(claimed, (Outcome.LEARNED, Outcome.HELD_OUT))
        if report.version is not None:
            self._tidy(mlflow_answers)
        return replace(report, seconds=time.perf_counter() - started)

    def _warn_of_trimmed(self, counts: BufferCounts) -> None:
        lost = counts.trimmed - (counts.trimmed if self._trimmed is None else self._trimmed)
        self._trimmed = counts.trimmed
        if lost > 0:
            _log.warning(
                "%d traces left the buffer unlearnt since the last round; raise PACELINE_BUFFER_MAX_BYTES (%d) "
                "or lower PACELINE_MIN_NEW_TRACES (%d)",
                lost,
                self._config.buffer.max_bytes,
                self._config.min_new_traces,
            )

    def _fills_half(self, counts: BufferCounts) -> bool:
        """Whether what waits fills half of the buffer, by the mean size of its entries: more might never fit."""
        waiting_bytes = counts.bytes * counts.pending / counts.entries if counts.entries else 0.0
        return waiting_bytes >= self._config.buffer.max_bytes / 2

    def _tidy(self, mlflow_answers: bool) -> None:
        """Tell MLflow about the version of this round, then make room; its weights must be there to be told."""
        state = self._board.read()
        if mlflow_answers:
            self._registry.follow(state)
        gone = prune(self._config.versions_dir, state, self._config.kept_versions)
        if gone:
            _log.info("weights of versions %s were removed from %s", gone, self._config.versions_dir)

    def _learn(self, standing: Standing, state: BoardState, claimed: Sorted, lease: Lease) -> RoundReport:
        """Everything between claim and ack; its effects are durable when it returns."""
        learnt, held_out = claimed[Outcome.LEARNED], claimed[Outcome.HELD_OUT]
        standing.draft_as_served([*learnt, *held_out])
        calibration = compare_with_served((entry.trace for entry in [*learnt, *held_out]), state, standing.shelf)
        for entry in held_out:
            standing.holdout.add(entry.trace)
        fit = promotion = version = None
        if learnt:
            replayed = [entry.trace for entry in standing.window]
            fit = standing.trainer.fit([entry.trace for entry in learnt], replayed)
            promotion = judge_candidate(standing, state)
            _require(lease, "nothing was published")
            version = deliver(standing, self._board, state, promotion, learnt)
            standing.window.extend(learnt)
            if version is not None:
                self._hand_in(standing, version, fit, promotion)
        _require(lease, "nothing was saved")
        self._save(standing, claimed, fit, version, calibration)
        number = version.number if version else None
        why = promotion.reason if promotion else "only held-out traces came"
        _log.info("round %d: %d learnt, %d held out; %s", standing.notes.round, len(learnt), len(held_out), why)
        return RoundReport(RoundKind.LEARNED, why, _counts(claimed), fit, promotion, number, calibration)

    def _hand_in(self, standing: Standing, version: DraftVersion, fit: FitReport, promotion: Promotion) -> None:
        plan, first_step = standing.trainer.plan, standing.notes.optimiser_steps
        record = record_of(version, plan, fit, promotion, born_at=time.time(), first_step=first_step)
        self._registry.hand_in(record)

    def _save(
        self,
        standing: Standing,
        claimed: Sorted,
        fit: FitReport | None,
        version: DraftVersion | None,
        calibration: Calibration,
    ) -> None:
        notes = standing.notes
        settled = (Outcome.LEARNED, Outcome.HELD_OUT)
        standing.notes = replace(
            notes,
            round=notes.round + 1,
            optimiser_steps=notes.optimiser_steps + (fit.steps if fit else 0),
            parent=version.number if version else notes.parent,
            equal=notes.equal + calibration.equal,
            compared=notes.compared + calibration.compared,
            excess=notes.excess + calibration.excess,
            settled={outcome.value: [entry.entry_id for entry in claimed[outcome]] for outcome in settled},
        )
        checkpoint.save(self._config.checkpoints_dir, standing.notes, standing.trainer.save)

    def _ack(self, claimed: Sorted, outcomes: tuple[Outcome, ...]) -> None:
        for outcome in outcomes:
            if claimed[outcome]:
                self._buffer.ack([entry.entry_id for entry in claimed[outcome]], outcome)

    def _totals(self, standing: Standing) -> dict[str, object]:
        notes, counts = standing.notes, self._buffer.counts()
        total = Calibration(notes.equal, notes.compared, notes.excess)
        return {
            **{outcome.value: counts.acked.get(outcome, 0) for outcome in Outcome},
            "pending": counts.pending,
            "rounds": notes.round,
            "optimiser_steps": notes.optimiser_steps,
            "identity_equal": total.equal,
            "identity_compared": total.compared,
            "calibration_gap": total.gap,
            "at": time.time(),
        }

    @property
    def _between_rounds_s(self) -> float:
        return self._config.round_interval_s * _BEATS_MISSED

    def _beat_again(self, reading: Mapping[str, object], ttl_s: float) -> None:
        # Redis away for a moment: the round itself notices when it needs it.
        with suppress(BufferUnavailable):
            self._board.beat(f"learner:{self._config.name}", reading, ttl_s)

    def _beat(self, figures: Mapping[str, object], ttl_s: float) -> None:
        """Publish `figures` over the last known ones, so that an idle round does not hide the one before it."""
        self._reading |= figures
        self._board.beat(f"learner:{self._config.name}", self._reading, ttl_s)


def _require(lease: Lease, why: str) -> None:
    if not lease.is_held():
        raise LeaseLost(
            f"lease of the round: got lost, expected held ({why} from here on); was this process suspended, or Redis "
            "away, for longer than PACELINE_ROUND_LEASE_S?"
        )


def _counts(claimed: Sorted) -> dict[str, int]:
    return {outcome.value: len(entries) for outcome, entries in claimed.items() if entries}
