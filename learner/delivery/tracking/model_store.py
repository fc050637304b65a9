"""One registered model in MLflow and the experiment of its runs: what is there, and how it is named."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ....buffer.board.version import BoardRow
from ..run_record import SHA256_TAG, VERSION_TAG
from .mlflow_library import open_client

_log = logging.getLogger(__name__)

STATE_TAG = "paceline.state"
#: Who made the last change of state, as on the board.
BY_TAG = "paceline.by"
#: On a version that drafted: LOGGED, or GONE when its folder was removed before MLflow could record it.
WEIGHTS_TAG = "paceline.weights"
LOGGED = "logged"
GONE = "gone"

#: On a version whose run somebody has deleted: since when that is known, and how to bring it back.
RUN_TAG = "paceline.run"

#: Makes MLflow's pages open as those of models; without it they open as those of language-model applications.
_KIND = {"mlflow.experimentKind": "custom_model_development"}
_MODELS_URI = "models:/"

#: Number and digest of a version: a board that lost its data reuses numbers.
Key = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownVersion:
    """A version as MLflow holds it."""

    at: str  # MLflow's own number of it
    run: str
    tags: Mapping[str, str]
    source: str
    description: str

    @property
    def model_id(self) -> str:
        """Return the id of its logged model."""
        return self.source.removeprefix(_MODELS_URI)


class ModelStore:
    """Reads and writes of one registered model. Every call asks MLflow, and raises what its client raises."""

    def __init__(self, client: Any, model: str, experiment: str) -> None:
        self.client = client
        self.model = model
        self.experiment = experiment  # its id

    def versions(self) -> dict[Key, KnownVersion]:
        """Return what MLflow holds, by number and digest."""
        found: dict[Key, KnownVersion] = {}
        page = ""
        while True:
            rows = self.client.search_model_versions(f"name='{self.model}'", page_token=page or None)
            # Anybody may edit a tag there: a version that names no draft is none of ours.
            for row in (row for row in rows if row.tags.get(VERSION_TAG, "").isdecimal()):
                key = int(row.tags[VERSION_TAG]), row.tags.get(SHA256_TAG, "")
                found[key] = KnownVersion(
                    at=str(row.version),
                    run=row.run_id,
                    tags=row.tags,
                    source=row.source or "",
                    description=row.description or "",
                )
            page = rows.token
            if not page:
                return found

    def ask(self) -> None:
        """Ask something simple, to see whether MLflow answers."""
        self.client.get_registered_model(self.model)

    def tag(self, known: KnownVersion, name: str, value: str) -> None:
        """Set a tag of a version that has another value there."""
        if known.tags.get(name) != value:
            self.client.set_model_version_tag(self.model, known.at, name, value)


def open_store(uri: str, model: str, artifacts: Path) -> ModelStore:
    """The store of `model`, made where it is absent. `artifacts` is where runs of a database keep their files.

    A deleted experiment is restored, for MLflow keeps its name; it is restored with its runs.
    """
    client = open_client(uri)
    known = client.get_experiment_by_name(model)
    location = None if uri.startswith(("http://", "https://")) else artifacts.absolute().as_uri()
    experiment = known.experiment_id if known else client.create_experiment(model, location, tags=_KIND)
    if known and known.lifecycle_stage == "deleted":
        client.restore_experiment(experiment)
        _log.warning("MLflow: experiment %s was deleted there, and is restored with its runs", model)
    if known and not _KIND.items() <= known.tags.items():
        for name, value in _KIND.items():
            client.set_experiment_tag(experiment, name, value)
    if not client.search_registered_models(filter_string=f"name='{model}'"):
        client.create_registered_model(model, description="Drafts of one paceline speculator; alias draft-N is draft N")
    return ModelStore(client, model, experiment)


def find_store(uri: str, model: str) -> ModelStore | None:
    """The store of `model` for reading; None where MLflow has none. Makes nothing."""
    client = open_client(uri)
    known = client.get_experiment_by_name(model)
    has_model = bool(client.search_registered_models(filter_string=f"name='{model}'"))
    return ModelStore(client, model, known.experiment_id) if known and has_model else None


def key_of(row: BoardRow) -> Key:
    """Under which `versions` has a row of the board."""
    return row.version.number, row.version.sha256


def draft_name(number: int) -> str:
    """Return the name of a draft's alias and of its logged model; its run has a space in place of the hyphen."""
    return f"draft-{number}"


def run_path(experiment: str, run: str) -> str:
    """Return the link to a run, from the root of MLflow's pages or within them; it opens as those of models do."""
    return f"#/experiments/{experiment}/runs/{run}?workflowType=machine_learning"


def run_page(address: str, experiment: str) -> str:
    """Return the address of a run with ``{run}`` in place of its id; empty where no browser gets there.

    User and password of `address` are left out.
    """
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return ""
    place = parts.netloc.rpartition("@")[2] + parts.path.rstrip("/")
    return f"{parts.scheme}://{place}/{run_path(experiment, '{run}')}"
