"""Drafts that a real learner trained, in a real MLflow: evidence, a model that loads, weights that come back."""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
from learner_traffic import held_out, not_held_out
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import check_weights, sha256_of
from paceline.buffer.errors import BoardConflict, ConfigError, TrackingUnavailable, WeightsRefused
from paceline.learner.delivery.mlflow_registry import Registry
from paceline.learner.delivery.pending_registrations import PendingRegistrations
from paceline.learner.delivery.publisher import prune
from paceline.learner.delivery.restore import restore
from paceline.learner.delivery.round_evidence import Traffic, digest_of
from paceline.learner.delivery.tracking.mlflow_library import mlflow_library, open_client, using
from paceline.learner.delivery.version_folders import RESTORED_FILE, RESTORED_S
from paceline.learner.judging.replay import replay_traces
from paceline.learner.reproduce import reproduce
from paceline.learner.round.loop import Learner
from paceline.learner.training.plan import PassBudget

MODEL = "paceline-default"


class Reviewed:
    """A learner with a real MLflow, in a house."""

    def __init__(self, house: Any, folder: Path) -> None:
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        house.config = replace(house.config, mlflow_uri=self.uri, learn="always")
        self.house = house
        self.pending = PendingRegistrations(house.pending)
        self.registry = Registry(self.uri, MODEL, pending=self.pending, artifacts=folder / "artifacts")
        self.learner = Learner(house.config, house.buffer, house.board, registry=self.registry)
        self.client = open_client(self.uri)

    @property
    def state(self) -> Any:
        return self.house.board.read()

    def learn(self) -> Any:
        report = self.learner.learn_once()
        assert report.version is not None
        return report

    def promote(self, number: int) -> None:
        """Make a draft live, where it is not, and tell MLflow."""
        if self.state.live != number:
            self.house.board.move(number, VersionState.LIVE, "operator:ada", "to look at it")
        assert self.registry.sync(self.state, self.house.board)

    def folder_of(self, number: int) -> Path:
        folder: Path = self.house.config.versions_dir / f"v{number:06d}"
        return folder

    def run(self, number: int) -> Any:
        return self.client.get_run(self.client.get_model_version_by_alias(MODEL, f"draft-{number}").run_id)

    def artifact(self, number: int, name: str) -> Path:
        return Path(self.client.download_artifacts(self.run(number).info.run_id, name))


@pytest.fixture
def reviewed(house: Any, tmp_path: Path, empty_mlflow: Path) -> Iterator[Reviewed]:
    copy(empty_mlflow, tmp_path / "mlflow.db")
    made = Reviewed(house, tmp_path)
    with using(made.uri):
        yield made


def test_a_run_says_what_its_draft_learnt_from_and_was_judged_on(reviewed: Any) -> None:
    traces = [*reviewed.house.send(label="py"), *reviewed.house.send(8, label="prose")]
    report = reviewed.learn()
    run = reviewed.run(report.version)
    record = run.data
    assert run.info.start_time < run.info.end_time
    steps = reviewed.client.get_metric_history(run.info.run_id, "fit/loss")
    assert [point.value for point in steps] == list(report.fit.losses)
    assert all(run.info.start_time <= point.timestamp <= run.info.end_time for point in steps)
    assert len({point.timestamp for point in steps}) > 1
    fit = {name.removeprefix("fit/"): value for name, value in record.metrics.items() if name.startswith("fit/")}
    assert (fit["fresh_traces"], fit["held_out_traces"]) == (len(not_held_out(traces)), len(held_out(traces)))
    assert (fit["replayed_traces"], fit["skipped_steps"], fit["is_cold"]) == (0.0, report.fit.skipped_steps, 1.0)
    positions = reviewed.client.get_metric_history(run.info.run_id, "fit/mean_acceptance")
    assert [(p.step, p.value) for p in positions] == list(enumerate(report.fit.mean_acceptance, 1))
    assert (record.params["round"], record.params["weighting"]) == ("1", report.fit.weighting)

    inputs = {told.dataset.name: told for told in run.inputs.dataset_inputs}
    assert set(inputs) == {"traffic", "judged requests"}
    entries = list(reviewed.house.buffer.replay(1000))
    learnt = [entry for entry in entries if entry.trace.trace_id in {t.trace_id for t in not_held_out(traces)}]
    tags = {tag.key: tag.value for tag in inputs["traffic"].tags}
    assert inputs["traffic"].dataset.digest == digest_of([entry.entry_id for entry in learnt])
    assert (tags["mlflow.data.context"], tags["paceline.traces"]) == ("training", str(len(learnt)))
    times = [entry.trace.born_at for entry in learnt]
    assert (float(tags["paceline.first_at"]), float(tags["paceline.last_at"])) == (min(times), max(times))
    shares = Counter(entry.trace.label for entry in learnt)
    total = shares.total()
    assert tags["paceline.labels"] == f"py {shares['py'] / total:.0%}, prose {shares['prose'] / total:.0%}"


