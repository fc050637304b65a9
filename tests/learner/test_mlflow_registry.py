"""The registry against a real MLflow on SQLite: lineage, curves and aliases people can read, and nothing lost."""

from pathlib import Path
from typing import Any

import pytest
from paceline.buffer.testing.memory_board import MemoryVersionBoard
from paceline.buffer.version import DraftVersion, VersionState
from paceline.learner.config import quiet_mlflow
from paceline.learner.delivery.code_version import code_version
from paceline.learner.delivery.mlflow_registry import Registry
from paceline.learner.delivery.run_record import record_of, scores_of
from paceline.learner.training.trainer import FitReport, TrainingPlan
from paceline.policies.promotion import Promotion, Verdict

MODEL = "paceline-chat"
GATE = Promotion(Verdict.PROMOTE, "gain +0.500, 95% interval +0.100 to +0.900", 0.5, (0.1, 0.9), 2.5, 2.0, 12)
FIT = FitReport(
    losses=(3.0, 2.0, 1.0),
    steps=3,
    skipped_steps=0,
    seconds=1.5,
    first_position_accept=float("nan"),
    first_position_attainable=float("nan"),
    mean_acceptance=(),
    is_cold=True,
    weighting="survival",
    learning_rate=0.003,
    out_of_vocabulary_labels=0,
    unusable_traces=0,
)


class House:
    """A board, version folders and a place for MLflow's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.board = MemoryVersionBoard()
        self.outbox = folder / "outbox"
        self.uri = f"sqlite:///{folder}/mlflow.db"

    def registry(self, uri: str | None = None) -> Registry:
        return Registry(uri or self.uri, MODEL, self.outbox, self.folder / "artifacts")

    def version(self, number: int, sha: str = "") -> DraftVersion:
        """Register a version with weights of its own on the board."""
        folder = self.folder / f"v{number:06d}"
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"number": {number}}}')
        parent = number - 1 if number else None
        window = ("5-0", "9-0") if number else ("", "")
        scores = scores_of(GATE) if number else {}
        uri, sha = folder.as_uri(), sha or f"{number:064d}"
        version = DraftVersion(number, parent, "llama", "7", "eagle3", uri, sha, "committed", window, scores)
        self.board.register(version, "learner", "why")
        return version

    def remove(self, number: int) -> None:
        (self.folder / f"v{number:06d}" / "config.json").unlink()
        (self.folder / f"v{number:06d}").rmdir()

    def hand_in(self, registry: Registry, number: int, first_step: int = 0, sha: str = "") -> None:
        version = self.version(number, sha)
        registry.hand_in(record_of(version, TrainingPlan(), FIT, GATE, born_at=1_700_000_000.0, first_step=first_step))

    def move(self, number: int, state: VersionState) -> None:
        self.board.move(number, state, "learner", "why")


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture
def mlflow(house: House) -> Any:
    """MLflow's own client, to read back what people would see."""
    quiet_mlflow()
    from mlflow import MlflowClient

    return lambda: MlflowClient(tracking_uri=house.uri, registry_uri=house.uri)


def named(client: Any) -> dict[str, str]:
    """Alias -> paceline's version number."""
    aliases = client.get_registered_model(MODEL).aliases
    return {alias: client.get_model_version(MODEL, at).tags["paceline.version"] for alias, at in aliases.items()}


