"""MLflow: every version is a run and a registered model version; aliases follow the board.

MLflow is a view for people, never a step of delivery: versions are published without it. What it has not recorded yet
is pending on disk and registered later; registering twice changes nothing, since a version is known by number and
digest together. Weights are uploaded only for versions that drafted somewhere.
"""

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ...buffer.version import BoardRow, BoardState, VersionState
from ..config import quiet_mlflow
from .pending_registrations import PendingRegistrations, read_record
from .run_record import SHA256_TAG, VERSION_TAG, RunRecord, record_from_board
from .version_folders import files_of

_log = logging.getLogger(__name__)

STATE_TAG = "paceline.state"
#: On a version that drafted: "logged", or "gone" when its folder was removed before MLflow could record it.
WEIGHTS_TAG = "paceline.weights"

#: Wait after MLflow failed to answer; it doubles with every further failure. The longest is short of the time in which
#: as many versions as stay on disk by default can be published, for a registration brings the weights along.
FIRST_RETRY_S = 60.0
LONGEST_RETRY_S = 240.0

#: States of a version that drafts, or did.
_DRAFTED = {VersionState.CANARY, VersionState.LIVE, VersionState.RETIRED, VersionState.ROLLED_BACK}
#: States of a version that may still go live without an operator.
_CANDIDATES = {VersionState.CANDIDATE, VersionState.CANARY}

#: MLflow refuses more metrics in one call.
_BATCH_METRICS = 1_000

#: Folder of the weights among a run's artifacts.
_DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class _ModelVersion:
    """A version as MLflow holds it."""

    at: str  # MLflow's own number of it
    run: str
    tags: Mapping[str, str]


