"""`paceline reproduce N`: fits the draft of a learning round again, and compares it with what was published.

It needs three things that do not last: the checkpoint that the round went on from, here or in the store; the round's
traces in the buffer; and MLflow's record of which traces these were. What is gone is said. On a CPU the digest must be
the published one; a GPU's sums have no fixed order, so there it need not be.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..buffer.board.redis_board import RedisVersionBoard
from ..buffer.board.version import DraftVersion
from ..buffer.board.version_board import VersionBoard
from ..buffer.errors import BoardConflict
from ..buffer.redis_client import connect
from ..buffer.stream.redis_stream import RedisTraceBuffer
from ..buffer.stream.trace_buffer import TraceBuffer, TraceEntry
from .claim.intake import ByOutcome, Outcome
from .claim.recomputed import with_features
from .config import LearnerConfig
from .delivery.pending_registrations import PendingRegistrations, open_pending, read_record
from .delivery.tracking.lookup import asking, find_draft
from .delivery.tracking.runs import REFIT_FILE, read_json
from .model.draft_io import save_draft
from .recovery import device_of, find_models, plan_of, target_features
from .round.learning_blocks import blocks_of, learn
from .state import checkpoint
from .state.learner_state import with_plan
from .state.stored_checkpoints import StoredCheckpoints
from .training.trainer import DraftTrainer, TrainingPlan


@dataclass(frozen=True, slots=True)
class Reproduced:
    """The result; `is_equal` is None where the round could not be fitted again."""

    is_equal: bool | None
    sentence: str


def reproduce_draft(config: LearnerConfig, number: int) -> Reproduced:
    """Connect to Redis and fit draft `number` again; `reproduce` says what it needs and raises."""
    with connect(config.redis_url, config.redis_ca) as client:
        buffer = RedisTraceBuffer(client, config.buffer)
        board = RedisVersionBoard(client, config.buffer)
        return reproduce(config, buffer, board, pending=open_pending(config), number=number)


def reproduce(
    config: LearnerConfig, buffer: TraceBuffer, board: VersionBoard, *, pending: PendingRegistrations, number: int
) -> Reproduced:
    """Fit draft `number` again from `config`'s checkpoints and `buffer`. Publishes nothing, acks nothing.

    Blocks for a whole training. BoardConflict for a number that the board does not have; ConfigError when target or
    draft cannot be read, or the store's checkpoint was changed; StoreUnavailable; TrackingUnavailable when MLflow does
    not answer.
    """
    rows = board.read().rows
    if number not in rows:
        raise BoardConflict(f"draft {number}: got a number that is not on the board, expected one of {[*rows]}")
    version = rows[number].version
    refit = _refit_of(config, pending, version)
    if refit is None:
        return Reproduced(None, f"draft {number}: MLflow has no {REFIT_FILE} of it, so no learning round made it here")
    with TemporaryDirectory() as folder:
        stored = StoredCheckpoints.of(config)
        found = checkpoint.find(config.checkpoints_dir, refit["rounds_trained"])
        if found is None and stored is not None:
            found = stored.find(refit["rounds_trained"], Path(folder))
        if found is None:
            places = f"{config.checkpoints_dir}{f' and from {stored.uri}' if stored else ''}"
            return Reproduced(
                None,
                f"draft {number}: the checkpoint after {refit['rounds_trained']} learning rounds, from which it went "
                f"on, is gone from {places}; PACELINE_KEPT_CHECKPOINTS keeps more of them",
            )
        entries = _entries(buffer, refit)
        wanted = {*refit["learned"], *refit["held_out"], *refit["replayed"]}
        if missing := wanted - entries.keys():
            return Reproduced(
                None,
                f"draft {number}: the buffer no longer holds {len(missing)} of the {len(wanted)} traces of its "
                "learning round; they left by size or age (PACELINE_BUFFER_MAX_BYTES, PACELINE_BUFFER_MAX_AGE_S)",
            )
        notes, trainer_file = found
        digest = _digest(config, board, refit=refit, notes=notes, trainer_file=trainer_file, entries=entries)
    return _compared(version, refit, digest)


def _refit_of(config: LearnerConfig, pending: PendingRegistrations, version: DraftVersion) -> Mapping[str, Any] | None:
    """Return what round_evidence.Refit recorded: on disk while the registration is pending, else in MLflow."""
    for file in pending.files():
        record = read_record(file)
        if record.key == (version.number, version.sha256):
            found: Mapping[str, Any] | None = record.evidence["refit"] if record.evidence else None
            return found
    with asking(config.tracking_uri):
        store, known = find_draft(config.tracking_uri, config.registered_model, version)
        told = read_json(store, known.run, REFIT_FILE)
    return told["refit"] if told else None


def _entries(buffer: TraceBuffer, refit: Mapping[str, Any]) -> dict[str, TraceEntry]:
    wanted = {*refit["learned"], *refit["held_out"], *refit["replayed"]}
    stored = buffer.replay(max(buffer.counts().entries, 1))
    return {entry.entry_id: entry for entry in stored if entry.entry_id in wanted}


def _digest(
    config: LearnerConfig,
    board: VersionBoard,
    *,
    refit: Mapping[str, Any],
    notes: checkpoint.LearnerNotes,
    trainer_file: Path,
    entries: Mapping[str, TraceEntry],
) -> str:
    """Train as the learning round did; the digest of the weights."""
    torch.set_num_threads(refit["threads"])
    plan = TrainingPlan(**refit["plan"])
    device = device_of(config.device)
    draft = find_models(config).first_draft(board).to(device)
    before = replace(plan, steps=plan_of(config, notes).steps)
    trainer = DraftTrainer(draft, before, target_versions=refit["target_versions"])
    trainer.load(trainer_file)
    trainer = trainer if plan == before else with_plan(trainer, plan)
    source = target_features(config, draft.config, device)
    entries = {entry.entry_id: entry for entry in with_features(entries.values(), source)[0]}
    learn(
        trainer,
        blocks_of(_claimed(refit, entries)),
        replayed=[e.trace for e in _in_order(refit["replayed"], entries)],
        judge=None,
    )
    with TemporaryDirectory() as folder:
        return save_draft(trainer.draft, Path(folder))


def _claimed(refit: Mapping[str, Any], entries: Mapping[str, TraceEntry]) -> ByOutcome:
    empty: ByOutcome = {outcome: [] for outcome in Outcome}
    learned, held_out = (_in_order(refit[name], entries) for name in ("learned", "held_out"))
    return {**empty, Outcome.LEARNED: learned, Outcome.HELD_OUT: held_out}


def _in_order(ids: Iterable[str], entries: Mapping[str, TraceEntry]) -> list[TraceEntry]:
    return [entries[entry_id] for entry_id in ids]


def _compared(version: DraftVersion, refit: Mapping[str, Any], got: str) -> Reproduced:
    is_equal = got == version.sha256
    traces = len(refit["learned"])
    told = f"draft {version.number}: fitted again on {traces} fresh and {len(refit['replayed'])} replayed traces"
    if is_equal:
        return Reproduced(True, f"{told}; sha256 {got[:12]}… is the published one")
    why = "on a GPU sums have no fixed order; compare figures" if refit["device"] != "cpu" else "another processor?"
    return Reproduced(False, f"{told}; got sha256 {got[:12]}…, expected {version.sha256[:12]}…: {why}")
