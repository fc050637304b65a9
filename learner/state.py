"""What a learner stands on between two rounds, and how it is rebuilt after a restart.

Nothing here is the only copy: weights and notes come from the checkpoint, traces from the buffer, versions from
the board. So any fault in a round is answered by throwing the standing away and opening it again.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..buffer.base import TraceBuffer, TraceEntry, VersionBoard, entry_order
from ..buffer.errors import BoardConflict
from ..buffer.trace import DraftTrace
from ..buffer.version import BoardState, DraftVersion, VersionState
from ..policies.acceptance import served_by_request
from ..policies.learn_schedule import LearnDecision, LearnSchedule
from ..policies.promotion import Promotion, Verdict
from ..policies.trace_weighting import is_expired
from . import checkpoint
from .checkpoint import LearnerNotes
from .config import LearnerConfig
from .delivery.publisher import Lineage, publish_initial
from .disk import sweep
from .intake import KEPT, Intake, Outcome, Sorted, sort_entries
from .judging.calibration import Calibration, compare_with_served
from .judging.holdout import Holdout
from .model.draft_cache import DraftCache, first_draft
from .model.draft_io import load_target_embedding
from .training.trainer import DraftTrainer, FitReport, TrainingPlan

_log = logging.getLogger(__name__)

#: Who the board's events name; operators and replicas have their own.
LEARNER = "learner"

#: Draft steps until a trace has shown how many the server drafts.
_FIRST_GUESS_STEPS = 3


@dataclass(slots=True)
class LearnerState:
    """One learner's mutable state; see the module for what it can be rebuilt from."""

    config: LearnerConfig
    trainer: DraftTrainer
    notes: LearnerNotes
    window: deque[TraceEntry]  # learned and rested traces, oldest first
    holdout: Holdout
    shelf: DraftCache
    watch: LearnSchedule

    def matches_board(self, state: BoardState) -> bool:
        """Whether the board still knows the version these weights go on from; one that lost its data does not."""
        return bool(state.rows) and self.notes.parent in {None, *state.rows}

    def sort(self, entries: Sequence[TraceEntry]) -> Sorted:
        """Give each entry its outcome, against the traces this standing holds."""
        seen = {entry.trace.trace_id for entry in self.window} | self.holdout.trace_ids
        config, sizes = self.config, self.trainer.draft.config
        intake = Intake(
            config.target,
            config.trained_target_versions,
            config.holdout_share,
            sizes.feature_width,
            sizes.vocab_size,
            config.trace_ttl_s,
            time.time(),
        )
        return sort_entries(entries, intake, seen)

    def forget_expired(self, now_s: float) -> None:
        """Let go of what is past its time to live; it was counted when it was acked."""
        ttl_s = self.config.trace_ttl_s
        if not ttl_s:
            return

        def is_kept(trace: DraftTrace) -> bool:
            return not is_expired(trace.born_at, now_s, ttl_s)

        self.window = deque((entry for entry in self.window if is_kept(entry.trace)), self.window.maxlen)
        self.holdout.retain(is_kept)

    def decide(self, claimed: Sorted, now_s: float) -> LearnDecision:
        """Show the watch what of `claimed` is kept, oldest first, and ask it whether to learn."""
        self.watch.observe(served_by_request(self._measures(claimed)))
        return self.watch.decide(now_s)

    def compare(self, claimed: Sorted, state: BoardState) -> Calibration:
        """Replay what of `claimed` is kept against what was served."""
        return compare_with_served(self._measures(claimed), state, self.shelf)

    def note_gain(self, fit: FitReport, promotion: Promotion, now_s: float) -> None:
        """Tell the watch what a round that trained has brought."""
        is_better = None if promotion.verdict is Verdict.WAIT else promotion.verdict is Verdict.PROMOTE
        self.watch.learnt(now_s, is_better=is_better, is_warm=not fit.is_cold)

    def note_fate(self, state: BoardState, now_s: float) -> None:
        """Tell the watch when the version these weights were published as last was rolled back."""
        row = state.rows.get(self.notes.parent) if self.notes.parent is not None else None
        if row is not None and row.state is VersionState.ROLLED_BACK:
            self.watch.taken_back(now_s)

    def note_round(
        self, claimed: Sorted, calibration: Calibration, fit: FitReport | None, version: DraftVersion | None
    ) -> None:
        """Bring the notes to the end of a round that trained; `version` is what it published."""
        self._note(claimed, calibration)
        self.notes = replace(
            self.notes,
            round=self.notes.round + 1,
            optimiser_steps=self.notes.optimiser_steps + (fit.steps if fit else 0),
            parent=version.number if version else self.notes.parent,
        )

    def note_rest(self, claimed: Sorted, calibration: Calibration) -> None:
        """Bring the notes to the end of a round that rested."""
        self._note(claimed, calibration)
        self.notes = replace(self.notes, rests=self.notes.rests + 1)

    def note_set_aside(self, claimed: Sorted, calibration: Calibration) -> None:
        """Bring the notes behind a claim of which nothing was kept; a restart must not read it back."""
        self._note(claimed, calibration)
        now = [entry.entry_id for entry in claimed[Outcome.MISREPLAYED]]
        set_aside = [*self.notes.set_aside, *now][-_reach(self.config) :]
        settled = {Outcome.MISREPLAYED.value: now}
        self.notes = replace(self.notes, rests=self.notes.rests + 1, set_aside=set_aside, settled=settled)

    def _note(self, claimed: Sorted, calibration: Calibration) -> None:
        notes = self.notes
        self.notes = replace(
            notes,
            equal=notes.equal + calibration.equal,
            compared=notes.compared + calibration.compared,
            excess=notes.excess + calibration.excess,
            settled={outcome.value: [entry.entry_id for entry in claimed[outcome]] for outcome in KEPT},
            watch=self.watch.state(),
        )

    def _measures(self, claimed: Sorted) -> list[DraftTrace]:
        """Traces of `claimed` that the newest target has judged, oldest first; older ones are no measure of a draft."""
        kept = sorted(
            (entry for outcome in KEPT for entry in claimed[outcome]), key=lambda entry: entry_order(entry.entry_id)
        )
        return [entry.trace for entry in kept if entry.trace.target_version == self.config.target_version]

    def draft_as_served(self, entries: Sequence[TraceEntry]) -> None:
        """Unroll as many steps as the widest drafted chain of `entries`, unless the settings fix the number.

        A server that changed its number of draft steps keeps the weights; the optimiser starts afresh.
        """
        widths = [entry.trace.rounds.drafted.shape[1] for entry in entries if len(entry.trace.rounds)]
        steps = self.config.draft_steps or max(widths, default=0)
        if steps and steps != self.trainer.plan.steps:
            plan = replace(self.trainer.plan, steps=steps)
            versions = self.config.trained_target_versions
            self.trainer = DraftTrainer(self.trainer.draft, plan, target_versions=versions)
            self.notes = replace(self.notes, draft_steps=steps)


