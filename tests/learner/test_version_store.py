"""A learner whose drafts travel by a store: published once they are there whole; until then it goes on learning."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import odd_stores
import pytest
from paceline.buffer.board.reason import ReasonCode, because
from paceline.buffer.board.stored_weights import check_published, remove
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.version_store import VersionStore
from paceline.buffer.board.weights_file import sha256_of
from paceline.buffer.errors import StoreUnavailable, WeightsRefused
from paceline.learner.delivery import delivery
from paceline.learner.delivery import restore as restoring
from paceline.learner.delivery.version_folders import files_of
from paceline.policies.line_delivery import Ground
from paceline.policies.promotion import Promotion, Verdict

odd_stores.register()

SAID = because(ReasonCode.PROVEN, odds=40.0)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"learnt-{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]}"


def learner_at(house: Any, uri: str, **changes: object) -> Any:
    return house.learner(buffer=replace(house.config.buffer, versions_uri=uri), **changes)


def always(monkeypatch: pytest.MonkeyPatch, verdict: Verdict, ground: Ground | None = None, serves: int = 0) -> None:
    """The gate's word in every learning round."""
    made = Promotion(verdict=verdict, reason=SAID, ground=ground, serves=serves)
    monkeypatch.setattr(delivery, "judge", lambda *_, **__: made)


def objects(place: str) -> set[str]:
    return {path.removeprefix(f"/{place}/default/") for path in fsspec.filesystem("memory").find(f"/{place}/default")}


def test_published_drafts_are_in_the_store_as_the_board_says(house, place, monkeypatch) -> None:
    always(monkeypatch, Verdict.PROMOTE)
    house.send()
    learner_at(house, f"memory://{place}").learn_once()
    rows = house.board.read().rows
    assert house.board.read().live == 1
    folders = {number: f"v{number:06d}-{row.version.sha256[:12]}" for number, row in rows.items()}
    assert [*folders] == [0, 1]
    for number, row in rows.items():
        assert row.version.weights_uri == f"memory://{place}/default/{folders[number]}"
        content = fsspec.filesystem("memory").cat(f"/{place}/default/{folders[number]}/model.safetensors")
        assert hashlib.sha256(content).hexdigest() == row.version.sha256
    files = ("config.json", "model.safetensors")
    assert objects(place) == {f"{name}/{file}" for name in folders.values() for file in files}


def test_weights_that_are_gone_here_come_back_from_the_store(house, place, monkeypatch) -> None:
    always(monkeypatch, Verdict.PROMOTE)
    house.send()
    learner_at(house, f"memory://{place}").learn_once()
    shutil.rmtree(house.config.versions_dir)
    house.send()
    assert learner_at(house, f"memory://{place}").learn_once().version == 2
    row = house.board.read().rows[1]
    assert sha256_of(house.config.versions_dir / "v000001" / "model.safetensors") == row.version.sha256
    found = files_of(row.version, house.config.versions_dir)
    assert [file.name for file in found] == ["model.safetensors", "config.json"]


@pytest.mark.guarantee("draft-not-stored")
def test_a_store_that_takes_nothing_leaves_a_draft_unpublished_and_learning_goes_on(house, place, monkeypatch) -> None:
    always(monkeypatch, Verdict.PROMOTE, Ground.PROOF)
    learner = learner_at(house, f"memory://{place}")
    learner.learn_once()
    system = fsspec.filesystem("memory")
    with monkeypatch.context() as away:
        away.setattr(type(system), "put_file", odd_stores.Expired._refuse)
        house.send()
        report = learner.learn_once()
    assert (report.version, report.promotion.verdict, report.why.code) == (None, Verdict.WAIT, ReasonCode.NOT_STORED)
    assert "got PermissionError: The provided token has expired., expected to write it" in report.why.figures["fault"]
    assert learner._heartbeat.tally.counters(house.buffer.counts()).learner.verdicts == {"not_stored": 1}
    assert (set(house.board.read().rows), house.buffer.counts().pending) == ({0}, 0)
    assert [folder.name for folder in house.config.versions_dir.iterdir()] == ["v000000"]
    house.send()
    report = learner.learn_once()
    assert (report.version, house.board.read().live) == (2, 2)
    assert house.board.read().rows[2].version.parent == 0


@pytest.mark.guarantee("draft-not-stored")
def test_a_line_that_harms_is_taken_out_though_the_store_takes_nothing(house, place, monkeypatch) -> None:
    always(monkeypatch, Verdict.PROMOTE)
    house.send()
    learner = learner_at(house, f"memory://{place}")
    learner.learn_once()
    assert house.board.read().live == 1
    always(monkeypatch, Verdict.REFUSE, Ground.HARM)
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "put_file", odd_stores.Expired._refuse)
    house.send()
    assert learner.learn_once().why.code is ReasonCode.NOT_STORED
    state = house.board.read()
    assert (state.live, state.rows[1].state, [*state.rows]) == (0, VersionState.ROLLED_BACK, [0, 1])


def test_the_first_draft_needs_the_store(house, place) -> None:
    house.send()
    with pytest.raises(StoreUnavailable, match=f"expired://{place}/default/v000000-.*The provided token has expired"):
        learner_at(house, f"expired://{place}").learn_once()
    assert house.board.read().rows == {}
    assert learner_at(house, f"memory://{place}").learn_once().outcomes["learned"] > 0


def test_a_draft_that_is_gone_from_the_store_is_restored_there(house, place, monkeypatch) -> None:
    house.send()
    learner_at(house, f"memory://{place}").learn_once()
    state, store = house.board.read(), VersionStore(f"memory://{place}/default")
    fetched = []

    def from_mlflow(version, *_):
        fetched.append(version.number)
        return [house.config.versions_dir / "v000001" / name for name in ("model.safetensors", "config.json")]

    monkeypatch.setattr(restoring, "_fetched", from_mlflow)
    assert "nothing was fetched" in restoring.restore(state, 1, "", "", store=store)
    remove(state.rows[1].version.weights_uri)
    with pytest.raises(WeightsRefused, match="`paceline restore 1` fetches it"):
        check_published(state, 1, store)
    assert "`paceline promote 1` makes it live" in restoring.restore(state, 1, "", "", store=store)
    assert fetched == [1]
    assert check_published(state, 1, store) == f"{state.rows[1].version.weights_uri}/model.safetensors"


def test_pruned_versions_leave_the_store_too(house, place, monkeypatch) -> None:
    always(monkeypatch, Verdict.PROMOTE)
    learner = learner_at(house, f"memory://{place}", kept_versions=1)
    for _ in range(2):
        house.send()
        learner.learn_once()
    assert {name[:7] for name in objects(place)} == {"v000001", "v000002"}
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "rm", odd_stores.Expired._refuse)
    house.send()
    learner.learn_once()
    here = {folder.name for folder in house.config.versions_dir.iterdir()}
    assert {name[:7] for name in objects(place)} == here == {"v000001", "v000002", "v000003"}
