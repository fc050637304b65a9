"""What MLflow refuses, what people delete there, and one that is slow: each draft and each alias stands alone."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from shutil import copy, rmtree
from typing import Any

import pytest
from mlflow_house import FIT, GATE, MODEL, House, alias, named, serve, synced
from paceline.buffer.board.member_status import MlflowWait
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import WEIGHTS_FILE
from paceline.buffer.stream.trace import MAX_LABEL_CHARS
from paceline.learner.delivery.mlflow_registry import Registry
from paceline.learner.delivery.pending_registrations import PendingRegistrations
from paceline.learner.delivery.round_evidence import Refit, RoundEvidence, Traffic
from paceline.learner.delivery.run_record import RunRecord, record_of
from paceline.learner.delivery.tracking.attempts import FIRST_RETRY_S, LONGEST_RETRY_S, Attempts
from paceline.learner.delivery.tracking.fitting import (
    LONGEST_IN_REGISTRY,
    LONGEST_INPUT_TAG,
    LONGEST_NAME,
    LONGEST_PARAM,
    LONGEST_RUN_TAG,
    fitted,
)
from paceline.learner.delivery.tracking.mlflow_library import mlflow_library, using
from paceline.learner.delivery.tracking.runs import write_run
from paceline.learner.training.trainer import TrainingPlan

LABELS = {f"team-{i}/".ljust(MAX_LABEL_CHARS, "x"): 5 for i in range(4)}


@pytest.fixture
def house(tmp_path: Path, empty_mlflow: Path) -> House:
    copy(empty_mlflow, tmp_path / "mlflow.db")
    return House(tmp_path)


@pytest.fixture
def client(house: House) -> Any:
    """MLflow's own client, which cuts nothing."""
    with using(house.uri):
        yield mlflow_library().MlflowClient(tracking_uri=house.uri, registry_uri=house.uri)


@pytest.fixture
def registry(house: House) -> Registry:
    """Draft 1 is live there after draft 0."""
    made = house.registry()
    house.version(0)
    house.move(0, VersionState.LIVE)
    house.enqueue(made, 1)
    (house.folder / "v000001" / WEIGHTS_FILE).write_bytes(b"weights")
    house.move(1, VersionState.LIVE)
    assert synced(house, made)
    return made


def record(house: House, number: int, **changes: Any) -> RunRecord:
    """Of a new draft, from requests with LABELS."""
    traffic = Traffic(digest="d" * 32, traces=20, requests=20, labels=LABELS, first_at=1.7e9, last_at=1.7e9 + 5)
    refit = Refit(
        rounds_trained=0,
        plan=asdict(TrainingPlan()),
        target_versions=("0",),
        learned=("1-0",),
        held_out=("2-0",),
        replayed=(),
        device="cpu",
        threads=1,
    )
    evidence = RoundEvidence(
        started_at=1.7e9,
        learner="learner-a",
        refit=refit,
        traffic={"traffic": traffic, "judged requests": traffic},
    )
    made = record_of(house.version(number), TrainingPlan(), FIT, GATE, born_at=1.7e9, first_step=0, evidence=evidence)
    return replace(made, **changes)


def waiting(registry: Registry) -> dict[str, MlflowWait]:
    told = registry.waiting_told()
    assert told.count == len(told.longest)
    return {one.what: one for one in told.longest}


def go_on(house: House, registry: Registry) -> bool:
    """Draft 2 goes live, and MLflow is told, twice."""
    house.enqueue(registry, 2)
    house.move(2, VersionState.LIVE)
    house.unix.now_s += 1000.0
    synced(house, registry)
    return synced(house, registry)


def test_a_draft_of_four_long_labels_is_registered_with_a_mark_where_they_were_cut(
    house: House, registry: Registry, client: Any
) -> None:
    registry.enqueue(record(house, 2))
    house.move(2, VersionState.LIVE)
    assert synced(house, registry)
    assert named(client) == {"live": "2", "previous": "1"}
    tags = {tag.key: tag.value for tag in client.get_run(alias(client, "live").run_id).inputs.dataset_inputs[0].tags}
    assert len(tags["paceline.labels"]) == LONGEST_INPUT_TAG
    assert tags["paceline.labels"].endswith("… [cut: 534 characters]")
    assert "paceline.labels" not in tags["paceline.traces"]


