"""The benches for a GPU, on the CPU: the same stages on a small target, so that they are ready when a GPU is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from paceline.benchmarks.gpu.run import STAGES

pytestmark = [pytest.mark.e2e, pytest.mark.servers]


def test_every_stage_runs_and_every_check_passes(tmp_path: Path) -> None:
    out, data = tmp_path / "out", tmp_path / "data"
    command = [sys.executable, "-m", "paceline.benchmarks.gpu.run", "--device", "cpu", "--tiny"]
    subprocess.run([*command, "--out", str(out), "--data-dir", str(data)], check=True)
    report = json.loads((out / "report.json").read_text())
    assert {*report["seconds"]} == {"models and server", *STAGES}
    verdicts = {finding["name"]: finding["is_right"] for finding in report["findings"]}
    assert [name for name, is_right in verdicts.items() if not is_right] == []
    assert sum(name.endswith("committed tokens equal the answer") for name in verdicts) == 3


def test_every_cost_is_measured_and_written_as_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline.benchmarks.gpu.costs", "--device", "cpu", "--tiny"]
    subprocess.run([*command, "--out", str(tmp_path)], check=True)
    figures = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    assert [figure for figure in figures if figure["figure"] == "failed"] == []
    by_name = {figure["figure"]: figure for figure in figures}
    assert {*by_name} == {
        *("machine", "server up", "server", "rounds", "same answers", "profile", "locks", "swap waits", "stock waits")
    }
    one_by_one = next(each for each in figures if each["figure"] == "same answers" and each["concurrency"] == 1)
    assert {one_by_one[pair] for pair in one_by_one if " as " in pair} == {"8 of 8"}  # float32 on the CPU host
    rounds = [figure for figure in figures if figure["figure"] == "rounds"]
    assert [(figure["batch"], figure["dropped"]) for figure in rounds] == [(1, {}), (2, {})]
    # Opted out, a round's hook chooses; captured, its tensors go to the host and to the outbox as well.
    assert "ForwardOutput.copy_to_host" not in rounds[0]["hooks"]["opted out"]
    assert rounds[0]["hooks"]["captured"]["ForwardOutput.copy_to_host"].startswith("1.")


def test_a_real_chat_model_is_learnt_and_served_like_without_a_draft(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline.benchmarks.gpu.shift", "--device", "cpu", "--tiny"]
    subprocess.run([*command, "--out", str(tmp_path / "out"), "--data-dir", str(tmp_path / "data")], check=True)
    figures = [json.loads(line) for line in (tmp_path / "out" / "figures.jsonl").read_text().splitlines()]
    # Of four requests a draft may learn nothing that is proven: then there is none to hand over.
    assert {figure["step"] for figure in figures if figure["figure"] == "failed"} <= {"static's draft"}
    turns = [figure for figure in figures if figure["figure"] == "turns"]
    assert [(turn["domain"], turn["stage"], turn["batch"]) for turn in turns] == [
        (domain, stage, batch)
        for domain, stage in (("explain", "learnt"), ("tools", "shifted"), ("tools", "learnt"))
        for batch in (1, 2)
    ]
    for turn in turns:  # float32 on the CPU host: not a token differs
        assert {same.split(" of ")[0] == same.split(" of ")[1] for same in turn["same_answers"].values()} == {True}
    traces = [figure["traces"] for figure in figures if figure["figure"] == "learnt"]
    assert [(each["captured"], each["delivered"], each["dropped"]) for each in traces] == [(4, 4, {}), (20, 20, {})]
