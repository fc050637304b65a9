"""A learner goes on where one on another machine stopped: its checkpoints are in the store that drafts travel by."""

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import odd_stores
import pytest
from paceline.buffer.errors import ConfigError, StoreUnavailable
from paceline.learner.delivery.pending_registrations import PendingRegistrations
from paceline.learner.reproduce import reproduce
from paceline.learner.round.learning_report import LearningKind
from paceline.learner.round.loop import Learner
from paceline.learner.state import checkpoint

odd_stores.register()


class Machines:
    """Learners that share Redis, MLflow and a store, and no disk."""

    def __init__(self, house: Any, folder: Path) -> None:
        self.house = house
        self.folder = folder
        self.place = f"machines-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
        self.scheme = "memory"

    def config(self, disk: str) -> Any:
        buffer = replace(self.house.config.buffer, versions_uri=f"{self.scheme}://{self.place}")
        return replace(self.house.config, data_dir=self.folder / disk, buffer=buffer)

    def learner(self, disk: str) -> Learner:
        made = self.config(disk)
        return self.house.learner(data_dir=made.data_dir, buffer=made.buffer)

    def learn(self, learner: Learner) -> Any:
        self.house.send()
        return learner.learn_once()

    def newest(self, disk: str) -> Any:
        return checkpoint.newest(self.config(disk).checkpoints_dir)

    def again(self, disk: str, number: int) -> Any:
        pending = PendingRegistrations(self.house.pending)
        return reproduce(self.config(disk), self.house.buffer, self.house.board, pending=pending, number=number)

    def stored(self) -> dict[str, str]:
        """Path below the store's checkpoints -> full path of every object there."""
        root = f"/{self.place}/_checkpoints/default/"
        return {path.removeprefix(root): path for path in fsspec.filesystem("memory").find(root)}

    def object(self, beginning: str) -> str:
        (found,) = (path for name, path in self.stored().items() if name.startswith(beginning))
        return found

    def unstored(self, learner: Learner) -> int:
        return learner._heartbeat.tally.counters(self.house.buffer.counts()).learner.unstored_checkpoints


@pytest.fixture
def machines(house: Any, tmp_path: Path) -> Machines:
    return Machines(house, tmp_path)


@pytest.mark.guarantee("checkpoints-travel")
def test_a_learner_with_an_empty_disk_goes_on_and_fits_earlier_drafts_again(machines: Machines) -> None:
    first = machines.learner("first")
    for _ in range(2):
        machines.learn(first)
    notes, trainer = machines.newest("first")
    assert {name.partition("/")[0] for name in machines.stored()} == {"round-00000001", "round-00000002"}
    report = machines.learn(machines.learner("second"))
    assert (report.kind, report.replayed > 0) == (LearningKind.LEARNED, True)
    went_on = machines.config("second").checkpoints_dir / "earlier" / trainer.parent.name / trainer.name
    assert went_on.read_bytes() == trainer.read_bytes()
    after, _ = machines.newest("second")
    assert after.rounds_trained == notes.rounds_trained + 1 == 3
    assert after.optimiser_steps > notes.optimiser_steps > 0
    assert machines.house.board.read().rows[3].version.parent == notes.parent == 2
    fitted = [name for ids in machines.house.fitted for name in ids]
    assert len(fitted) == len(set(fitted))

    assert {name.partition("/")[0] for name in machines.stored()} == {"round-00000002", "round-00000003"}
    here, elsewhere, gone = machines.again("second", 3), machines.again("third", 3), machines.again("third", 2)
    assert (here.is_equal, elsewhere.is_equal, gone.is_equal) == (True, True, None), (here, elsewhere)
    assert f"and from memory://{machines.place}/_checkpoints/default; PACELINE_KEPT" in gone.sentence
    assert machines.newest("third") is None