class Registry:
    """One registered model in MLflow, and the registrations that are pending.

    No call raises because MLflow is unreachable or refuses: that is logged, and MLflow is asked again only after
    FIRST_RETRY_S, twice as long after every further failure, at most LONGEST_RETRY_S; an answer resets the wait.
    """

    def __init__(
        self,
        tracking_uri: str,
        model: str,
        pending: PendingRegistrations,
        artifacts: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`artifacts` is where runs keep files when `tracking_uri` is a database; a server keeps its own."""
        self._uri = tracking_uri
        self._model = model
        self._pending = pending
        self._artifacts = artifacts
        self._clock = clock
        self._retry_s = 0.0  # the wait after the last failure; 0: none since the last answer
        self._asks_again_at_s = -float("inf")
        self._client: Any = None
        self._experiment = ""
        self._synced_event = ""

    @property
    def pending_registrations(self) -> int:
        """Versions that are published and not yet recorded by MLflow."""
        return len(self._pending)

    def enqueue(self, record: RunRecord) -> None:
        """Make a record pending; it is on disk when this returns. OSError on a full disk."""
        self._pending.add(record)

    def sync(self, state: BoardState) -> bool:
        """Register what is pending, then make aliases and state tags those of the board; whether all of it is done.

        Aliases are live, previous and candidate. A version without a record (the initial draft, one an operator put on
        the board) is registered with what the board knows. Blocks while MLflow answers, and for up to a minute when it
        does not; returns at once, without asking, when nothing has changed or the wait after a failure is not over.
        """
        if self._synced_event and self._synced_event == state.last_event_id and not len(self._pending):
            return True
        if self._clock() < self._asks_again_at_s:
            return False
        is_done = self._attempt(lambda: self._sync(state))
        self._synced_event = state.last_event_id if is_done else ""
        return is_done

    def _attempt(self, act: Callable[[], None]) -> bool:
        quiet_mlflow()
        try:
            with warnings.catch_warnings():
                # MLflow's own table definitions use a loader that SQLAlchemy 2.1 is about to drop.
                warnings.filterwarnings("ignore", message="The ``noload`` loader strategy")
                self._connect()
                act()
        except Exception as error:  # noqa: BLE001 - MLflow passes on whatever its store raises; none may stop delivery
            self._retry_s = min(2 * self._retry_s or FIRST_RETRY_S, LONGEST_RETRY_S)
            self._asks_again_at_s = self._clock() + self._retry_s
            pending = len(self._pending)
            _log.warning("MLflow: %.300s; %d registrations pending, next try in %g s", error, pending, self._retry_s)
            self._client = None
            return False
        self._retry_s = 0.0
        return True

    def _connect(self) -> None:
        if self._client is not None:
            return
        self._artifacts.mkdir(parents=True, exist_ok=True)
        client = import_module("mlflow").MlflowClient(tracking_uri=self._uri, registry_uri=self._uri)
        known = client.get_experiment_by_name(self._model)
        location = None if self._uri.startswith(("http://", "https://")) else self._artifacts.absolute().as_uri()
        self._experiment = known.experiment_id if known else client.create_experiment(self._model, location)
        if not client.search_registered_models(filter_string=f"name='{self._model}'"):
            client.create_registered_model(self._model, description="Draft versions of one paceline speculator")
        self._client = client

    def _register(self, record: RunRecord) -> None:
        run = self._run_of(record)
        self._client.set_terminated(run)
        tags = {**record.tags, VERSION_TAG: str(record.number)}
        self._client.create_model_version(self._model, source=f"runs:/{run}/{_DRAFT}", run_id=run, tags=tags)

    def _run_of(self, record: RunRecord) -> str:
        """The version's run with everything logged; a run that an interrupted attempt began is completed."""
        number, sha256 = record.key
        by_tag = f"tags.`{VERSION_TAG}` = '{number}' and tags.`{SHA256_TAG}` = '{sha256}'"
        begun = self._client.search_runs([self._experiment], by_tag, max_results=1)
        tags = {**record.tags, VERSION_TAG: str(record.number)}
        started_ms = int(record.born_at * 1000)
        run = begun[0] if begun else self._client.create_run(self._experiment, started_ms, tags, f"v{record.number}")
        run_id: str = run.info.run_id
        entities = import_module("mlflow.entities")
        metrics = [entities.Metric(key, value, started_ms, step) for key, value, step in record.points()]
        params = [entities.Param(key, value) for key, value in record.params.items()]
        self._client.log_batch(run_id, params=params)
        for first in range(0, len(metrics), _BATCH_METRICS):
            self._client.log_batch(run_id, metrics=metrics[first : first + _BATCH_METRICS])
        return run_id

    def _sync(self, state: BoardState) -> None:
        registered = self._model_versions().keys()
        for file in self._pending.files():
            record = read_record(file)
            if record.key not in registered:
                self._register(record)
            file.unlink()
        known = self._model_versions()
        missing = [row for _, row in sorted(state.rows.items()) if _key(row) not in known]
        for row in missing:
            self._register(record_from_board(row.version, row.changed_at))
        known = self._model_versions() if missing else known
        on_board = {number: known[_key(row)] for number, row in state.rows.items() if _key(row) in known}
        for number, model_version in on_board.items():
            self._describe(state.rows[number], model_version)
        aliases = _aliases(state).items()
        self._set_aliases({alias: on_board[number].at for alias, number in aliases if number in on_board})

    def _describe(self, row: BoardRow, known: _ModelVersion) -> None:
        if row.state in _DRAFTED and WEIGHTS_TAG not in known.tags:
            files = files_of(row.version)
            for file in files:
                self._client.log_artifact(known.run, str(file), _DRAFT)
            if not files:
                _log.warning("MLflow: weights of version %d not uploaded, their files are gone", row.version.number)
            self._client.set_model_version_tag(self._model, known.at, WEIGHTS_TAG, "logged" if files else "gone")
        if known.tags.get(STATE_TAG) != row.state.value:
            self._client.set_model_version_tag(self._model, known.at, STATE_TAG, row.state.value)

    def _set_aliases(self, wanted: Mapping[str, str]) -> None:
        set_now = {alias: str(at) for alias, at in self._client.get_registered_model(self._model).aliases.items()}
        for alias in set_now.keys() - wanted.keys():
            self._client.delete_registered_model_alias(self._model, alias)
        for alias, registered in wanted.items():
            if set_now.get(alias) != registered:
                self._client.set_registered_model_alias(self._model, alias, registered)

    def _model_versions(self) -> dict[tuple[int, str], _ModelVersion]:
        """Number and digest -> what MLflow holds."""
        found: dict[tuple[int, str], _ModelVersion] = {}
        page = ""
        while True:
            rows = self._client.search_model_versions(f"name='{self._model}'", page_token=page or None)
            for row in (row for row in rows if VERSION_TAG in row.tags):
                key = int(row.tags[VERSION_TAG]), row.tags.get(SHA256_TAG, "")
                found[key] = _ModelVersion(str(row.version), row.run_id, row.tags)
            page = rows.token
            if not page:
                return found


def _key(row: BoardRow) -> tuple[int, str]:
    return row.version.number, row.version.sha256


def _aliases(state: BoardState) -> dict[str, int]:
    """Alias -> version number, without those that no version has; `candidate` is the newest candidate."""
    candidates = [number for number, row in state.rows.items() if row.state in _CANDIDATES]
    numbers = {"live": state.live, "previous": state.previous, "candidate": max(candidates, default=None)}
    return {alias: number for alias, number in numbers.items() if number is not None}
