"""MLflow: every version is a run and a registered model version; aliases follow the board.

MLflow is a window for people, never a step of delivery: a version is published without it. What it has not been
told lies in an outbox on disk and is told at a later round. Telling is idempotent: a version is known by its number
and its digest together, since numbers begin anew on a board that lost its data. Weights are kept there for versions
that drafted somewhere; the others are figures only.
"""

import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ...buffer.version import BoardRow, BoardState, DraftVersion, VersionState
from ..config import quiet_mlflow
from ..disk import files_of, write_text
from .code_version import code_version

_log = logging.getLogger(__name__)

VERSION_TAG = "paceline.version"
STATE_TAG = "paceline.state"
SHA256_TAG = "paceline.sha256"
CODE_TAG = "paceline.code_version"
#: Of a version that drafted: "logged", or "gone" when its folder was removed before MLflow could be told.
WEIGHTS_TAG = "paceline.weights"

#: States of a version that drafts, or did.
_DRAFTED = {VersionState.CANARY, VersionState.LIVE, VersionState.RETIRED, VersionState.ROLLED_BACK}
#: States of a version that may still go live by the loop's own doing.
_CANDIDATES = {VersionState.CANDIDATE, VersionState.CANARY}

#: MLflow refuses more metrics in one call.
_BATCH_METRICS = 1_000

#: Folder of the weights among a run's artifacts.
_DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All that MLflow is told about one version; plain values, so that it can wait on disk as JSON."""

    number: int
    born_at: float  # unix seconds
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)  # one value each, at the last step
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)  # one value per step
    first_step: int = 0  # step of the curves' first value, counted over the learner's life

    @property
    def key(self) -> tuple[int, str]:
        """What the version is known by: its number and its digest."""
        return self.number, self.tags.get(SHA256_TAG, "")


@dataclass(frozen=True, slots=True)
class _Told:
    """A model version as MLflow holds it."""

    at: str  # MLflow's own number of it
    run: str
    tags: Mapping[str, str]


class Registry:
    """One registered model in MLflow, with the outbox of what it has not been told yet.

    No call raises because MLflow is unreachable or refuses: that is logged and tried again at the next call.
    """

    def __init__(self, tracking_uri: str, model: str, outbox: Path, artifacts: Path) -> None:
        """`artifacts` is where runs keep files when `tracking_uri` is a database; a server keeps its own."""
        self._uri = tracking_uri
        self._model = model
        self._outbox = outbox
        self._artifacts = artifacts
        self._client: Any = None
        self._experiment = ""
        self._followed = ""

    def hand_in(self, record: RunRecord) -> None:
        """Put a record into the outbox; it is on disk when this returns."""
        write_text(self._outbox / f"v{record.number:06d}.json", json.dumps(asdict(record)))

    def follow(self, state: BoardState) -> bool:
        """Tell MLflow about the outbox, then make aliases and state tags those of the board; whether MLflow agreed.

        Aliases are live, previous and candidate. A version that nobody handed in (the initial draft, one put on
        the board by hand) is registered with what the board knows. Blocks while MLflow answers; up to a minute
        when it is away.
        """
        if self._followed and self._followed == state.last_event_id and not self._waiting():
            return True
        agreed = self._attempt(lambda: self._follow(state))
        self._followed = state.last_event_id if agreed else ""
        return agreed

    def _waiting(self) -> list[Path]:
        return sorted(self._outbox.glob("v*.json"))

    def _attempt(self, act: Callable[[], None]) -> bool:
        quiet_mlflow()
        try:
            with warnings.catch_warnings():
                # MLflow's own table definitions use a loader that SQLAlchemy 2.1 is about to drop.
                warnings.filterwarnings("ignore", message="The ``noload`` loader strategy")
                self._connect()
                act()
        except Exception as error:  # noqa: BLE001 - MLflow passes on whatever its store raises; none may stop delivery
            waiting = len(self._waiting())
            _log.warning("MLflow: %.300s; %d versions wait to be told at the next round", error, waiting)
            self._client = None
            return False
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
        """The version's run with everything logged; one that an interrupted attempt began is taken up again."""
        number, sha256 = record.key
        by_tag = f"tags.`{VERSION_TAG}` = '{number}' and tags.`{SHA256_TAG}` = '{sha256}'"
        begun = self._client.search_runs([self._experiment], by_tag, max_results=1)
        tags = {**record.tags, VERSION_TAG: str(record.number)}
        started_ms = int(record.born_at * 1000)
        run = begun[0] if begun else self._client.create_run(self._experiment, started_ms, tags, f"v{record.number}")
        run_id: str = run.info.run_id
        entities = import_module("mlflow.entities")
        metrics = [
            entities.Metric(key, value, started_ms, record.first_step + step) for key, value, step in _points(record)
        ]
        params = [entities.Param(key, value) for key, value in record.params.items()]
        self._client.log_batch(run_id, params=params)
        for first in range(0, len(metrics), _BATCH_METRICS):
            self._client.log_batch(run_id, metrics=metrics[first : first + _BATCH_METRICS])
        return run_id

    def _follow(self, state: BoardState) -> None:
        told = self._model_versions().keys()
        for path in self._waiting():
            record = RunRecord(**json.loads(path.read_text(encoding="utf-8")))
            if record.key not in told:
                self._register(record)
            path.unlink()
        known = self._model_versions()
        missing = [row for _, row in sorted(state.rows.items()) if _key(row) not in known]
        for row in missing:
            self._register(_bare_record(row.version, row.changed_at))
        known = self._model_versions() if missing else known
        here = {number: known[_key(row)] for number, row in state.rows.items() if _key(row) in known}
        for number, told_row in here.items():
            self._describe(state.rows[number], told_row)
        self._set_aliases({alias: here[number].at for alias, number in _aliases(state).items() if number in here})

    def _describe(self, row: BoardRow, told: _Told) -> None:
        if row.state in _DRAFTED and WEIGHTS_TAG not in told.tags:
            files = files_of(row.version)
            for file in files:
                self._client.log_artifact(told.run, str(file), _DRAFT)
            if not files:
                _log.warning("MLflow gets no weights of version %d: they are gone", row.version.number)
            self._client.set_model_version_tag(self._model, told.at, WEIGHTS_TAG, "logged" if files else "gone")
        if told.tags.get(STATE_TAG) != row.state.value:
            self._client.set_model_version_tag(self._model, told.at, STATE_TAG, row.state.value)

    def _set_aliases(self, wanted: Mapping[str, str]) -> None:
        set_now = {alias: str(at) for alias, at in self._client.get_registered_model(self._model).aliases.items()}
        for alias in set_now.keys() - wanted.keys():
            self._client.delete_registered_model_alias(self._model, alias)
        for alias, registered in wanted.items():
            if set_now.get(alias) != registered:
                self._client.set_registered_model_alias(self._model, alias, registered)

    def _model_versions(self) -> dict[tuple[int, str], _Told]:
        """Number and digest -> what MLflow holds."""
        found: dict[tuple[int, str], _Told] = {}
        page = ""
        while True:
            rows = self._client.search_model_versions(f"name='{self._model}'", page_token=page or None)
            for row in (row for row in rows if VERSION_TAG in row.tags):
                key = int(row.tags[VERSION_TAG]), row.tags.get(SHA256_TAG, "")
                found[key] = _Told(str(row.version), row.run_id, row.tags)
            page = rows.token
            if not page:
                return found


