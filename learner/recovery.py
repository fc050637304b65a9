"""Opens a learner's state from checkpoint, buffer and board, at a start and after a learning round that failed."""

import logging
from collections import deque
from dataclasses import replace

import torch

from ..buffer.base import TraceBuffer, TraceEntry, VersionBoard
from ..buffer.version import BoardState
from ..policies.learn_schedule import LearnSchedule
from . import checkpoint
from .checkpoint import LearnerNotes
from .config import LearnerConfig
from .delivery.publisher import Lineage, publish_initial
from .delivery.refusals import LEARNER, refuse_undecided
from .disk import sweep
from .intake import Outcome
from .judging.holdout import Holdout
from .model.draft_cache import DraftCache, first_draft
from .model.draft_io import load_target_embedding
from .state import LearnerState
from .training.trainer import DraftTrainer, TrainingPlan

_log = logging.getLogger(__name__)

#: Draft steps until a trace has shown how many the server drafts.
_FIRST_GUESS_STEPS = 3


def open_state(config: LearnerConfig, buffer: TraceBuffer, board: VersionBoard) -> LearnerState:
    """Publish the initial draft on an empty board, finish what a dead learner left, rebuild replay buffer and holdout.

    For the holder of the speculator's lease only. Raises ConfigError when drafts or target cannot be read.
    """
    sweep(config.versions_dir)
    lineage = Lineage(None, config.target, config.target_version, objective="")
    publish_initial(board, config.versions_dir, config.initial_draft, lineage, by=LEARNER)
    refuse_undecided(board)
    embedding, device = load_target_embedding(config.target_path), _device(config.device)
    board_state = board.read()
    saved = checkpoint.load(config.checkpoints_dir)
    notes = _on_board(saved[0], board_state) if saved else LearnerNotes(parent=board_state.live)
    draft = first_draft(board_state, config.initial_draft, embedding).to(device)
    trainer = DraftTrainer(draft, _plan(config, notes), target_versions=config.trained_target_versions)
    if saved:
        trainer.load(saved[1])
    else:
        # The first learning round may die after it published: the next learner claims the same traces, and must not
        # train on them from weights that have learned them and gone live.
        checkpoint.save(config.checkpoints_dir, notes, trainer.save)
    # The saved weights have seen these traces: only their ack is missing.
    for outcome, entry_ids in notes.settled.items():
        buffer.ack(entry_ids, outcome)
    replay_buffer: deque[TraceEntry] = deque(maxlen=config.replay_traces)
    holdout, drafts = Holdout(config.holdout_requests), DraftCache(embedding, device)
    schedule = LearnSchedule(config.learn_rules)
    schedule.restore(notes.schedule)
    state = LearnerState(config, trainer, notes, replay_buffer, holdout, drafts, schedule)
    _read_back(state, buffer)
    return state


def _on_board(notes: LearnerNotes, board_state: BoardState) -> LearnerNotes:
    """The notes with a parent that the board has: on one that lost its data the lineage starts again at live."""
    if notes.parent in {None, *board_state.rows}:
        return notes
    lost = f"version {notes.parent}, which the checkpoint continues from, is not on the board"
    _log.warning("%s: the board lost its data; the next version's parent is %s", lost, board_state.live)
    return replace(notes, parent=board_state.live)


def _plan(config: LearnerConfig, notes: LearnerNotes) -> TrainingPlan:
    steps = config.draft_steps or notes.draft_steps or _FIRST_GUESS_STEPS
    return TrainingPlan(steps, config.passes, config.objective, config.seed, config.batch_tokens)


def _device(wanted: str) -> torch.device:
    found = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(found if wanted == "auto" else wanted)


def _read_back(state: LearnerState, buffer: TraceBuffer) -> None:
    set_aside = set(state.notes.set_aside)
    stored = buffer.replay(state.read_back_traces, acked_only=True)
    found = state.sort([entry for entry in stored if entry.entry_id not in set_aside])
    state.replay_buffer.extend(found[Outcome.LEARNED])
    for entry in found[Outcome.HELD_OUT]:
        state.holdout.add(entry.trace)