def test_the_table_of_the_gate_has_a_row_per_judged_request_and_no_word_of_a_client(reviewed: Any) -> None:
    traces = reviewed.house.send(label="py")
    report = reviewed.learn()
    text = reviewed.artifact(report.version, "gate.json").read_text()
    table = json.loads(text)
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert len(rows) == report.promotion.measured.requests > 4
    assert len({row["request"] for row in rows}) == len(rows)
    assert {row["label"] for row in rows} == {"py"}
    for row in rows:
        total = row["accept_length"] + row["reference_accept_length"]
        assert row["x"] == pytest.approx((row["accept_length"] - row["reference_accept_length"]) / total)
    told = [text, *(reviewed.artifact(report.version, name).read_text() for name in ("refit.json",))]
    assert not any(trace.request_id in part for trace in traces for part in told)
    assert reviewed.artifact(report.version, "gate.png").read_bytes()[:4] == b"\x89PNG"


def test_live_loads_without_a_pickle_and_drafts_what_replay_says(
    reviewed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pickle

    traces = reviewed.house.send()
    report = reviewed.learn()
    reviewed.promote(report.version)
    load = mlflow_library("pyfunc").load_model
    monkeypatch.setattr(pickle, "load", lambda *_: pytest.fail("a pickle was read"))
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("a pickle was read"))
    target = str(reviewed.house.speculator.target)
    model = load(f"models:/{MODEL}@live", model_config={"target_path": target})
    draft = reviewed.house.draft(report.version)
    trace, steps = max(traces, key=lambda trace: len(trace.tokens)), 3
    (runs_T,) = replay_traces(draft, [trace], steps)
    roots = [root for root in range(2, len(trace.tokens) - steps) if runs_T[root] >= 0]
    features = trace.features.astype(np.float64)
    rows = [(trace.tokens[: root + 1].tolist(), features[:root].tolist()) for root in roots]
    found = model.predict(pd.DataFrame(rows, columns=["tokens", "features"]), params={"steps": steps})
    assert len(found) > 4
    for root, drafts in zip(roots, found["drafts"], strict=True):
        committed = trace.tokens[root + 1 : root + 1 + steps].tolist()
        equal = [ours == theirs for ours, theirs in zip(drafts, committed, strict=True)]
        assert runs_T[root] == (equal.index(False) if False in equal else steps)
    with pytest.raises(ValueError, match=r"features: got .* one row of every token but the last"):
        model.predict(pd.DataFrame([([1, 2], [[0.0] * 48] * 2)], columns=["tokens", "features"]))
    with pytest.raises(ConfigError, match="target_path"):
        load(f"models:/{MODEL}@live").predict(pd.DataFrame(rows[:1], columns=["tokens", "features"]))


def test_two_drafts_have_schemas_to_compare_and_one_that_never_drafted_says_so(reviewed: Any) -> None:
    reviewed.house.send()
    number = reviewed.learn().version
    assert reviewed.state.rows[number].state is VersionState.REFUSED
    models, pyfunc = mlflow_library("models"), mlflow_library("pyfunc")
    signatures = [models.get_model_info(f"models:/{MODEL}@draft-{n}").signature for n in (0, number)]
    assert [signature.inputs.input_names() for signature in signatures] == [["tokens", "features"]] * 2
    with pytest.raises(WeightsRefused, match=f"draft {number}: got no model.safetensors in MLflow"):
        pyfunc.load_model(f"models:/{MODEL}@draft-{number}")
    shutil.rmtree(reviewed.folder_of(number))
    with pytest.raises(TrackingUnavailable, match="kept of drafts that drafted somewhere"):
        restore(reviewed.state, number, reviewed.uri, MODEL)


