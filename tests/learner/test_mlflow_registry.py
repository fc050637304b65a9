"""The registry against a real MLflow on SQLite: readable lineage, curves and aliases, and nothing lost."""

from dataclasses import replace
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from made_versions import made_version
from mlflow_house import GATE, MODEL, House, alias, named, weights_of
from paceline.buffer.board.member_status import MlflowRuns
from paceline.buffer.board.version import JudgedOn, VersionState
from paceline.buffer.code_version import code_version
from paceline.learner.config import quiet_mlflow
from paceline.learner.delivery.mlflow_registry import Registry
from paceline.learner.delivery.run_record import record_from_board
from paceline.learner.delivery.tracking.attempts import FIRST_RETRY_S, LONGEST_RETRY_S
from paceline.policies.verdict_words import sentence
from twins.memory_board import MemoryVersionBoard


@pytest.fixture
def house(tmp_path: Path, empty_mlflow: Path) -> House:
    copy(empty_mlflow, tmp_path / "mlflow.db")
    return House(tmp_path)


@pytest.fixture
def mlflow(house: House) -> Any:
    """MLflow's own client, to read back what people would see."""
    quiet_mlflow()
    from mlflow import MlflowClient

    return lambda: MlflowClient(tracking_uri=house.uri, registry_uri=house.uri)


def test_a_version_says_which_targets_it_was_trained_and_judged_on() -> None:
    judged = JudgedOn(labels={"": 48}, newest_labels={"": 60}, targets={"6": 10, "7": 38})
    version = made_version(
        1,
        0,
        target="llama",
        target_version="7",
        trained_on=("1-0", "9-0"),
        judged_on=judged,
        trained_targets=("5", "6", "7"),
    )
    params = record_from_board(version, 1.0).params
    assert (params["target_version"], params["trained_targets"]) == ("7", "5,6,7")
    assert params["judged_on"].endswith("target versions and in brackets their requests: 6 (10), 7 (38)")
    assert "trained_targets" not in record_from_board(replace(version, trained_targets=()), 1.0).params


def test_every_version_is_a_run_and_a_model_version_with_its_lineage(house: House, mlflow: Any) -> None:
    registry = house.registry()
    house.version(0)
    house.move(0, VersionState.LIVE)
    house.enqueue(registry, 1, first_step=40)
    house.move(1, VersionState.LIVE)
    house.enqueue(registry, 2)
    assert registry.sync(house.board.read(), house.board)
    assert list(house.pending.iterdir()) == []
    client = mlflow()
    assert named(client) == {"live": "1", "previous": "0", "candidate": "2"}

    found = client.get_model_version_by_alias(MODEL, "live")
    assert found.tags == {
        "paceline.version": "1",
        "paceline.state": "live",
        "paceline.by": "learner",
        "paceline.judged_against": "0",
        "paceline.sha256": f"{1:064d}",
        "paceline.verdict": "promote",
        "paceline.weights": "logged",
    }
    run = client.get_run(found.run_id)
    assert (run.info.status, run.info.run_name, run.info.start_time) == ("FINISHED", "draft 1", 1_700_000_000_000)
    assert run.data.params == {
        "draft": "1",
        "parent": "0",
        "target": "llama",
        "target_version": "7",
        "drafter": "eagle3",
        "objective": "soft",
        "window_first": "5-0",
        "window_last": "9-0",
        "steps": "3",
        "passes": "4",
        "seed": "0",
        "batch_tokens": "8192",
        "context_weight": "1.0",
        "regime": "cold",
        "weighting": "survival",
        "learning_rate": "0.003",
        "code_version": code_version(),
        "judged_against": "0",
        "gate_reason": sentence(GATE.reason),
        "gate_ground": "trust",
    }
    losses = [(point.step, point.value) for point in client.get_metric_history(found.run_id, "fit/loss")]
    assert losses == [(40, 3.0), (41, 2.0), (42, 1.0)]
    gate = ("judged_accept_length", "reference_accept_length", "gain_low", "predicted_accept_length")
    assert [run.data.metrics[f"gate/{key}"] for key in gate] == [2.5, 2.0, 0.1, 2.6]
    assert "fit/first_position_accept" not in run.data.metrics  # not a number, so not a figure
    assert weights_of(client, found) == {"config.json"}
    assert code_version() == client.get_run(alias(client, "previous").run_id).data.params["code_version"]
    candidate = alias(client, "candidate")
    assert weights_of(client, candidate) == set()

    runs = {v.tags["paceline.version"]: v.run_id for v in client.search_model_versions()}
    assert registry.runs_told() == MlflowRuns(run_page="", runs=runs)  # a database has no pages
    elsewhere = house.registry(pages="http://ann:secret@mlflow.lan/")
    assert elsewhere.runs_told() is None  # it has not asked yet
    assert elsewhere.sync(house.board.read(), house.board)
    page = f"http://mlflow.lan/#/experiments/{run.info.experiment_id}/runs/{{run}}?workflowType=machine_learning"
    assert elsewhere.runs_told() == MlflowRuns(run_page=page, runs=runs)

    house.move(2, VersionState.REFUSED)
    house.board.roll_back("operator:ada", "served worse")
    assert registry.sync(house.board.read(), house.board)
    assert named(client) == {"live": "0"}
    states = {v.tags["paceline.version"]: v.tags["paceline.state"] for v in client.search_model_versions()}
    assert states == {"0": "live", "1": "rolled_back", "2": "refused"}
    assert weights_of(client, candidate) == set()

    house.move(2, VersionState.LIVE)  # by an operator
    house.version(3)
    house.move(3, VersionState.LIVE)
    house.remove(3)
    assert registry.sync(house.board.read(), house.board)
    assert weights_of(client, candidate) == {"config.json"}
    weights = {v.tags["paceline.version"]: v.tags["paceline.weights"] for v in client.search_model_versions()}
    assert weights == {"0": "logged", "1": "logged", "2": "logged", "3": "gone"}


