"""Makes MLflow say what the board does: versions, states, cards, weights, aliases, and what drafts served."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ....buffer.board.version import BoardRow, BoardState, VersionState
from ....buffer.board.version_board import VersionBoard
from ....policies.readings.served_drafts import ServedDraft, served_drafts
from ..run_record import VERSION_TAG, Point, RunRecord, record_from_board
from ..version_folders import files_of
from .aliases import set_aliases
from .attempts import Attempts
from .history import Change, histories, went_live_at
from .lineage import log_lineage, predicted_points, served_points
from .logged_models import has_weights, upload, write_model
from .model_card import RunFacts, model_card
from .model_store import (
    BY_TAG,
    GONE,
    LOGGED,
    RUN_TAG,
    STATE_TAG,
    WEIGHTS_TAG,
    Key,
    KnownVersion,
    ModelStore,
    key_of,
    run_path,
)
from .runs import end_run, is_writable, log_points, name_output, run_or_none
from .served_figures import ServedFigures

_log = logging.getLogger(__name__)

#: States of a version that drafts, or did.
_DRAFTED = {VersionState.CANARY, VersionState.LIVE, VersionState.RETIRED, VersionState.ROLLED_BACK}
#: MLflow's own tag whose text its page of a run shows.
_NOTE_TAG = "mlflow.note.content"

WriteRun = Callable[[ModelStore, RunRecord], str]


class BoardMirror:
    """Remembers of MLflow only what saves questions; a new one asks again.

    What MLflow refuses waits among `attempts`, each draft, card and alias by itself. Raises what MLflow's client raises
    where it does not answer.
    """

    def __init__(self, attempts: Attempts, versions: Path | None = None) -> None:
        """`versions` has the weights of those that the board names elsewhere; None: there are none."""
        self._attempts = attempts
        self._versions = versions
        self._served = ServedFigures(attempts)
        self._lineage = set[Point]()  # not yet logged
        self._cards = set[int]()  # of drafts whose card is out of date
        self.runs: dict[int, str] = {}  # of the drafts on the board that MLflow has, when they were compared last

    def register(self, store: ModelStore, record: RunRecord, run: str) -> None:
        """Make the record's version of its `run`, in which everything is logged."""
        number, sha256 = record.key
        model_id = write_model(store, run, number=number, sha256=sha256, params=dict(record.params))
        log_points(store, run, record.summary, model_id)
        name_output(store, run, model_id, record.number)
        end_run(store, run, record.born_at)
        tags = {**record.tags, VERSION_TAG: str(record.number)}
        store.client.create_model_version(
            store.model, source=f"models:/{model_id}", run_id=run, tags=tags, model_id=model_id
        )

    def reflect(
        self,
        store: ModelStore,
        state: BoardState,
        *,
        board: VersionBoard | None,
        write: WriteRun,
        waiting: Collection[int] = (),
    ) -> None:
        """Register what MLflow lacks of the board's versions, and change what differs from the board.

        Not those of the drafts `waiting`, of which a record knows more than the board.
        """
        known = store.versions()
        each = self._attempts.do
        missing = [row for _, row in sorted(state.rows.items()) if key_of(row) not in known]
        for row in (row for row in missing if row.version.number not in waiting):
            each(f"draft {row.version.number}", partial(self._register_row, store, row, write))
        known = store.versions() if missing else known
        rows = [(row, known[key_of(row)]) for row in state.rows.values() if key_of(row) in known]
        changed = [row for row, version in rows if _differs(row, version)]
        logged = self._log_served(store, state, board, known)
        changes = histories(board.events()) if board is not None and (changed or logged or self._cards) else {}
        for row, version in rows:
            if row.state in _DRAFTED and WEIGHTS_TAG not in version.tags:
                act = partial(_upload_weights, store, row, version, self._versions)
                each(f"weights of draft {row.version.number}", act)
        self._log_lineage(store, state, known, changed=changed, changes=changes, logged=logged)
        self._cards |= {row.version.number for row in changed} | logged.keys()
        for row, version in rows:
            number = row.version.number
            card = partial(_describe, store, row, version, changes.get(number, []))
            if number in self._cards and each(f"card of draft {number}", card):
                self._cards.remove(number)
        # Where MLflow is slow, the board has moved on meanwhile.
        set_aliases(store, state if board is None else board.read(), known, self._attempts)
        self.runs = {row.version.number: version.run for row, version in rows}

    def _register_row(self, store: ModelStore, row: BoardRow, write: WriteRun) -> None:
        record = record_from_board(row.version, row.changed_at)
        self.register(store, record, write(store, record))

    def _log_served(
        self, store: ModelStore, state: BoardState, board: VersionBoard | None, known: Mapping[Key, KnownVersion]
    ) -> dict[int, ServedDraft]:
        if board is None:
            return {}
        return self._served.log(store, state, known=known, read=lambda: served_on(board), now_s=board.now())

    def _log_lineage(
        self,
        store: ModelStore,
        state: BoardState,
        known: Mapping[Key, KnownVersion],
        *,
        changed: Sequence[BoardRow],
        changes: Mapping[int, Sequence[Change]],
        logged: Mapping[int, ServedDraft],
    ) -> None:
        points = self._lineage
        for row in changed:
            number = row.version.number
            live_at = went_live_at(changes.get(row.version.number, ()))
            if live_at is not None:
                points.update(predicted_points(number, row.version.scores, live_at))
        for number, served in logged.items():
            row = state.rows[number]
            live_at = went_live_at(changes.get(number, ()))
            if live_at is not None:
                is_all = self._served.is_finished(row)
                points.update(served_points(number, row.version.scores, live_at, served, is_all=is_all))
        shown = [(number, known[key_of(state.rows[number])].run) for number in logged]
        if points and self._attempts.do("the lineage", lambda: log_lineage(store, sorted(points), shown)):
            points.clear()