def version_tags(version: DraftVersion) -> dict[str, str]:
    """Lineage of a version as tags, the same words on run and model version."""
    first, last = version.trained_on
    return {
        "paceline.parent": "" if version.parent is None else str(version.parent),
        "paceline.target": version.target,
        "paceline.target_version": version.target_version,
        "paceline.drafter": version.drafter,
        "paceline.objective": version.objective,
        "paceline.window_first": first,
        "paceline.window_last": last,
        SHA256_TAG: version.sha256,
        "paceline.weights_uri": version.weights_uri,
    }


def _bare_record(version: DraftVersion, born_at: float) -> RunRecord:
    # The initial draft is published by every learner's code alike; who made one put on by hand is not known.
    code = {CODE_TAG: code_version()} if version.parent is None else {}
    return RunRecord(version.number, born_at, tags=version_tags(version) | code, metrics=dict(version.scores))


def _key(row: BoardRow) -> tuple[int, str]:
    return row.version.number, row.version.sha256


def _points(record: RunRecord) -> list[tuple[str, float, int]]:
    """(metric, value, step from the first); single values stand at the last step of the curves."""
    last = max((len(curve) for curve in record.curves.values()), default=1) - 1
    curves = [(key, value, step) for key, curve in record.curves.items() for step, value in enumerate(curve)]
    return curves + [(key, value, max(last, 0)) for key, value in record.metrics.items()]


def _aliases(state: BoardState) -> dict[str, int]:
    """Alias -> version number, for those that stand; the newest candidate bears the alias."""
    candidates = [number for number, row in state.rows.items() if row.state in _CANDIDATES]
    numbers = {"live": state.live, "previous": state.previous, "candidate": max(candidates, default=None)}
    return {alias: number for alias, number in numbers.items() if number is not None}
