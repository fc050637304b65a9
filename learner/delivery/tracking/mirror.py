"""Makes MLflow say what the board does: versions, states, cards, weights, aliases, and what drafts served."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....buffer.base import VersionBoard
from ....buffer.version import BoardRow, BoardState, VersionState
from ....policies.readings.served_drafts import ServedDraft, served_drafts
from ..run_record import VERSION_TAG, RunRecord, record_from_board
from ..version_folders import files_of
from .aliases import set_aliases
from .history import Change, histories, went_live_at
from .lineage import lineage_run, log_calibration, predicted_points, served_points
from .links import run_path
from .logged_models import upload, write_model
from .model_card import RunFacts, model_card
from .model_store import BY_TAG, GONE, LOGGED, STATE_TAG, WEIGHTS_TAG, Key, KnownVersion, ModelStore, key_of
from .runs import end_run, log_points, name_output
from .served_figures import ServedFigures

_log = logging.getLogger(__name__)

#: States of a version that drafts, or did.
_DRAFTED = {VersionState.CANARY, VersionState.LIVE, VersionState.RETIRED, VersionState.ROLLED_BACK}
#: MLflow's own tag whose text its page of a run shows.
_NOTE_TAG = "mlflow.note.content"

WriteRun = Callable[[ModelStore, RunRecord], str]


class BoardMirror:
    """Remembers of MLflow only what saves questions; a new one asks again. Raises what MLflow's client raises."""

    def __init__(self) -> None:
        self._served = ServedFigures()
        self.runs: dict[int, str] = {}  # of the drafts on the board that MLflow has, when they were compared last

    def register(self, store: ModelStore, record: RunRecord, run: str) -> None:
        """Make the record's version of its `run`, in which everything is logged."""
        model_id = write_model(store, run, *record.key, dict(record.params))
        log_points(store, run, record.summary, model_id)
        name_output(store, run, model_id, record.number)
        end_run(store, run, record.born_at)
        tags = {**record.tags, VERSION_TAG: str(record.number)}
        store.client.create_model_version(
            store.model, source=f"models:/{model_id}", run_id=run, tags=tags, model_id=model_id
        )

    def reflect(self, store: ModelStore, state: BoardState, board: VersionBoard | None, write: WriteRun) -> None:
        """Register what MLflow lacks of the board's versions, and change what differs from the board."""
        known = store.versions()
        missing = [row for _, row in sorted(state.rows.items()) if key_of(row) not in known]
        for row in missing:
            record = record_from_board(row.version, row.changed_at)
            self.register(store, record, write(store, record))
        known = store.versions() if missing else known
        changed = [row for row in state.rows.values() if _differs(row, known.get(key_of(row)))]
        logged = self._log_served(store, state, board, known)
        changes = histories(board.events()) if board is not None and (changed or logged) else {}
        for row in changed:
            _upload_weights(store, row, known[key_of(row)])
        self._log_lineage(store, state, known, changed, changes, logged)
        for row in {row.version.number: row for row in [*changed, *(state.rows[n] for n in logged)]}.values():
            _describe(store, row, known[key_of(row)], changes.get(row.version.number, []))
        set_aliases(store, state, known)
        self.runs = {number: known[key_of(row)].run for number, row in state.rows.items() if key_of(row) in known}

    def _log_served(
        self, store: ModelStore, state: BoardState, board: VersionBoard | None, known: Mapping[Key, KnownVersion]
    ) -> dict[int, ServedDraft]:
        if board is None:
            return {}
        return self._served.log(store, state, known, lambda: served_on(board), board.now())

    def _log_lineage(
        self,
        store: ModelStore,
        state: BoardState,
        known: Mapping[Key, KnownVersion],
        changed: Sequence[BoardRow],
        changes: Mapping[int, Sequence[Change]],
        logged: Mapping[int, ServedDraft],
    ) -> None:
        points = []
        for row in changed:
            number, live_at = row.version.number, went_live_at(changes.get(row.version.number, ()))
            if live_at is not None:
                points += predicted_points(number, row.version.scores, live_at)
        for number, served in logged.items():
            row = state.rows[number]
            live_at = went_live_at(changes.get(number, ()))
            if live_at is not None:
                is_all = self._served.is_finished(row)
                points += served_points(number, row.version.scores, live_at, served, is_all=is_all)
        if not points:
            return
        run = lineage_run(store, min(point.at for point in points))
        log_points(store, run, points)
        log_calibration(store, run, [(number, known[key_of(state.rows[number])].run) for number in logged])


def served_on(board: VersionBoard) -> dict[int, ServedDraft]:
    """What every draft served, from the counters that the board keeps of its members."""
    return served_drafts(entry for member in board.members() for entry in board.history(member))


def _differs(row: BoardRow, known: KnownVersion | None) -> bool:
    return known is not None and (known.tags.get(STATE_TAG) != row.state.value or not known.description)


def _upload_weights(store: ModelStore, row: BoardRow, known: KnownVersion) -> None:
    if row.state not in _DRAFTED or WEIGHTS_TAG in known.tags:
        return
    files = files_of(row.version)
    upload(store, known, files)
    if not files:
        _log.warning("MLflow: weights of version %d not uploaded, their files are gone", row.version.number)
    store.tag(known, WEIGHTS_TAG, LOGGED if files else GONE)


def _describe(store: ModelStore, row: BoardRow, known: KnownVersion, changes: Sequence[Change]) -> None:
    """The card, of version and run, then the tags: a card that was interrupted is written again."""
    card = model_card(row, run_facts(store, known.run), changes, store.model)
    store.client.update_model_version(store.model, known.at, card)
    store.client.set_tag(known.run, _NOTE_TAG, card)
    tags = {STATE_TAG: row.state.value, **({BY_TAG: changes[-1].by} if changes else {})}
    for name, value in tags.items():
        store.client.set_tag(known.run, name, value)
    for name, value in reversed(tags.items()):
        store.tag(known, name, value)


def run_facts(store: ModelStore, run: str) -> RunFacts:
    """What a run holds, for its card."""
    found = store.client.get_run(run)
    traffic = {told.dataset.name: {tag.key: tag.value for tag in told.tags} for told in found.inputs.dataset_inputs}
    began, ended = found.info.start_time, found.info.end_time
    return RunFacts(
        {**found.data.params, **_without_prefix(found.data.tags)},
        found.data.metrics,
        None if began is None else began / 1000,
        None if ended is None else ended / 1000,
        traffic,
        run_path(store.experiment, run),
    )


def _without_prefix(tags: Mapping[str, str]) -> dict[str, Any]:
    prefix = "paceline."
    return {name.removeprefix(prefix): value for name, value in tags.items() if name.startswith(prefix)}
