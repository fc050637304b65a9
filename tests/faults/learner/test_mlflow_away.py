"""MLflow unreachable, back, and a learner killed while registering: every version is registered exactly once."""

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


def registered(client):
    """(version, digest) -> how often MLflow has it as a run, and as a model version."""
    experiment = client.get_experiment_by_name(MODEL).experiment_id
    found = [run for run in client.search_runs([experiment]) if "paceline.lineage" not in run.data.tags]
    runs = Counter(key(run.data.tags) for run in found)
    return runs, Counter(key(row.tags) for row in client.search_model_versions(f"name='{MODEL}'"))


def key(tags):
    return int(tags["paceline.version"]), tags["paceline.sha256"]


@pytest.mark.guarantee("mlflow-away")
def test_versions_wait_while_mlflow_is_away_and_are_registered_once_though_a_learner_dies_doing_it(
    world, client, mlflow_uri
):
    learner = world.learn(BATCH)
    world.learn_more(learner, BATCH)
    pending = world.folder / "data/checkpoints/default/pending_registrations"
    rows = world.board.read().rows
    assert sorted(path.name for path in pending.iterdir()) == [f"v{number:06d}.json" for number in rows if number]
    learner.end()
    victim = world.learner(MLFLOW_URI=mlflow_uri)
    victim.order("arm", point="half_way_through_registering_with_mlflow", how="die")
    with pytest.raises(EOFError):
        world.round(victim)
    assert victim.end() == -signal.SIGKILL
    assert len(list(pending.iterdir())) == len(rows) - 1
    world.wait_for_lease()
    world.learn_more(world.learner(MLFLOW_URI=mlflow_uri), BATCH)
    assert list(pending.iterdir()) == []
    runs, versions = registered(client)
    board = world.board.read()
    expected = Counter({(number, row.version.sha256): 1 for number, row in board.rows.items()})
    assert (runs, versions) == (expected, expected)
    aliases = client.get_registered_model(MODEL).aliases
    live = client.get_model_version(MODEL, aliases["live"])
    assert key(live.tags) == (board.live, board.rows[board.live].version.sha256)
    world.assert_accounted(world.sent)