@pytest.mark.guarantee("checkpoints-travel")
def test_a_checkpoint_that_was_changed_is_refused_with_its_reason(machines: Machines) -> None:
    system = fsspec.filesystem("memory")
    first = machines.learner("first")
    for _ in range(2):
        machines.learn(first)
    trainer = machines.object("round-00000002/trainer-")
    content = system.cat(trainer)
    expected = hashlib.sha256(content).hexdigest()[:12]
    system.pipe(trainer, content[:-1] + b"-")
    machines.house.send()
    second = machines.learner("second")
    with pytest.raises(ConfigError, match=rf"trainer-{expected}.pt: got sha256 .*expected {expected}… .*was changed"):
        second.learn_once()
    assert machines.newest("second") is None
    system.pipe(trainer, content)
    said = machines.object("round-00000002/stored.json")
    stored = json.loads(system.cat(said))
    for changed, why in (
        (b"{}", "expected what a learner wrote"),
        (stored | {"notes": "{}"}, "got other notes than its digest is of"),
        (stored | {"layout": 2}, "got layout 2 and learning round 2, expected 1"),
        (stored | {"parent_sha256": "0" * 64}, "another board's"),
        (stored | {"trainer_sha256": "../../v000001"}, "expected what a learner wrote"),
    ):
        system.pipe(said, changed if isinstance(changed, bytes) else json.dumps(changed).encode())
        with pytest.raises(ConfigError, match=why):
            second.learn_once()
    system.rm(f"/{machines.place}/_checkpoints/default/round-00000002", recursive=True)
    assert second.learn_once().kind is LearningKind.LEARNED
    assert machines.newest("second")[0].rounds_trained == 2


@pytest.mark.guarantee("checkpoints-travel")
def test_a_store_that_takes_no_checkpoint_costs_no_learning_round_and_is_counted(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    system = type(fsspec.filesystem("memory"))
    take = system.put_file

    def put_file(self: Any, here: str, there: str, **named: Any) -> None:
        if "_checkpoints" in there:
            raise PermissionError("The provided token has expired.")
        take(self, here, there, **named)

    learner = machines.learner("first")
    with monkeypatch.context() as away, caplog.at_level(logging.WARNING):
        away.setattr(system, "put_file", put_file)
        report = machines.learn(learner)
    assert (report.kind, report.version) == (LearningKind.LEARNED, 1)
    assert (machines.house.buffer.counts().pending, machines.unstored(learner), machines.stored()) == (0, 1, {})
    assert "the checkpoint is on this machine's disk alone until the next learning round" in caplog.text
    assert "The provided token has expired" in caplog.text
    machines.learn(learner)
    assert machines.unstored(learner) == 1
    assert {name.partition("/")[0] for name in machines.stored()} == {"round-00000002"}


def test_what_cannot_be_fetched_is_needed_by_an_empty_disk_alone(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machines.learn(machines.learner("first"))
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "ls", odd_stores.Expired._refuse)
    machines.house.send()
    with pytest.raises(
        StoreUnavailable, match=r"_checkpoints/default: got PermissionError: The provided token has exp"
    ):
        machines.learner("second").learn_once()
    assert machines.newest("second") is None
    assert machines.learner("first").learn_once().kind is LearningKind.LEARNED
    assert "learning goes on from this disk's checkpoint" in caplog.text


def test_a_learner_that_another_one_has_overtaken_fetches_its_checkpoint_before_it_claims(machines: Machines) -> None:
    first, second = machines.learner("first"), machines.learner("second")
    machines.learn(first)
    machines.learn(second)
    report = machines.learn(first)
    assert (report.kind, "its checkpoint was fetched" in str(report.why)) == (LearningKind.IDLE, True)
    assert first.learn_once().kind is LearningKind.LEARNED
    assert machines.newest("first")[0].rounds_trained == 3
    assert machines.house.board.read().rows[3].version.parent == 2


def test_what_a_resting_learner_noted_travels_without_its_trainer(machines: Machines) -> None:
    house = machines.house
    learner = machines.learner("first")
    machines.learn(learner)
    before = machines.object("round-00000001/trainer-")
    house.config = replace(house.config, learn="never")
    machines.learn(machines.learner("first"))
    assert machines.object("round-00000001/trainer-") == before
    machines.learn(machines.learner("second"))
    assert machines.newest("second")[0].rounds_rested == 2
    assert house.buffer.counts().acked["rested"] > 0
