"""What a learner stands on between two rounds, and how it is rebuilt after a restart.

Nothing here is the only copy: weights and notes come from the checkpoint, traces from the buffer, versions from
the board. So any fault in a round is answered by throwing the standing away and opening it again.
"""

import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..buffer.base import TraceBuffer, TraceEntry, VersionBoard
from ..buffer.errors import BoardConflict
from ..buffer.version import BoardState, VersionState
from . import checkpoint
from .checkpoint import Notes
from .config import LearnerConfig
from .disk import folder_of, sweep
from .holdout import Holdout
from .intake import Intake, Outcome, Sorted, sort_entries
from .publisher import Lineage, publish_initial
from .shelf import DraftShelf
from .trainer import DraftTrainer, TrainingPlan
from .weights import load_draft, load_target_embedding

_log = logging.getLogger(__name__)

#: Who the board's events name; operators and replicas have their own.
LEARNER = "learner"

#: Draft steps until a trace has shown how many the server drafts.
_FIRST_GUESS_STEPS = 3


@dataclass(slots=True)
class Standing:
    """One learner's mutable state; see the module for what it can be rebuilt from."""

    config: LearnerConfig
    trainer: DraftTrainer
    notes: Notes
    window: deque[TraceEntry]  # learned traces, oldest first
    holdout: Holdout
    shelf: DraftShelf

    def sort(self, entries: Sequence[TraceEntry]) -> Sorted:
        """Give each entry its outcome, against the traces this standing holds."""
        seen = {entry.trace.trace_id for entry in self.window} | self.holdout.trace_ids
        config, sizes = self.config, self.trainer.draft.config
        intake = Intake(
            config.target, config.target_version, config.holdout_share, sizes.feature_width, sizes.vocab_size
        )
        return sort_entries(entries, intake, seen)

    def draft_as_served(self, entries: Sequence[TraceEntry]) -> None:
        """Unroll as many steps as the widest drafted chain of `entries`, unless the settings fix the number.

        A server that changed its number of draft steps keeps the weights; the optimiser starts afresh.
        """
        widths = [entry.trace.rounds.drafted.shape[1] for entry in entries if len(entry.trace.rounds)]
        steps = self.config.draft_steps or max(widths, default=0)
        if steps and steps != self.trainer.plan.steps:
            self.trainer = DraftTrainer(self.trainer.draft, replace(self.trainer.plan, steps=steps))
            self.notes = replace(self.notes, draft_steps=steps)


def open_standing(config: LearnerConfig, buffer: TraceBuffer, board: VersionBoard) -> Standing:
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
    notes = saved[0] if saved else Notes(parent=state.live)
    draft = load_draft(_first_weights(config, state), embedding).to(device)
    trainer = DraftTrainer(draft, _plan(config, notes))
    if saved:
        trainer.load(saved[1])
    else:
        # The first round may die behind its publication: its successor must not start from weights that went live
        # with traces that will be claimed again.
        checkpoint.save(config.checkpoints_dir, notes, trainer.save)
    # The saved weights have seen these traces: only their ack is missing.
    for outcome, entry_ids in notes.settled.items():
        buffer.ack(entry_ids, outcome)
    window: deque[TraceEntry] = deque(maxlen=config.window_traces)
    holdout, shelf = Holdout(config.holdout_window), DraftShelf(embedding, device)
    standing = Standing(config, trainer, notes, window, holdout, shelf)
    _read_back(standing, buffer)
    return standing


def _first_weights(config: LearnerConfig, state: BoardState) -> Path:
    """Where training starts without a checkpoint: the live version, or the initial draft when that cannot be had."""
    live = state.rows[state.live].version if state.live is not None else None
    folder = folder_of(live) if live is not None else config.initial_draft
    return folder if folder.is_dir() else config.initial_draft


def _plan(config: LearnerConfig, notes: Notes) -> TrainingPlan:
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


def _read_back(standing: Standing, buffer: TraceBuffer) -> None:
    config = standing.config
    # Twice what is kept: requests may have several windows, and the stream also holds refused traces.
    reach = 2 * (config.window_traces + math.ceil(config.holdout_window / config.holdout_share))
    found = standing.sort(list(buffer.replay(reach, acked_only=True)))
    standing.window.extend(found[Outcome.LEARNED])
    for entry in found[Outcome.HELD_OUT]:
        standing.holdout.add(entry.trace)