def test_every_version_is_a_run_and_a_model_version_that_says_where_it_comes_from(house: House, mlflow: Any) -> None:
    registry = house.registry()
    house.version(0)
    house.move(0, VersionState.LIVE)
    house.hand_in(registry, 1, first_step=40)
    house.move(1, VersionState.LIVE)
    house.hand_in(registry, 2)
    assert registry.follow(house.board.read())
    assert list(house.outbox.iterdir()) == []
    client = mlflow()
    assert named(client) == {"live": "1", "previous": "0", "candidate": "2"}

    found = client.get_model_version_by_alias(MODEL, "live")
    assert found.tags == {
        "paceline.version": "1",
        "paceline.state": "live",
        "paceline.parent": "0",
        "paceline.target": "llama",
        "paceline.target_version": "7",
        "paceline.drafter": "eagle3",
        "paceline.objective": "committed",
        "paceline.window_first": "5-0",
        "paceline.window_last": "9-0",
        "paceline.sha256": f"{1:064d}",
        "paceline.weights_uri": (house.folder / "v000001").as_uri(),
        "paceline.gate.verdict": "promote",
        "paceline.gate.reason": GATE.reason,
        "paceline.code_version": code_version(),
        "paceline.weights": "logged",
    }
    run = client.get_run(found.run_id)
    assert (run.info.status, run.info.run_name, run.info.start_time) == ("FINISHED", "v1", 1_700_000_000_000)
    assert {key: run.data.params[key] for key in ("passes", "objective")} == {"passes": "4", "objective": "soft"}
    losses = [(point.step, point.value) for point in client.get_metric_history(found.run_id, "loss")]
    assert losses == [(40, 3.0), (41, 2.0), (42, 1.0)]
    lengths = [run.data.metrics[key] for key in ("holdout_accept_length", "live_holdout_accept_length", "gain_low")]
    assert lengths == [2.5, 2.0, 0.1]
    assert "first_position_accept" not in run.data.metrics  # not a number, so not a figure
    saved = client.download_artifacts(found.run_id, "draft/config.json", str(house.folder))
    assert Path(saved).read_text() == '{"number": 1}'
    assert client.get_model_version_by_alias(MODEL, "previous").tags["paceline.code_version"] == code_version()
    candidate = client.get_model_version_by_alias(MODEL, "candidate")
    assert client.list_artifacts(candidate.run_id) == []

    house.move(2, VersionState.REFUSED)
    house.board.roll_back("operator:ada", "served worse")
    assert registry.follow(house.board.read())
    assert named(client) == {"live": "0"}
    states = {v.tags["paceline.version"]: v.tags["paceline.state"] for v in client.search_model_versions()}
    assert states == {"0": "live", "1": "rolled_back", "2": "refused"}
    assert client.list_artifacts(candidate.run_id) == []

    house.move(2, VersionState.LIVE)  # by hand, after all
    house.version(3)
    house.move(3, VersionState.LIVE)
    house.remove(3)
    assert registry.follow(house.board.read())
    assert [file.path for file in client.list_artifacts(candidate.run_id, "draft")] == ["draft/config.json"]
    weights = {v.tags["paceline.version"]: v.tags["paceline.weights"] for v in client.search_model_versions()}
    assert weights == {"0": "logged", "1": "logged", "2": "logged", "3": "gone"}


def test_a_board_that_begins_anew_does_not_hide_behind_the_numbers_of_the_old_one(house: House, mlflow: Any) -> None:
    house.hand_in(house.registry(), 1)
    house.move(1, VersionState.LIVE)
    assert house.registry().follow(house.board.read())
    house.remove(1)
    house.board = MemoryVersionBoard()
    house.hand_in(house.registry(), 1, sha="f" * 64)
    house.move(1, VersionState.LIVE)
    assert house.registry().follow(house.board.read())
    assert house.registry().follow(house.board.read())
    client = mlflow()
    found = {v.tags["paceline.sha256"]: v.run_id for v in client.search_model_versions()}
    assert set(found) == {f"{1:064d}", "f" * 64}
    assert len(set(found.values())) == 2
    assert client.get_model_version_by_alias(MODEL, "live").tags["paceline.sha256"] == "f" * 64


def test_what_mlflow_missed_is_told_later_once_and_by_any_successor(
    house: House, mlflow: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house.version(0)
    house.move(0, VersionState.LIVE)
    away = house.registry("http://127.0.0.1:9")
    house.hand_in(away, 1)
    assert not away.follow(house.board.read())
    assert [path.name for path in house.outbox.iterdir()] == ["v000001.json"]
    assert "1 versions wait to be told at the next round" in caplog.text

    # Killed in the middle: the run exists, the model version does not yet.
    registry = house.registry()
    assert registry.follow(MemoryVersionBoard().read())
    client = mlflow()
    house.hand_in(registry, 2)
    with monkeypatch.context() as patched:
        patched.setattr(type(client), "create_model_version", lambda *_, **__: 1 / 0)
        assert not registry.follow(house.board.read())
    assert [path.name for path in house.outbox.iterdir()] == ["v000002.json"]
    house.remove(2)
    assert house.registry().follow(house.board.read())
    assert list(house.outbox.iterdir()) == []
    numbers = sorted(version.tags["paceline.version"] for version in client.search_model_versions())
    assert numbers == ["0", "1", "2"]
    experiment = client.get_experiment_by_name(MODEL).experiment_id
    assert sorted(run.info.run_name for run in client.search_runs([experiment])) == ["v0", "v1", "v2"]
