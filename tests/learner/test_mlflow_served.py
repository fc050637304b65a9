"""What follows a registration, in a real MLflow: served figures, the lineage, cards, and aliases that were edited."""

from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from mlflow_house import MODEL, House, alias, named, serve, synced
from paceline.buffer.board.version import VersionState
from paceline.buffer.errors import TrackingUnavailable
from paceline.learner.delivery.alias_check import check_aliases, compare_once
from paceline.learner.delivery.mlflow_registry import COMPARE_S
from paceline.learner.delivery.tracking.attempts import Attempts
from paceline.learner.delivery.tracking.mirror import served_on
from paceline.learner.delivery.tracking.mlflow_library import open_client, using
from paceline.learner.delivery.tracking.served_figures import FIRST_ROUNDS, SETTLE_S


@pytest.fixture
def house(tmp_path: Path, empty_mlflow: Path) -> House:
    copy(empty_mlflow, tmp_path / "mlflow.db")
    return House(tmp_path)


@pytest.fixture
def client(house: House) -> Any:
    with using(house.uri):
        made = open_client(house.uri)
        made.search_experiments(max_results=1)
        return made


def points(client: Any, run: str, metric: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in client.get_metric_history(run, metric)]


def lineage(client: Any) -> Any:
    experiment = client.get_experiment_by_name(MODEL).experiment_id
    return client.search_runs([experiment], "tags.`paceline.lineage` = 'true'")[0]