def open_standing(config: LearnerConfig, buffer: TraceBuffer, board: VersionBoard) -> LearnerState:
    """Put the initial draft on an empty board, finish what a dead learner left, and rebuild window and holdout.

    For the holder of the speculator's lease only. Raises ConfigError when drafts or target cannot be read.
    """
    sweep(config.versions_dir)
    lineage = Lineage(None, config.target, config.target_version, objective="")
    publish_initial(board, config.versions_dir, config.initial_draft, lineage, by=LEARNER)
    _refuse_unsettled(board)
    embedding, device = load_target_embedding(config.target_path), _device(config.device)
    state = board.read()
    saved = checkpoint.load(config.checkpoints_dir)
    notes = _on_board(saved[0], state) if saved else LearnerNotes(parent=state.live)
    draft = first_draft(state, config.initial_draft, embedding).to(device)
    trainer = DraftTrainer(draft, _plan(config, notes), target_versions=config.trained_target_versions)
    if saved:
        trainer.load(saved[1])
    else:
        # The first round may die behind its publication: its successor must not start from weights that went live
        # with traces that will be claimed again.
        checkpoint.save(config.checkpoints_dir, notes, trainer.save)
    # The saved weights have seen these traces: only their ack is missing.
    for outcome, entry_ids in notes.settled.items():
        buffer.ack(entry_ids, outcome)
    window: deque[TraceEntry] = deque(maxlen=config.replay_traces)
    holdout, shelf = Holdout(config.holdout_requests), DraftCache(embedding, device)
    watch = LearnSchedule(config.learn_rules)
    watch.restore(notes.watch)
    standing = LearnerState(config, trainer, notes, window, holdout, shelf, watch)
    _read_back(standing, buffer)
    return standing


def _on_board(notes: LearnerNotes, state: BoardState) -> LearnerNotes:
    """The notes with a parent that the board knows: one that lost its data begins anew, and so does the lineage."""
    if notes.parent in {None, *state.rows}:
        return notes
    lost = f"version {notes.parent}, which the checkpoint goes on from, is not on the board"
    _log.warning("%s: it lost its data and begins anew; the next version's parent is %s", lost, state.live)
    return replace(notes, parent=state.live)


def _plan(config: LearnerConfig, notes: LearnerNotes) -> TrainingPlan:
    steps = config.draft_steps or notes.draft_steps or _FIRST_GUESS_STEPS
    return TrainingPlan(steps=steps, passes=config.passes, objective=config.objective, seed=config.seed)


def _device(wanted: str) -> torch.device:
    found = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(found if wanted == "auto" else wanted)


def _refuse_unsettled(board: VersionBoard) -> None:
    """Refuse candidates of a learner that died before the gate's word was carried out; its traces come again."""
    state = board.read()
    mine = {event.number for event in board.events() if event.version is not None and event.by == LEARNER}
    for number in sorted(mine):
        if state.rows[number].state is VersionState.CANDIDATE:
            refuse(board, number, "its learner stopped before the gate's word was carried out")


def refuse(board: VersionBoard, number: int, why: str) -> None:
    """Move a candidate to refused; one that somebody else moved meanwhile stays where it is."""
    try:
        board.move(number, VersionState.REFUSED, LEARNER, why)
    except BoardConflict as conflict:
        _log.warning("version %d was moved by somebody else: %s", number, conflict)


def _read_back(standing: LearnerState, buffer: TraceBuffer) -> None:
    set_aside = set(standing.notes.set_aside)
    stored = buffer.replay(_reach(standing.config), acked_only=True)
    found = standing.sort([entry for entry in stored if entry.entry_id not in set_aside])
    standing.window.extend(found[Outcome.LEARNED])
    for entry in found[Outcome.HELD_OUT]:
        standing.holdout.add(entry.trace)


def _reach(config: LearnerConfig) -> int:
    """Stored traces read back: twice what is kept, since requests may have several windows and some were refused."""
    return 2 * (config.replay_traces + math.ceil(config.holdout_requests / config.holdout_share))
