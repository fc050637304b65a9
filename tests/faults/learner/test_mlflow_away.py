"""MLflow away, killed at, and back: every version is told once, by whichever learner is there."""

import signal
import warnings
from collections import Counter

import pytest
from paceline.learner.config import quiet_mlflow

BATCH = 16
MODEL = "paceline-default"


@pytest.fixture
def mlflow_uri(tmp_path):
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def client(mlflow_uri):
    quiet_mlflow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own table definitions
        from mlflow import MlflowClient

        yield MlflowClient(mlflow_uri, mlflow_uri)


def told(client):
    """(version, digest) -> times MLflow holds it as a run, and as a model version."""
    experiment = client.get_experiment_by_name(MODEL).experiment_id
    runs = Counter(key(run.data.tags) for run in client.search_runs([experiment]))
    return runs, Counter(key(row.tags) for row in client.search_model_versions(f"name='{MODEL}'"))


def key(tags):
    return int(tags["paceline.version"]), tags["paceline.sha256"]


def test_versions_wait_while_mlflow_is_away_and_are_told_once_though_a_learner_dies_telling(house, client, mlflow_uri):
    learner = house.learn(BATCH)
    house.learn_more(learner, BATCH)
    pending = house.folder / "data/checkpoints/default/pending_registrations"
    rows = house.board.read().rows
    assert sorted(path.name for path in pending.iterdir()) == [f"v{number:06d}.json" for number in rows if number]
    learner.end()
    victim = house.learner(MLFLOW_URI=mlflow_uri)
    victim.order("arm", point="half_way_through_telling_mlflow", how="die")
    with pytest.raises(EOFError):
        house.round(victim)
    assert victim.end() == -signal.SIGKILL
    assert len(list(pending.iterdir())) == len(rows) - 1
    house.wait_for_lease()
    house.learn_more(house.learner(MLFLOW_URI=mlflow_uri), BATCH)
    assert list(pending.iterdir()) == []
    runs, versions = told(client)
    board = house.board.read()
    expected = Counter({(number, row.version.sha256): 1 for number, row in board.rows.items()})
    assert (runs, versions) == (expected, expected)
    aliases = client.get_registered_model(MODEL).aliases
    live = client.get_model_version(MODEL, aliases["live"])
    assert key(live.tags) == (board.live, board.rows[board.live].version.sha256)
    house.assert_accounted(house.sent)