def test_every_text_is_cut_to_what_the_store_takes(house: House, registry: Registry, client: Any) -> None:
    long = "é\0x" * 5_000
    made = record(house, 2)
    registry.enqueue(
        replace(made, params={"gate_reason": f"\ud800{long}", "empty": ""}, tags={**made.tags, "paceline.note": long})
    )
    house.board.move(2, VersionState.LIVE, long, long)
    assert synced(house, registry)
    version = alias(client, "live")
    run = client.get_run(version.run_id)
    texts = (run.data.params["gate_reason"], run.data.tags["paceline.note"], run.data.tags["paceline.by"])
    assert [len(text) for text in texts] == [LONGEST_PARAM, LONGEST_RUN_TAG, LONGEST_RUN_TAG]
    assert [len(version.tags[name]) for name in ("paceline.note", "paceline.by")] == [LONGEST_IN_REGISTRY] * 2
    assert len(version.description) == LONGEST_IN_REGISTRY
    for text in (*texts, version.tags["paceline.note"], version.description):
        assert text.endswith(" characters]")
        assert not set(text) & {"\0", "\ud800"}
    assert run.data.params["empty"] == ""


@pytest.mark.parametrize(("count", "is_cut"), [(LONGEST_NAME, False), (LONGEST_NAME + 1, True)])
def test_a_text_is_cut_only_where_it_is_longer(count: int, is_cut: bool) -> None:
    text = fitted("日" * count, LONGEST_NAME)
    assert len(text) == LONGEST_NAME
    assert text.endswith(f"… [cut: {count} characters]") is is_cut
    assert fitted("a\tb\nc\x1b", 9) == "a\tb\nc\ufffd"


def test_figures_and_times_that_are_no_numbers_are_left_out_and_counted(
    house: House, registry: Registry, client: Any
) -> None:
    no, inf = float("nan"), float("inf")
    made = record(house, 2, metrics={"gate/gain": no, "gate/x": 2.0}, curves={"fit/loss": [1.0, no, inf]})
    registry.enqueue(replace(made, curve_times=[inf, no, -1.0]))
    assert synced(house, registry)
    run = client.get_run(alias(client, "candidate").run_id)
    assert (run.data.metrics["gate/x"], run.data.metrics["fit/loss"]) == (2.0, 1.0)
    assert "gate/gain" not in run.data.metrics
    assert run.data.tags["paceline.not_finite"] == "fit/loss: 2, gate/gain: 1"