def test_what_a_draft_served_is_logged_at_200_rounds_and_at_its_end(house: House, client: Any) -> None:
    registry = house.registry()
    house.version(0)
    house.move(0, VersionState.LIVE)
    house.enqueue(registry, 1)
    house.move(1, VersionState.LIVE)
    serve(house, 1, FIRST_ROUNDS // 20 - 1)
    assert synced(house, registry)
    run = alias(client, "draft-1").run_id
    assert points(client, run, "served/accept_length") == []
    assert "Served | unknown" in alias(client, "draft-1").description

    early = serve(house, 1, 12)
    assert synced(house, registry)
    assert points(client, run, "served/accept_length") == [(240, early.accept_length)] == [(240, 2.5)]
    assert points(client, run, "served/requests") == [(240, 12.0)]
    assert points(client, run, "served/accept_length_low") == [(240, early.interval[0])]
    assert points(client, run, "served/position_acceptance") == [(1, 180 / 240), (2, 3 / 360)]
    first, later = 1 + (12 * 30 - 20) / 200, 1 + 20 / 40  # by the first output token of each bucket
    assert points(client, run, "served/output_accept_length") == [(0, first), (512, later)]
    assert points(client, run, "served/context_accept_length") == [(0, 2.5)]
    reading = served_on(house.board)[1].accept_length  # what commands print
    metrics = client.get_run(run).data.metrics
    assert (reading.value, reading.low, reading.high, reading.count) == (
        metrics["served/accept_length"],
        metrics["served/accept_length_low"],
        metrics["served/accept_length_high"],
        metrics["served/requests"],
    )
    assert "accept length 2.50" in alias(client, "live").description

    serve(house, 1, 15)
    assert synced(house, registry)  # goes on: its figures come at its end
    assert points(client, run, "served/accept_length") == [(240, 2.5)]
    late = serve(house, 1, 20, accepted=20)
    house.enqueue(registry, 2)
    house.move(2, VersionState.LIVE)
    assert synced(house, registry)  # just retired: its last requests may not have ended yet
    assert points(client, run, "served/accept_length") == [(240, 2.5)]
    house.unix.now_s += SETTLE_S
    for _ in range(2):
        assert synced(house, registry)
    assert synced(house, house.registry())  # another learner logs nothing twice
    assert points(client, run, "served/accept_length") == [(240, 2.5), (400, late.accept_length)]
    assert points(client, lineage(client).info.run_id, "served") == [(1, late.accept_length)]
    errors = points(client, lineage(client).info.run_id, "served_minus_predicted")
    assert errors == [(1, late.accept_length - 2.6)]
    assert {"calibration.png"} <= {file.path for file in client.list_artifacts(run)}
    half = ((late.interval[1] - late.accept_length) ** 2 + (1.959964 * 0.25) ** 2) ** 0.5
    card = alias(client, "draft-1").description
    assert f"{late.accept_length - 2.6:+.2f} ± {half:.2f} against what was predicted" in card
    assert "| Predicted | accept length 2.60 ± 0.49 |" in card
    assert "| Predicted | unknown: it was not to serve" in alias(client, "draft-0").description


def test_the_lineage_has_a_step_per_draft_at_the_time_it_went_live(house: House, client: Any) -> None:
    registry = house.registry()
    house.version(0)
    house.move(0, VersionState.LIVE)
    for number in (1, 2, 3):
        house.enqueue(registry, number)
    house.move(1, VersionState.LIVE)
    house.move(2, VersionState.REFUSED)
    went_live_ms = int(house.board.read().rows[1].changed_at * 1000)
    serve(house, 1, 20)
    assert synced(house, registry)
    house.move(3, VersionState.LIVE)
    house.unix.now_s += SETTLE_S
    assert synced(house, registry)
    run = lineage(client)
    assert run.info.run_name == "lineage"
    predicted = client.get_metric_history(run.info.run_id, "predicted")
    assert [(point.step, point.value) for point in predicted] == [(1, 2.6), (3, 2.6)]
    assert predicted[0].timestamp == went_live_ms
    for end, sign in (("low", -1), ("high", 1)):
        expected = pytest.approx(2.6 + sign * 1.959964 * 0.25)
        assert points(client, run.info.run_id, f"predicted_{end}") == [(1, expected), (3, expected)]
    assert points(client, run.info.run_id, "served_first_rounds") == [(1, 2.5)]
    serve(house, 3, 30, accepted=10)
    house.unix.now_s += SETTLE_S  # draft 1 has ended without another round
    assert synced(house, registry)
    assert points(client, run.info.run_id, "served_first_rounds") == [(1, 2.5), (3, 1.5)]
    assert points(client, run.info.run_id, "served") == [(1, 2.5)]


def test_a_draft_that_ended_before_it_was_told_of_has_its_first_figures_at_once(house: House, client: Any) -> None:
    registry = house.registry()
    house.version(0)
    house.move(0, VersionState.LIVE)
    for number in (1, 2):
        house.enqueue(registry, number)
        house.move(number, VersionState.LIVE)
    early = serve(house, 1, 12)
    assert synced(house, registry)  # a learner that ends now has said something of draft 1
    run, of_all = alias(client, "draft-1").run_id, lineage(client).info.run_id
    assert points(client, run, "served/accept_length") == [(240, early.accept_length)]
    assert points(client, of_all, "served_first_rounds") == [(1, early.accept_length)]
    assert points(client, of_all, "served") == []
    late = serve(house, 1, 20, accepted=20)
    house.unix.now_s += SETTLE_S
    assert synced(house, registry)
    assert points(client, run, "served/accept_length") == [(240, early.accept_length), (400, late.accept_length)]
    assert points(client, of_all, "served") == [(1, late.accept_length)]


def test_an_edited_alias_is_set_back_within_a_minute_and_says_so(house: House, client: Any) -> None:
    registry = house.registry()
    for number in (0, 1):
        house.version(number)
        house.move(number, VersionState.LIVE)
    assert synced(house, registry)
    right, wrong = alias(client, "draft-1").version, alias(client, "draft-0").version
    client.set_registered_model_alias(MODEL, "champion", wrong)
    client.set_registered_model_alias(MODEL, "live", wrong)
    check = check_aliases(house.uri, MODEL, house.board.read())
    assert (check.is_well, check.sentence.split(";")[0]) == (
        False,
        "live is draft 0 in MLflow and draft 1 on the board",
    )
    assert registry.sync(house.board.read(), house.board)  # at once: nothing is asked
    assert alias(client, "live").version == wrong
    assert COMPARE_S <= 60.0
    assert synced(house, registry)
    assert alias(client, "live").version == right
    assert alias(client, "champion").version == wrong  # nobody's but its owner's
    told = alias(client, "live").tags["paceline.alias_reset"]
    assert told.startswith(f"live named MLflow version {wrong} and not {right}, as the board says; set back at ")
    assert check_aliases(house.uri, MODEL, house.board.read()).is_well

    client.delete_registered_model_alias(MODEL, "live")
    compare_once(house.board, house.uri, MODEL, Attempts())  # as while a learning round takes long
    assert alias(client, "live").tags["paceline.alias_reset"].startswith("live was deleted")


def test_an_alias_that_follows_the_board_is_not_said_to_be_reset(house: House, client: Any) -> None:
    registry = house.registry()
    for number in (0, 1, 2):
        house.version(number)
    for number in (0, 1, 2):
        house.move(number, VersionState.LIVE)
        assert synced(house, registry)
    house.board.roll_back("operator:ada", "served worse")
    assert synced(house, registry)
    client.delete_registered_model_alias(MODEL, "draft-2")
    assert synced(house, registry)
    assert named(client) == {"live": "1", "previous": "0"}
    assert [v for v in client.search_model_versions() if "paceline.alias_reset" in v.tags] == []


def test_without_mlflow_or_without_its_model_the_check_says_which(house: House) -> None:
    away = check_aliases("http://127.0.0.1:9", MODEL, house.board.read())
    assert away.is_well is False
    assert "check that it runs, and PACELINE_MLFLOW_URI" in away.sentence
    for uri, said in (
        (f"sqlite:///{house.folder}/gone/x.db", f"got no file {house.folder}/gone/x.db, expected the database of"),
        ("foo", "got PACELINE_MLFLOW_URI 'foo', expected http://host:port or sqlite:////a/file"),
    ):
        assert said in check_aliases(uri, MODEL, house.board.read()).sentence
    with pytest.raises(TrackingUnavailable, match="got PACELINE_MLFLOW_URI 'foo'"):
        compare_once(house.board, "foo", MODEL, Attempts())
    # Of a learner that has registered nothing yet.
    compare_once(house.board, f"sqlite:///{house.folder}/gone/x.db", MODEL, Attempts())
    assert not (house.folder / "gone").exists()  # MLflow would have made it
    empty = check_aliases(house.uri, MODEL, house.board.read())
    assert (empty.is_well, "no learner has registered a draft yet" in empty.sentence) == (None, True)


def test_a_card_tells_who_did_what_and_why_without_any_markup_of_theirs(house: House, client: Any) -> None:
    registry = house.registry()
    house.version(0)
    house.move(0, VersionState.LIVE)
    house.enqueue(registry, 1)
    house.board.move(1, VersionState.LIVE, "operator:ada", "try | <b>it</b>\nnow")
    house.board.roll_back("replica:a", "draft_dead", 1, VersionState.LIVE)
    assert synced(house, registry)
    card = alias(client, "draft-1").description
    assert card.startswith("draft 1: rolled back\n")
    assert "try \\| \\<b\\>it\\</b\\> now" in card
    rows = [line.split(" | ")[1:3] for line in card.splitlines() if line.startswith("| 20")]
    assert rows == [["candidate", "learner"], ["live", "operator:ada"], ["rolled back", "replica:a"]]
    assert "gain +0.500 (+0.100 to +0.900); its parent is draft 0" in card
    assert "`paceline reproduce 1`" in card
    assert "?workflowType=machine_learning" in card
    run = client.get_run(alias(client, "draft-1").run_id)
    assert run.data.tags["mlflow.note.content"] == card
    assert (run.data.tags["paceline.state"], run.data.tags["paceline.by"]) == ("rolled_back", "replica:a")
    experiment = client.get_experiment_by_name(MODEL)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