def test_a_board_that_lost_its_data_gets_versions_of_its_own_under_the_same_numbers(house: House, mlflow: Any) -> None:
    house.enqueue(house.registry(), 1)
    house.move(1, VersionState.LIVE)
    assert house.registry().sync(house.board.read())
    house.remove(1)
    house.board = MemoryVersionBoard()
    house.enqueue(house.registry(), 1, sha="f" * 64)
    house.move(1, VersionState.LIVE)
    assert house.registry().sync(house.board.read())
    assert house.registry().sync(house.board.read())
    client = mlflow()
    found = {v.tags["paceline.sha256"]: v.run_id for v in client.search_model_versions()}
    assert set(found) == {f"{1:064d}", "f" * 64}
    assert len(set(found.values())) == 2
    assert client.get_model_version_by_alias(MODEL, "live").tags["paceline.sha256"] == "f" * 64


def test_what_mlflow_missed_is_registered_later_once_and_by_any_learner(
    house: House, mlflow: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house.version(0)
    house.move(0, VersionState.LIVE)
    away = house.registry("http://127.0.0.1:9")
    house.enqueue(away, 1)
    assert not away.sync(house.board.read())
    assert [path.name for path in house.pending.iterdir()] == ["v000001.json"]
    assert "1 registrations pending, next try in 60 s" in caplog.text

    # Killed in the middle: the run exists, the model version does not yet.
    registry = house.registry()
    assert registry.sync(MemoryVersionBoard().read())
    client = mlflow()
    house.enqueue(registry, 2)
    with monkeypatch.context() as patched:
        patched.setattr(type(client), "create_model_version", lambda *_, **__: 1 / 0)
        assert not registry.sync(house.board.read(), house.board)
    assert [path.name for path in house.pending.iterdir()] == ["v000002.json"]
    house.remove(2)
    assert house.registry().sync(house.board.read())
    assert list(house.pending.iterdir()) == []
    numbers = sorted(version.tags["paceline.version"] for version in client.search_model_versions())
    assert numbers == ["0", "1", "2"]
    experiment = client.get_experiment_by_name(MODEL).experiment_id
    runs = [run for run in client.search_runs([experiment]) if "paceline.lineage" not in run.data.tags]
    assert sorted(run.info.run_name for run in runs) == ["draft 0", "draft 1", "draft 2"]


def test_mlflow_away_is_asked_less_and_less_often_and_an_answer_resets_that(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, asked, is_away = house.registry(), [], True
    waits = [FIRST_RETRY_S * 2**i for i in range(20)]
    expected = [sum(min(wait, LONGEST_RETRY_S) for wait in waits[:i]) for i in range(8)]

    def ask(_: Registry) -> None:
        asked.append(house.clock.now_s)
        if is_away:
            raise ConnectionError("refused")

    monkeypatch.setattr(Registry, "_connect", ask)
    monkeypatch.setattr(Registry, "_sync", lambda *_: None)
    while len(asked) < 8:  # a learning round every 30 seconds, with nothing to register and nothing new on the board
        assert not registry.sync(house.board.read(), house.board)
        house.clock.now_s += 30.0
    assert asked == expected
    is_away = False
    house.clock.now_s = asked[-1] + LONGEST_RETRY_S
    house.version(0)
    assert registry.sync(house.board.read(), house.board)
    is_away = True
    house.enqueue(registry, 1)
    began_s = house.clock.now_s
    while house.clock.now_s < began_s + FIRST_RETRY_S + 1.0:
        assert not registry.sync(house.board.read(), house.board)
        house.clock.now_s += 30.0
    assert asked[9:] == [began_s, began_s + FIRST_RETRY_S]
    assert (registry.pending_registrations, list(house.pending.iterdir())) == (1, [house.pending / "v000001.json"])
