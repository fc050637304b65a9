"""The run of one draft: true times, what it learnt from, what the gate measured, what the fit did."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ....policies.judged_on import shown_label
from ...training.plan import RECIPE
from ..round_evidence import JUDGED
from ..run_record import SHA256_TAG, VERSION_TAG, Point, RunRecord
from .figures import gate_figure
from .mlflow_library import is_absent, mlflow_library
from .model_store import ModelStore

#: Artifacts of a run: a row per judged request and its picture, and all that repeating the fit needs.
GATE_TABLE = "gate.json"
GATE_PICTURE = "gate.png"
REFIT_FILE = "refit.json"
#: MLflow's own tag that makes its pages show an artifact as a table.
_TABLES_TAG = "mlflow.loggedArtifacts"
#: On a run: which of its metrics had values that are no finite number, and how many; MLflow would show others.
_NOT_FINITE_TAG = "paceline.not_finite"
#: MLflow refuses more metrics in one call.
_BATCH_METRICS = 1_000


def write_run(store: ModelStore, record: RunRecord) -> str:
    """The id of the record's run, with all but its single figures; one that an interrupted attempt began is completed.

    The figures are logged with the logged model, and `end_run` ends the run.
    """
    client = store.client
    begun = find_run(store, *record.key)
    tags = {**record.tags, VERSION_TAG: str(record.number), **_origin(record), **_left_out(record)}
    started_ms = _ms(record.born_at if record.started_at is None else record.started_at)
    name = f"draft {record.number}"
    run: str = begun or client.create_run(store.experiment, started_ms, tags, name).info.run_id
    # MLflow never changes a parameter: of a run that a learner of another release began, those that it logged stay.
    logged = client.get_run(run).data.params if begun else {}
    entities = mlflow_library("entities")
    client.log_batch(run, params=[entities.Param(*pair) for pair in record.params.items() if pair[0] not in logged])
    log_points(store, run, record.series)
    if record.evidence is not None:
        _log_evidence(store, run, record.evidence)
    return run


def _origin(record: RunRecord) -> dict[str, str]:
    """MLflow's own tags of who made a run, and with what; empty where no learner recorded it."""
    if record.evidence is None:
        return {}
    made = {"mlflow.user": record.evidence["learner"], "mlflow.source.name": "paceline learn"}
    return {**made, "mlflow.source.type": "JOB"}


def find_run(store: ModelStore, number: int, sha256: str) -> str:
    """Id of the run of a draft; empty without one."""
    by_tag = f"tags.`{VERSION_TAG}` = '{number}' and tags.`{SHA256_TAG}` = '{sha256}'"
    found = store.client.search_runs([store.experiment], by_tag, max_results=1)
    return str(found[0].info.run_id) if found else ""


def _left_out(record: RunRecord) -> dict[str, str]:
    counts = Counter(point.metric for point in (*record.series, *record.summary) if not math.isfinite(point.value))
    return {_NOT_FINITE_TAG: ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))} if counts else {}


def run_or_none(store: ModelStore, run: str) -> Any | None:
    """The run, also one in the deleted state, of which nothing can be written; None where it is gone for good."""
    try:
        return store.client.get_run(run)
    except Exception as error:  # clients of MLflow's stores raise their own types: is_absent tells them apart
        if is_absent(error):
            return None
        raise


def is_writable(run: Any | None) -> bool:
    """Return whether a run that `run_or_none` found was deleted by nobody."""
    return run is not None and run.info.lifecycle_stage == "active"


def name_output(store: ModelStore, run: str, model_id: str, number: int) -> None:
    """Have the run show the logged model that came of it, at the step `number`."""
    found = store.client.get_run(run).outputs
    if found is None or model_id not in {output.model_id for output in found.model_outputs}:
        store.client.log_outputs(run, [mlflow_library("entities").LoggedModelOutput(model_id, number)])


def end_run(store: ModelStore, run: str, at: float) -> None:
    """End it at `at`, unix seconds."""
    store.client.set_terminated(run, end_time=_ms(at))


def log_points(store: ModelStore, run: str, points: Iterable[Point], model_id: str = "") -> None:
    """Log metrics, of a logged model too where it is named, but those that are no finite number.

    Equal points that were logged before change nothing.
    """
    entities = mlflow_library("entities")
    metrics = [
        entities.Metric(point.metric, point.value, _ms(point.at), point.step, model_id=model_id or None)
        for point in points
        if math.isfinite(point.value)
    ]
    for first in range(0, len(metrics), _BATCH_METRICS):
        store.client.log_batch(run, metrics=metrics[first : first + _BATCH_METRICS])


def read_json(store: ModelStore, run: str, artifact: str) -> Any:
    """A JSON artifact at the top of a run; None where it has none of that name."""
    client = store.client
    if artifact not in {file.path for file in client.list_artifacts(run)}:
        return None
    with TemporaryDirectory() as folder:
        return json.loads(Path(client.download_artifacts(run, artifact, folder)).read_text(encoding="utf-8"))


def _log_evidence(store: ModelStore, run: str, evidence: Mapping[str, Any]) -> None:
    client = store.client
    rows = evidence["gate_rows"]
    client.log_dict(run, {"refit": evidence["refit"], "recipe": _recipe()}, REFIT_FILE)
    client.log_inputs(run, [_dataset(name, traffic) for name, traffic in evidence["traffic"].items()])
    if not rows:
        return
    client.log_dict(run, _table(rows), GATE_TABLE)
    client.set_tag(run, _TABLES_TAG, json.dumps([{"path": GATE_TABLE, "type": "table"}]))
    client.log_figure(run, gate_figure(rows), GATE_PICTURE)


def _recipe() -> dict[str, Any]:
    """Return what every learner trains by: equal in all runs, so no parameter."""
    return {name: getattr(RECIPE, name) for name in RECIPE.__dataclass_fields__}


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns = list(rows[0])
    return {"columns": columns, "data": [[row[column] for column in columns] for row in rows]}


def _dataset(name: str, traffic: Mapping[str, Any]) -> Any:
    """Counts, times and label shares of some traces, and a digest that is the same for the same traces; no row."""
    entities = mlflow_library("entities")
    profile = {key: value for key, value in traffic.items() if key != "digest" and value is not None}
    source = json.dumps({"stream": "traces"})
    told = entities.Dataset(name, traffic["digest"], "redis", source, profile=json.dumps(profile))
    context = "evaluation" if name == JUDGED else "training"
    tags = {"mlflow.data.context": context, "paceline.requests": str(traffic["requests"])}
    tags |= {"paceline.traces": str(traffic["traces"]), "paceline.labels": label_shares(traffic["labels"])}
    tags |= {f"paceline.{end}": str(traffic[end]) for end in ("first_at", "last_at") if traffic[end] is not None}
    return entities.DatasetInput(told, [entities.InputTag(key, value) for key, value in tags.items()])


def label_shares(labels: Mapping[str, int]) -> str:
    """Return shares as "py 75 %, prose 25 %", the largest first; "none" of no request."""
    total = sum(labels.values())
    most = sorted(labels.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{shown_label(label)} {count / total:.0%}" for label, count in most) or "none"


def _ms(unix_s: float) -> int:
    """MLflow's time; 0 for one that is no time, which MLflow would refuse."""
    return int(unix_s * 1000) if math.isfinite(unix_s) and unix_s > 0 else 0