def served_on(board: VersionBoard) -> dict[int, ServedDraft]:
    """Return what every draft served, from the counters that the board keeps of its members."""
    return served_drafts(entry for member in board.members() for entry in board.history(member))


def _differs(row: BoardRow, known: KnownVersion) -> bool:
    return known.tags.get(STATE_TAG) != row.state.value or not known.description


def _upload_weights(store: ModelStore, row: BoardRow, known: KnownVersion, versions: Path | None) -> None:
    files = files_of(row.version, versions)
    upload(store, known, files)
    is_logged = bool(files) or has_weights(store, known)  # where the version alone was deleted in MLflow
    if not is_logged:
        _log.warning("MLflow: weights of version %d not uploaded, their files are gone", row.version.number)
    store.tag(known, WEIGHTS_TAG, LOGGED if is_logged else GONE)


def _describe(store: ModelStore, row: BoardRow, known: KnownVersion, changes: Sequence[Change]) -> None:
    """The card, of version and run, then the tags: a card that was interrupted is written again."""
    run = run_or_none(store, known.run)
    card = model_card(row, run_facts(store, run), changes, store.model)
    store.client.update_model_version(store.model, known.at, card)
    tags = {STATE_TAG: row.state.value, **({BY_TAG: changes[-1].by} if changes and changes[-1].by else {})}
    if is_writable(run):
        for name, value in {_NOTE_TAG: card, **tags}.items():
            store.client.set_tag(known.run, name, value)
        if RUN_TAG in known.tags:
            store.client.delete_model_version_tag(store.model, known.at, RUN_TAG)
    elif RUN_TAG not in known.tags:
        _say_run_is_gone(store, row.version.number, known, run)
    for name, value in reversed(tags.items()):
        store.tag(known, name, value)


def _say_run_is_gone(store: ModelStore, number: int, known: KnownVersion, run: Any | None) -> None:
    """A run that somebody deletes stays deleted: nothing but its own page needs it."""
    seen = datetime.now(UTC).isoformat(timespec="seconds")
    back = "for good" if run is None else f"and can be restored: mlflow runs restore --run-id {known.run}"
    text = f"deleted in MLflow, {back}; seen at {seen}, and left so"
    _log.warning("MLflow: run of draft %d: %s", number, text)
    store.tag(known, RUN_TAG, text)


def run_facts(store: ModelStore, found: Any | None) -> RunFacts:
    """Return what a run holds, for its card; nothing of one that is gone."""
    if found is None:
        return RunFacts()
    traffic = {told.dataset.name: {tag.key: tag.value for tag in told.tags} for told in found.inputs.dataset_inputs}
    began = found.info.start_time
    ended = found.info.end_time
    return RunFacts(
        params={**found.data.params, **_without_prefix(found.data.tags)},
        metrics=found.data.metrics,
        started_at=None if began is None else began / 1000,
        ended_at=None if ended is None else ended / 1000,
        traffic=traffic,
        link=run_path(store.experiment, found.info.run_id) if is_writable(found) else "",
    )


def _without_prefix(tags: Mapping[str, str]) -> dict[str, Any]:
    prefix = "paceline."
    return {name.removeprefix(prefix): value for name, value in tags.items() if name.startswith(prefix)}
