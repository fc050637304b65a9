"""Checkpoints in the store by which drafts travel, so that a learner may go on from another machine's.

    <PACELINE_VERSIONS_URI>/_checkpoints/<speculator>/round-00000012/trainer-<digest>.pt
                                                      round-00000012/stored.json

stored.json comes last: without it nobody sees the folder, which is below no speculator's versions. Its digest finds a
trainer that was damaged or changed; whoever may write to the store may forge both, as they may forge drafts.
"""

import hashlib
import logging
import re
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec

from ...buffer.board import stored_weights
from ...buffer.board.version import BoardState
from ...buffer.board.weights_file import sha256_of
from ...buffer.errors import ConfigError, StoreUnavailable
from ..config import LearnerConfig
from ..disk import write_text
from . import checkpoint
from .checkpoint import TRAINER_FILE, LearnerNotes

_log = logging.getLogger(__name__)

STORED_FILE: Final = "stored.json"
LAYOUT: Final = 1
_ROUND: Final = re.compile(r"round-[0-9]{8}")
_WHAT: Final = "a learner's checkpoint"
_REMOVE: Final = "remove it there: learning then goes on from the one before it, or from the live draft"


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What stored.json says of a checkpoint."""

    layout: int
    rounds_trained: int
    rounds_rested: int
    trainer_sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    parent: int | None  # version that the trainer was last published as
    parent_sha256: str  # digest of that one's weights, by which its board is known; empty: that board had lost it
    notes: str  # what notes.json holds
    notes_sha256: str

    @property
    def trainer(self) -> str:
        """Name of the trainer's file beside it."""
        return _trainer_name(self.trainer_sha256)


