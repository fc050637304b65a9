"""The checks for a GPU, on the CPU: the same stages on a small target, so that they are ready when a GPU is."""

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
    assert {row["batch"]: row["dropped"] for row in report["overhead"]} == {1: {}, 4: {}}
    assert {*report["stalls"]["waits_ms"]} == {"none", "paceline", "stock HTTP"}
