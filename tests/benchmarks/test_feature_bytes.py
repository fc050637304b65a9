"""The table of forms: its bytes are those of the wire, its replay that of the draft that served."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paceline.benchmarks.feature_bytes import Row, forms, in_bfloat16, measured, newest_recorded, split, table
from paceline.buffer.trace import DraftTrace
from paceline.buffer.trace_codec import encode_trace
from paceline.learner.judging.paired_replay import tallies
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.learner.model.target_features import Reading
from paceline.learner.training.plan import TrainingPlan
from paceline.learner.training.trainer import DraftTrainer
from paceline.policies.acceptance import Tally

LEARNT, JUDGED = 6, 6


class Remembering:
    """A target that gives a trace the features it had with the other sign."""

    def __init__(self, traces: list[DraftTrace]) -> None:
        self._features = {trace.trace_id: trace.features for trace in traces}

    def read(self, trace: DraftTrace) -> Reading:
        assert not len(trace.features)
        return Reading(replace(trace, features=-self._features[trace.trace_id]), trace.tokens)


@pytest.fixture
def target(tiny_speculator: Any) -> Path:
    return tiny_speculator.target


@pytest.fixture
def recorded(tiny_speculator: Any) -> list[DraftTrace]:
    return [tiny_speculator.serve(i) for i in range(LEARNT + JUDGED)]


def test_every_form_is_measured_as_it_travels(tiny_speculator: Any, recorded: list[DraftTrace]) -> None:
    def draft() -> Any:
        return load_draft(tiny_speculator.draft, load_target_embedding(tiny_speculator.target))

    learnt, judged = recorded[:LEARNT], recorded[LEARNT:]
    targets = Remembering(recorded), Remembering(recorded)
    found = {form.name: measured(form, learnt, judged, draft(), draft, range(2)) for form in forms(*targets)}
    assert list(found) == ["as captured", "int8", "fp8 (e4m3)", "tokens alone", "tokens alone, in bfloat16"]
    captured, bare = found["as captured"], found["tokens alone"]
    tokens = sum(len(trace.tokens) for trace in recorded)
    assert captured.bytes_per_token == sum(len(encode_trace(trace)) for trace in recorded) / tokens
    assert (captured.off, captured.equal) == (0.0, captured.compared)
    assert captured.compared > JUDGED
    assert bare.off == pytest.approx(2.0)
    assert bare.equal < bare.compared == captured.compared
    for name in ("int8", "fp8 (e4m3)"):
        assert bare.bytes_per_token < found[name].bytes_per_token < 0.6 * captured.bytes_per_token
        assert 0.0 < found[name].off < 0.05
        assert found[name].compared == captured.compared
    fitted = draft()
    DraftTrainer(fitted, TrainingPlan(steps=3, seed=1)).fit(learnt, [])
    assert captured.lengths[1] == sum(tallies(fitted, judged, 3).values(), Tally()).accept_length


def test_a_target_in_bfloat16_is_the_same_but_for_its_dtype(tmp_path: Path, target: Path) -> None:
    (tmp_path / "half").mkdir()
    half = in_bfloat16(target, tmp_path / "half")
    assert {file.name for file in half.iterdir()} == {file.name for file in target.iterdir()}
    assert (half / "model.safetensors").resolve() == (target / "model.safetensors").resolve()
    config, whole = (json.loads((folder / "config.json").read_text()) for folder in (half, target))
    assert config == whole | {"dtype": "bfloat16"}


def test_the_table_says_what_was_found() -> None:
    rows = [Row("a", 100.04, 3.0, 0.0, 10, 10, (2.0, 2.0)), Row("b", 25.0, 5.06, 0.0123, 9, 10, (1.0, 1.0))]
    first, second = table(rows).splitlines()[2:]
    assert first == "| a | 100.0 | 3.0 | 0.0e+00 | 10 of 10 (100.00%) | 2.000 ± 0.000 |  |"
    assert second == "| b | 25.0 | 5.1 | 1.2e-02 | 9 of 10 (90.00%) | 1.000 ± 0.000 | -0.500 ± 0.000 |"


def test_no_trace_is_learnt_and_judged_on(recorded: list[DraftTrace]) -> None:
    learnt, judged = split(recorded, 5, 4)
    names = [trace.trace_id for trace in (*learnt, *judged)]
    assert (len(learnt), len(judged), len(set(names))) == (5, 4, 9)
    with pytest.raises(SystemExit, match="got 12 traces that can be used, expected 13"):
        split(recorded, 7, 6)


def test_without_recorded_traces_it_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"got no learning/\*/t0-k3.traces, .*learning.record --settings t0-k3"):
        newest_recorded(tmp_path)