class StoredCheckpoints:
    """Those of one speculator below `uri`; every method blocks on the store. Belongs to the worker's thread."""

    def __init__(self, uri: str, kept: int) -> None:
        """The newest is there, and at most `kept` of those before it."""
        self._uri = uri
        self._kept = kept
        self._put: tuple[tuple[Path, int], str] | None = None  # trainer put there last, when it was written; its digest

    @classmethod
    def of(cls, config: LearnerConfig) -> Self | None:
        """Those that the settings name; None without a store."""
        uri = config.buffer.versions_uri.rstrip("/")
        return cls(f"{uri}/_checkpoints/{config.speculator}", config.kept_checkpoints) if uri else None

    @property
    def uri(self) -> str:
        """Where they are."""
        return self._uri

    def put(self, folder: Path, state: BoardState) -> None:
        """Upload the newest checkpoint of `folder`, then remove what is too old; `state` has the version it came from.

        StoreUnavailable: the checkpoints that were there can still be fetched.
        """
        found = checkpoint.newest(folder)
        if found is None:
            return
        notes, trainer = found
        place = f"{self._uri}/{trainer.parent.name}"
        written = (trainer, trainer.stat().st_mtime_ns)
        if self._put is None or self._put[0] != written:  # a rest writes new notes alone
            digest = sha256_of(trainer)
            stored_weights.put_file(trainer, f"{place}/{_trainer_name(digest)}")
            self._put = (written, digest)
        row = state.rows.get(notes.parent) if notes.parent is not None else None
        stored = Stored(
            layout=LAYOUT,
            rounds_trained=notes.rounds_trained,
            rounds_rested=notes.rounds_rested,
            trainer_sha256=self._put[1],
            parent=notes.parent,
            parent_sha256=row.version.sha256 if row else "",
            notes=checkpoint.encode(notes),
            notes_sha256=_digest(checkpoint.encode(notes)),
        )
        file = trainer.with_name(STORED_FILE)
        write_text(file, msgspec.json.encode(stored).decode())
        stored_weights.put_file(file, f"{place}/{STORED_FILE}")
        for name in self._names()[1 + self._kept :]:
            stored_weights.remove(f"{self._uri}/{name}")

    def adopt_newer(self, folder: Path, state: BoardState) -> bool:
        """Make the store's newest checkpoint the newest of `folder` where that has none as new; return whether it did.

        For the holder of the speculator's lease only. ConfigError for a checkpoint that was changed or is of another
        board than `state`'s; StoreUnavailable, but a warning instead where `folder` has one to go on from. Both change
        nothing.
        """
        here = checkpoint.newest(folder)
        try:
            found = self._newest()
            if found is None or (here and (found.rounds_trained, found.rounds_rested) <= _age(here[0])):
                return False
            self._require_board(found, state)
            checkpoint.adopt(folder, found.rounds_trained, lambda new: self._fill(new, found))
        except StoreUnavailable as fault:
            if here is None:
                raise
            _log.warning("learning goes on from this disk's checkpoint: %s", fault)
            return False
        _log.info("fetched the checkpoint of learning round %d from %s", found.rounds_trained, self._uri)
        return True

    def find(self, rounds_trained: int, into: Path) -> tuple[LearnerNotes, Path] | None:
        """As checkpoint.find, fetched into the empty folder `into`. ConfigError where it was changed; StoreUnavailable.

        None where the store does not have it.
        """
        found = self._read(checkpoint.folder_name(rounds_trained))
        if found is None:
            return None
        checkpoint.adopt(into, found.rounds_trained, lambda new: self._fill(new, found))
        return checkpoint.newest(into)

    def _newest(self) -> Stored | None:
        return next((found for name in self._names() if (found := self._read(name))), None)

    def _names(self) -> list[str]:
        """Folders of checkpoints, newest first."""
        return sorted(filter(_ROUND.fullmatch, stored_weights.names(self._uri) or ()), reverse=True)

    def _read(self, name: str) -> Stored | None:
        """What a folder has; None for one whose upload was never finished."""
        place = f"{self._uri}/{name}"
        if STORED_FILE not in (stored_weights.names(place) or ()):
            return None
        raw = bytearray()
        stored_weights.read(f"{place}/{STORED_FILE}", raw.extend, _WHAT)
        try:
            found = msgspec.json.decode(raw, type=Stored)
        except msgspec.DecodeError as fault:
            raise ConfigError(f"{place}/{STORED_FILE}: got {fault}, expected what a learner wrote; {_REMOVE}") from None
        if _digest(found.notes) != found.notes_sha256:
            raise ConfigError(
                f"{place}/{STORED_FILE}: got other notes than its digest is of, expected the same; {_REMOVE}"
            )
        if found.layout != LAYOUT or checkpoint.folder_name(found.rounds_trained) != name:
            raise ConfigError(
                f"{place}: got layout {found.layout} and learning round {found.rounds_trained}, expected {LAYOUT} and "
                f"that of its name; run the release that wrote it, or {_REMOVE}"
            )
        return found

    def _require_board(self, found: Stored, state: BoardState) -> None:
        row = None if found.parent is None else state.rows.get(found.parent)
        if found.parent is not None and (row is None or row.version.sha256 != found.parent_sha256):
            got = "none" if row is None else f"{row.version.sha256[:12]}…"
            raise ConfigError(
                f"{self._uri}/{checkpoint.folder_name(found.rounds_trained)}: goes on from version {found.parent} with "
                f"sha256 {found.parent_sha256[:12]}…, got {got} on this board, expected the same: it is another "
                "board's; remove it there, or give PACELINE_VERSIONS_URI another place"
            )

    def _fill(self, new: Path, found: Stored) -> None:
        place = f"{self._uri}/{checkpoint.folder_name(found.rounds_trained)}"
        with (new / TRAINER_FILE).open("wb") as file:
            got = stored_weights.read(f"{place}/{found.trainer}", file.write, _WHAT)
        if got != found.trainer_sha256:
            raise ConfigError(
                f"{place}/{found.trainer}: got sha256 {got[:12]}…, expected {found.trainer_sha256[:12]}… as a learner "
                f"put it there: it was changed; {_REMOVE}"
            )
        checkpoint.write_notes(new, found.notes)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _trainer_name(sha256: str) -> str:
    return f"trainer-{sha256[:12]}.pt"


def _age(notes: LearnerNotes) -> tuple[int, int]:
    """The greater one is the newer checkpoint."""
    return notes.rounds_trained, notes.rounds_rested
