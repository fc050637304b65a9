"""The logged model of one draft: an MLmodel file that MLflow loads without a pickle, beside the draft's own two files.

Every published draft has one, so that two drafts can be compared, whatever became of them. The weights join it once
the draft has drafted; until then loading it says that there are none.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ....buffer.board.weights_file import WEIGHTS_FILE
from . import draft_model
from .mlflow_library import mlflow_library
from .model_store import KnownVersion, ModelStore, draft_name

#: How many tokens a loaded model drafts when it is not told, and its record does not say how many the servers drafted.
_USUAL_STEPS = 3
_READY = "READY"


def write_model(store: ModelStore, run: str, *, number: int, sha256: str, params: dict[str, str]) -> str:
    """The id of the logged model of a run, complete; one that an interrupted attempt began is completed."""
    client = store.client
    begun = client.search_logged_models([store.experiment], filter_string=f"source_run_id = '{run}'")
    model = (
        begun[0]
        if begun
        else client.create_logged_model(store.experiment, draft_name(number), run, params=params, model_type="draft")
    )
    if model.status != _READY:
        with TemporaryDirectory() as folder:
            _write_mlmodel(
                Path(folder) / "MLmodel", run=run, model_id=model.model_id, number=number, sha256=sha256, params=params
            )
            client.log_model_artifacts(model.model_id, folder)
        client.finalize_logged_model(model.model_id, _READY)
    return str(model.model_id)


def upload(store: ModelStore, known: KnownVersion, files: Sequence[Path]) -> None:
    """Put a draft's files beside its MLmodel."""
    for file in files:
        store.client.log_model_artifact(known.model_id, str(file))


def has_weights(store: ModelStore, known: KnownVersion) -> bool:
    """Return whether the weights are there."""
    return any(file.path == WEIGHTS_FILE for file in store.client.list_logged_model_artifacts(known.model_id))


def download(store: ModelStore, known: KnownVersion, *, name: str, folder: Path, uri: str) -> Path:
    """One of a draft's files as MLflow at `uri` keeps it, below `folder`; wherever its version has it."""
    source = f"models:/{store.model}/{known.at}/{name}"
    artifacts = mlflow_library("artifacts")
    return Path(artifacts.download_artifacts(source, dst_path=str(folder), tracking_uri=uri, registry_uri=uri))


def _write_mlmodel(file: Path, *, run: str, model_id: str, number: int, sha256: str, params: dict[str, str]) -> None:
    model = mlflow_library("models").Model(artifact_path="", run_id=run, model_id=model_id)
    config = {"draft": number, "sha256": sha256, "target_path": params.get("target", "")}
    mlflow_library("pyfunc").add_to_model(model, loader_module=draft_model.__name__, model_config=config)
    model.signature = _signature(int(params.get("steps", _USUAL_STEPS)))
    model.save(str(file))


def _signature(steps: int) -> Any:
    """Return what draft_model.PublishedDraft.predict takes and gives."""
    types = mlflow_library("types")
    schema = mlflow_library("types.schema")
    whole = types.DataType.long
    real = types.DataType.double
    tokens = types.ColSpec(schema.Array(whole), "tokens")
    features = types.ColSpec(schema.Array(schema.Array(real)), "features")
    drafts = types.ColSpec(schema.Array(whole), "drafts")
    options = types.ParamSchema([types.ParamSpec("steps", whole, steps)])
    signature: Any = mlflow_library("models.signature").ModelSignature(
        types.Schema([tokens, features]), types.Schema([drafts]), options
    )
    return signature