def test_one_draft_that_is_refused_waits_with_its_reason_and_stops_no_other(
    house: House, registry: Registry, client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin, denied = type(client).create_run, mlflow_library("protos.databricks_pb2").PERMISSION_DENIED

    def create_run(self: Any, experiment: str, start: int, tags: dict[str, str], name: str) -> Any:
        if tags["paceline.version"] == "2":
            raise mlflow_library("exceptions").MlflowException("PERMISSION_DENIED: not for\nyou", denied)
        return begin(self, experiment, start, tags, name)

    with monkeypatch.context() as patched:
        patched.setattr(type(client), "create_run", create_run)
        for number in (2, 3):
            house.enqueue(registry, number)
            house.move(number, VersionState.LIVE)
        assert not synced(house, registry)
        assert named(client) == {"live": "3"}  # MLflow has no draft 2 to be the previous one
        one = waiting(registry)["draft 2"]
        assert (one.why, registry.pending_registrations) == ("PERMISSION_DENIED: not for you", 1)
        assert "MLFLOW_TRACKING_USERNAME" in one.action
        assert one.since == (house.pending / "v000002.json").stat().st_mtime
        assert "MLflow not told of draft 2: PERMISSION_DENIED: not for you; next try in 60 s" in caplog.text
        house.board.roll_back("ann", "draft 2 was better")
        assert not synced(house, registry)  # it is not due
        assert named(client) == {"previous": "1"}
    house.clock.now_s += FIRST_RETRY_S
    assert synced(house, registry)
    assert (named(client), waiting(registry)) == ({"live": "2", "previous": "1"}, {})


def test_one_alias_that_is_refused_waits_and_nobody_is_said_to_have_moved_it(
    house: House, registry: Registry, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = type(client).set_registered_model_alias

    def refused(self: Any, model: str, name: str, version: str) -> None:
        if name == "live":
            raise mlflow_library("exceptions").MlflowException("boom " * 100 + "502")
        move(self, model, name, version)

    with monkeypatch.context() as patched:
        patched.setattr(type(client), "set_registered_model_alias", refused)
        assert not go_on(house, registry)
    assert named(client) == {"live": "1", "previous": "1"}
    one = waiting(registry)["alias live"]
    assert (one.why[:10], one.why[-3:], len(one.why)) == ("boom boom ", "502", 303)
    assert one.action.startswith("it is tried again")
    house.clock.now_s += FIRST_RETRY_S
    assert synced(house, registry)
    assert named(client) == {"live": "2", "previous": "1"}
    assert "paceline.alias_reset" not in alias(client, "live").tags


def test_a_record_that_cannot_be_read_waits_until_it_is_removed(house: House, registry: Registry, client: Any) -> None:
    house.enqueue(registry, 2)
    house.move(2, VersionState.LIVE)
    file = house.pending / "v000002.json"
    file.write_text('{"number"')
    house.enqueue(registry, 3)
    assert not synced(house, registry)
    assert named(client) == {"previous": "1", "candidate": "3"}
    assert waiting(registry)["draft 2"].action == (
        f"remove {file} to have the draft registered with what the board knows of it"
    )
    file.unlink()
    house.clock.now_s += FIRST_RETRY_S
    assert synced(house, registry)
    assert named(client) == {"live": "2", "previous": "1", "candidate": "3"}


def test_files_that_cannot_be_written_keep_no_card_or_alias_from_the_board(
    house: House, registry: Registry, client: Any
) -> None:
    house.enqueue(registry, 2)
    assert synced(house, registry)
    artifacts, away = house.folder / "artifacts", house.folder / "away"
    artifacts.rename(away)
    artifacts.write_text("no folder")
    house.move(2, VersionState.LIVE)
    assert not synced(house, registry)
    assert (named(client), set(waiting(registry))) == (
        {"live": "2", "previous": "1"},
        {"weights of draft 2"},
    )
    assert "room and rights" in waiting(registry)["weights of draft 2"].action
    assert alias(client, "live").tags["paceline.state"] == "live"
    artifacts.unlink()
    away.rename(artifacts)
    house.clock.now_s += FIRST_RETRY_S
    assert synced(house, registry)
    assert alias(client, "live").tags["paceline.weights"] == "logged"


def test_a_parameter_that_another_release_logged_differently_stays(
    house: House, registry: Registry, client: Any
) -> None:
    registry.enqueue(record(house, 2))
    begun = replace(record(house, 3), number=2, tags={"paceline.sha256": f"{2:064d}"}, params={"passes": "9"})
    run = write_run(registry._store, begun)  # type: ignore[arg-type] # a learner of that release died here
    assert synced(house, registry)
    assert alias(client, "draft-2").run_id == run
    params = client.get_run(run).data.params
    assert (params["passes"], params["learner"]) == ("9", "learner-a")


def experiment(client: Any) -> Any:
    return client.get_experiment_by_name(MODEL)


def run_for_good(client: Any) -> None:
    run = alias(client, "draft-1").run_id
    client.delete_run(run)
    client._tracking_client.store._hard_delete_run(run)  # as `mlflow gc` does


def experiment_for_good(client: Any) -> None:
    known = experiment(client).experiment_id
    client.delete_experiment(known)
    client._tracking_client.store._hard_delete_experiment(known)


def set_tag(client: Any, value: str) -> None:
    client.set_model_version_tag(MODEL, alias(client, "draft-1").version, "paceline.version", value)


BY_HAND: dict[str, Callable[[Any], None]] = {
    "run": lambda client: client.delete_run(alias(client, "draft-1").run_id),
    "run for good": run_for_good,
    "experiment": lambda client: client.delete_experiment(experiment(client).experiment_id),
    "experiment for good": experiment_for_good,
    "experiment renamed": lambda client: client.rename_experiment(experiment(client).experiment_id, "mine"),
    "model": lambda client: client.delete_registered_model(MODEL),
    "model renamed": lambda client: client.rename_registered_model(MODEL, "mine"),
    "version": lambda client: client.delete_model_version(MODEL, alias(client, "draft-1").version),
    "logged model": lambda client: client.delete_logged_model(alias(client, "draft-1").source.removeprefix("models:/")),
    "alias": lambda client: client.delete_registered_model_alias(MODEL, "live"),
    "record of aliases": lambda client: client.set_registered_model_tag(MODEL, "paceline.aliases", "mine"),
    "tag": lambda client: set_tag(client, "mine"),
}


@pytest.mark.guarantee("mlflow-refuses")
@pytest.mark.parametrize("deleted", BY_HAND)
def test_whatever_is_deleted_or_changed_by_hand_is_made_again_or_left_and_aliases_follow_the_board(
    house: House, registry: Registry, client: Any, deleted: str
) -> None:
    BY_HAND[deleted](client)
    served = serve(house, 1, 30)
    rmtree(house.folder / "v000001")  # its weights are in MLflow alone
    assert go_on(house, registry)
    found = {v.tags["paceline.version"]: v for v in client.search_model_versions(f"name='{MODEL}'")}
    aliases = client.get_registered_model(MODEL).aliases
    assert (aliases["live"], aliases["previous"]) == (found["2"].version, found["1"].version)
    assert [found[number].tags["paceline.state"] for number in "012"] == ["retired", "retired", "live"]
    assert found["1"].tags["paceline.weights"] == "logged"
    assert found["1"].description.startswith("draft 1: retired")
    known = experiment(client).experiment_id
    (lineage,) = client.search_runs([known], "tags.`paceline.lineage` = 'true'")
    assert lineage.data.metrics["served"] == served.accept_length
    left = found["1"].tags.get("paceline.run", "")
    if deleted == "run":
        back = f"mlflow runs restore --run-id {found['1'].run_id}"
        assert left.startswith(f"deleted in MLflow, and can be restored: {back}; seen at ")
        client.restore_run(found["1"].run_id)
        house.move(1, VersionState.LIVE)
        assert synced(house, registry)
        assert "paceline.run" not in alias(client, "live").tags
    else:
        assert bool(left) is deleted.endswith("for good")


def test_mlflow_that_stops_to_answer_is_asked_nothing_more_and_what_waited_still_waits() -> None:
    now, asked, is_away = [0.0], list[str](), False
    attempts = Attempts(lambda: now[0])

    def ask() -> None:
        if is_away:
            raise TimeoutError("no answer from http://ann:secret@mlflow")

    def refuse(what: str) -> None:
        asked.append(what)
        raise ValueError(f"429 {what}")

    attempts.begin(ask)
    assert not attempts.do("a", lambda: refuse("a"))
    attempts.end()
    since = attempts.waiting["a"].since
    now[0], is_away = FIRST_RETRY_S, True
    attempts.begin(ask)
    with pytest.raises(ValueError, match="429 b") as raised:
        attempts.do("b", lambda: refuse("b"))
    assert attempts.give_up(raised.value) == FIRST_RETRY_S
    assert [(one.what, one.why) for one in attempts.waiting.values()] == [("a", "429 a"), ("MLflow", "429 b")]
    assert attempts.give_up(TimeoutError("no answer from http://ann:secret@mlflow")) == 2 * FIRST_RETRY_S
    assert attempts.waiting["MLflow"].why == "no answer from http://***@mlflow"
    is_away = False
    waits = []
    for _ in range(4):
        attempts.begin(ask)
        attempts.do("a", lambda: refuse("a"))
        attempts.end()
        waits.append(attempts._next["a"][1])
        now[0] += waits[-1]
    assert (asked, waits) == (["a", "b", *"aaaa"], [2 * FIRST_RETRY_S, *[LONGEST_RETRY_S] * 3])
    assert attempts.waiting == {"a": replace(attempts.waiting["a"], since=since)}
    attempts.begin(ask)
    assert attempts.do("a", lambda: None)
    attempts.end()
    assert attempts.waiting == {}


@pytest.mark.guarantee("mlflow-refuses")
def test_a_slow_mlflow_holds_no_learning_round_and_is_told_by_one_learner_at_a_time(
    house: House, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answers, connect, asked = threading.Event(), threading.Event(), Registry._connect, Counter[Registry]()

    def slow(self: Registry) -> None:
        asked[self] += 1
        begun.set()
        answers.wait()
        connect(self)

    monkeypatch.setattr(Registry, "_connect", slow)
    pending, artifacts = PendingRegistrations(house.pending), house.folder / "artifacts"
    ours, theirs = (
        Registry(house.uri, MODEL, pending=pending, artifacts=artifacts, clock=house.clock, patience_s=0.0)
        for _ in range(2)
    )
    house.enqueue(ours, 1)
    house.move(1, VersionState.LIVE)
    assert not synced(house, ours)
    begun.wait()
    assert not synced(house, ours)
    assert not synced(house, theirs)
    theirs._thread.join()  # type: ignore[union-attr] # nothing else says when it is done
    assert asked == {ours: 1}
    answers.set()
    ours._thread.join()  # type: ignore[union-attr]
    assert synced(house, house.registry())
    assert named(client) == {"live": "1"}
    assert len(client.search_runs([experiment(client).experiment_id], "tags.`paceline.version` = '1'")) == 1