def test_a_pruned_draft_is_restored_as_published_can_be_promoted_and_stays_for_a_while(reviewed: Any) -> None:
    numbers = []
    for _ in range(2):
        reviewed.house.send()
        numbers.append(reviewed.learn().version)
    for number in (*numbers, 0):
        reviewed.promote(number)
    number, folder = numbers[0], reviewed.folder_of(numbers[0])
    versions = reviewed.house.config.versions_dir
    assert prune(versions, reviewed.state, 1) == [number]
    with pytest.raises(WeightsRefused, match=f"`paceline restore {number}` fetches it from MLflow"):
        check_weights(reviewed.state, number)
    told = restore(reviewed.state, number, reviewed.uri, MODEL)
    assert f"`paceline promote {number}` makes it live" in told
    file = check_weights(reviewed.state, number)
    assert sha256_of(file) == reviewed.state.rows[number].version.sha256
    assert (folder / "config.json").read_bytes() == (reviewed.folder_of(0) / "config.json").read_bytes()
    assert "on disk, as published" in restore(reviewed.state, number, reviewed.uri, MODEL)
    assert prune(versions, reviewed.state, 1) == []
    long_ago = time.time() - RESTORED_S - 1.0
    os.utime(folder / RESTORED_FILE, (long_ago, long_ago))
    assert prune(versions, reviewed.state, 1) == [number]


def test_what_cannot_be_restored_is_said(reviewed: Any, tmp_path: Path) -> None:
    reviewed.house.send()
    number = reviewed.learn().version
    reviewed.promote(number)
    folder = reviewed.folder_of(number)
    with pytest.raises(BoardConflict, match="draft 99: got a number that is not on the board"):
        restore(reviewed.state, 99, reviewed.uri, MODEL)
    (folder / "model.safetensors").write_bytes(b"changed")
    with pytest.raises(WeightsRefused, match="got other files in"):
        restore(reviewed.state, number, reviewed.uri, MODEL)
    shutil.rmtree(folder)
    with pytest.raises(TrackingUnavailable, match="check that it runs"):
        restore(reviewed.state, number, "http://127.0.0.1:9", MODEL)
    stored = list((tmp_path / "artifacts").rglob("model.safetensors"))
    assert stored
    for file in stored:
        file.write_bytes(b"changed")
    with pytest.raises(WeightsRefused, match="from MLflow, expected"):
        restore(reviewed.state, number, reviewed.uri, MODEL)
    assert not folder.exists()


def test_a_draft_that_had_time_for_fewer_passes_is_fitted_again_with_as_many(reviewed: Any, monkeypatch: Any) -> None:
    house, passes = reviewed.house, iter((2, 1))
    monkeypatch.setattr(PassBudget, "begin", lambda *_: next(passes))
    for _ in range(2):
        house.send()
        number = reviewed.learn().version
    found = reproduce(house.config, house.buffer, house.board, pending=reviewed.pending, number=number)
    assert reviewed.run(number).data.params["passes"] == "1"
    assert found.is_equal, found.sentence


def test_a_draft_is_fitted_again_bit_by_bit_until_its_traces_or_its_checkpoint_are_gone(reviewed: Any) -> None:
    house, board = reviewed.house, reviewed.house.board
    numbers = []
    for _ in range(3):
        house.send()
        numbers.append(reviewed.learn().version)

    def again(number: int) -> Any:
        return reproduce(house.config, house.buffer, board, pending=reviewed.pending, number=number)

    last = again(numbers[-1])
    assert last.is_equal, last.sentence
    assert "is the published one" in last.sentence
    before = again(numbers[-2])
    assert before.is_equal is None
    assert "PACELINE_KEPT_CHECKPOINTS" in before.sentence
    initial = again(0)
    assert (initial.is_equal, "no learning round made it here" in initial.sentence) == (None, True)
    with pytest.raises(BoardConflict, match="draft 99"):
        again(99)
    newest = list(house.buffer.replay(1000))[-1]
    house.buffer.replay = lambda *_, **__: iter([newest])
    gone = again(numbers[-1])
    assert gone.is_equal is None
    assert "the buffer no longer holds" in gone.sentence


def test_traffic_is_described_without_what_is_not_known() -> None:
    assert Traffic.of([]) == Traffic(digest=digest_of([]), traces=0, requests=0, labels={}, first_at=None, last_at=None)
    assert digest_of(["10-0", "9-1"]) == digest_of(["9-1", "10-0"]) != digest_of(["9-1"])
