"""Opens a learner's state from checkpoint, buffer and board, at a start and after a learning round that failed."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from ..buffer.board.version import BoardState
from ..buffer.board.version_board import VersionBoard
from ..buffer.board.version_store import store_of
from ..buffer.drafts.checkpoint import local_folder
from ..buffer.drafts.single_file import draft_folder
from ..buffer.errors import ConfigError
from ..buffer.stream.trace_buffer import TraceBuffer
from .config import LearnerConfig
from .delivery.publisher import Lineage, publish_initial
from .delivery.rollout import LEARNER, refuse_undecided
from .delivery.version_folders import published_folder
from .disk import sweep
from .model.draft import Draft
from .model.draft_cache import DraftCache, FindWeights, first_draft
from .model.draft_config import DraftConfig
from .model.draft_io import load_target_embedding, load_target_head
from .model.target_features import TargetFeatures
from .state import checkpoint
from .state.checkpoint import LearnerNotes
from .state.learner_state import LearnerState
from .training.plan import TrainingPlan
from .training.trainer import DraftTrainer

_log = logging.getLogger(__name__)

#: Draft steps until a trace has shown how many the server drafts.
_FIRST_GUESS_STEPS = 3


def check_models(config: LearnerConfig, board: VersionBoard) -> None:
    """Load target and draft once. ConfigError, as in every learning round, when they cannot be learned with.

    For a worker's start: nothing is published, and what was loaded is let go.
    """
    draft = find_models(config).first_draft(board)
    target_features(config, draft.config, torch.device("cpu"))


def open_state(config: LearnerConfig, buffer: TraceBuffer, board: VersionBoard) -> LearnerState:
    """Publish the initial draft on an empty board, finish what a dead learner left, rebuild the replay buffer.

    For the holder of the speculator's lease only. Raises ConfigError when drafts or target cannot be read.
    """
    sweep(config.versions_dir)
    models = find_models(config)
    device = device_of(config.device)
    draft = models.first_draft(board).to(device)  # what cannot be learned is not published either
    features = target_features(config, draft.config, device)
    if features is not None:
        features.load()  # before traces are claimed, which would be blamed for a target that cannot be loaded
    saved = checkpoint.load(config.checkpoints_dir)
    targets = config.target_history()
    targets.restore(saved[0].targets if saved else {})
    lineage = Lineage(parent=None, target=config.target, target_version=targets.newest or "", objective="")
    publish_initial(board, config.versions_dir, models.initial, lineage, by=LEARNER, store=store_of(config.buffer))
    refuse_undecided(board)
    board_state = board.read()
    notes = _on_board(saved[0], board_state) if saved else LearnerNotes(parent=board_state.live)
    trainer = DraftTrainer(draft, plan_of(config, notes), target_versions=targets.trained)
    if saved:
        trainer.load(saved[1])
    else:
        # The first learning round may die after it published: the next learner claims the same traces, and must not
        # train on them from weights that have learned them and gone live.
        checkpoint.save(config.checkpoints_dir, notes, trainer.save)
    # The saved weights have seen these traces: only their ack is missing.
    for outcome, entry_ids in notes.settled.items():
        buffer.ack(entry_ids, outcome)
    state = LearnerState(
        config=config,
        trainer=trainer,
        notes=notes,
        drafts=DraftCache(models.embedding, device, head=models.head, find=models.find),
        targets=targets,
        target_features=features,
    )
    state.read_back(buffer)
    return state


@dataclass(frozen=True, slots=True)
class Models:
    """The models of a speculator, on the CPU."""

    initial: Callable[[], Path]  # finds the draft that the servers were started with
    embedding: Tensor  # of the target
    head: Callable[[], Tensor]  # of the target: large, and most drafts have their own
    find: FindWeights  # of published versions

    def first_draft(self, board: VersionBoard) -> Draft:
        """Return what training starts from without a checkpoint; see draft_cache.first_draft."""
        return first_draft(board.read(), self.initial, self.embedding, self.head, find=self.find)


def find_models(config: LearnerConfig) -> Models:
    """Return what the settings name. ConfigError, naming the setting, where there is no such model."""
    target = _folder_named_by("TARGET_PATH", local_folder, config.target_path)
    initial = partial(_folder_named_by, "DRAFT", draft_folder, config.initial_draft, config.cache_dir)
    find = partial(published_folder, versions=config.versions_dir, store=store_of(config.buffer))
    return Models(initial, load_target_embedding(target), cache(partial(load_target_head, target)), find)


def target_features(config: LearnerConfig, draft: DraftConfig, device: torch.device) -> TargetFeatures | None:
    """Return what recomputes the features that `draft` reads; None where the settings let nobody. Loads no weights.

    ConfigError, naming the setting, where there is no such target, or it is none of `draft`'s.
    """
    if config.recomputed_version is None:
        return None
    target = _folder_named_by("TARGET_PATH", local_folder, config.target_path)
    try:
        return TargetFeatures(target, draft, device, config.recompute_tokens)
    except ConfigError as error:
        raise ConfigError(f"PACELINE_TARGET_PATH: {error}") from error


def _folder_named_by(setting: str, find: Callable[..., Path], *given: Path) -> Path:
    """Return what `find` finds; its ConfigError names the setting."""
    try:
        return find(*given)
    except ConfigError as error:
        raise ConfigError(f"PACELINE_{setting}: {error}") from error


def _on_board(notes: LearnerNotes, board_state: BoardState) -> LearnerNotes:
    """The notes with a parent that the board has: on one that lost its data the lineage starts again at live."""
    if notes.parent in {None, *board_state.rows}:
        return notes
    lost = f"version {notes.parent}, which the checkpoint continues from, is not on the board"
    _log.warning("%s: the board lost its data; the next version's parent is %s", lost, board_state.live)
    return replace(notes, parent=board_state.live)


def plan_of(config: LearnerConfig, notes: LearnerNotes) -> TrainingPlan:
    """Return how a learner trains that continues from `notes`."""
    steps = config.draft_steps or notes.draft_steps or _FIRST_GUESS_STEPS
    return TrainingPlan(
        steps=steps,
        passes=config.passes,
        objective=config.objective,
        seed=config.seed,
        batch_tokens=config.batch_tokens,
        context_weight=config.context_weight,
    )


def device_of(wanted: str) -> torch.device:
    """The device that the setting DEVICE means."""
    found = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(found if wanted == "auto" else wanted)
