"""The demo as a newcomer runs it, made small: real services, exit code 0, counts that add up, nothing left running."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from paceline.rig.models.corpus import CERTAIN_DOMAINS, load_corpus
from paceline.rig.models.target import target_key
from paceline.rig.models.training import TrainPlan

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

REQUESTS, TOKENS = 24, 16
KEYS = {
    "accept_length": {"first", "before_shift", "after_shift", "final"},
    "by_version": None,
    "traces": {"captured", "delivered", "dropped", "learned", "held_out", "rested", "pending"},
    "replay": {"rounds", "equal"},
    "lossless": {"checked", "identical"},
    "swaps": {"count", "stall_ms", "quiet_ms", "aborted", "retracted"},
    "timeline": {"domains", "accept_length", "swaps", "refused", "rolled_back"},
    "throughput_tok_s": None,
    "seconds": {"target", "start", "traffic", "settle", "lossless"},
    "mlflow_uri": None,
    "machine": {"processor", "cores", "python", "torch", "sglang"},
}


def marked(mark: str) -> list[str]:
    """Command lines of living processes that inherited the environment variable."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"PACELINE_TEST_MARK={mark}".encode() in environ.read_bytes().split(b"\0"):
                found.append(environ.with_name("cmdline").read_text().replace("\0", " "))
        except OSError:  # gone, or a zombie
            continue
    return found


@pytest.fixture(scope="module")
def demo(models, tmp_path_factory):
    """One run with the other tests' target, not the demo's own; its folder, result, report and what still runs."""
    folder, mark = tmp_path_factory.mktemp("demo"), uuid.uuid4().hex
    (folder / "data" / "targets").mkdir(parents=True)
    key = target_key(load_corpus(CERTAIN_DOMAINS), TrainPlan())
    (folder / "data" / "targets" / key).symlink_to(models[0])
    options = ["--requests", REQUESTS, "--max-tokens", TOKENS, "--data-dir", folder / "data", "--json", folder / "json"]
    options += ["--no-speed"]  # its three servers are those of test_demo_speed.py
    done = subprocess.run(
        [sys.executable, "-m", "paceline.cli", "demo", *map(str, options)],
        # setproctitle, which SGLang uses, would overwrite the mark in /proc without the second variable.
        env={**os.environ, "PACELINE_TEST_MARK": mark, "SPT_NOENV": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    left = marked(mark)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return folder, done, json.loads((folder / "json").read_text()), left


def test_the_demo_leaves_no_process_and_one_run(demo):
    folder, _, report, left = demo
    assert left == []
    (run,) = (folder / "data" / "runs").iterdir()
    assert report["mlflow_uri"] == f"sqlite:///{run / 'mlflow.db'}"


def test_the_report_has_the_promised_keys_and_no_others(demo):
    _, _, report, _ = demo
    assert set(report) == set(KEYS)
    assert {name: set(report[name]) for name, keys in KEYS.items() if keys} == {n: k for n, k in KEYS.items() if k}
    assert set(report["swaps"]["stall_ms"]) == {"p50", "max"}
    # So few traces make at most one round, and it may come too late to publish anything.
    keys = {
        "number",
        "state",
        "reason",
        "judged_accept_length",
        "predicted_accept_length",
        "served_accept_length",
        "rounds",
    }
    keys |= {"served_interval", "requests", "prediction_error", "error_half_width"}
    assert [set(line) for line in report["by_version"]] == [keys] * len(report["by_version"])


def test_the_picture_is_beside_the_report_and_is_named_last(demo):
    folder, done, _, _ = demo
    assert (folder / "json.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.rstrip().endswith(str(folder / "json.png"))


def test_every_trace_is_accounted_for(demo):
    traces = demo[2]["traces"]
    assert traces["captured"] >= REQUESTS
    assert traces["captured"] == traces["delivered"] + sum(traces["dropped"].values())
    assert traces["delivered"] == traces["learned"] + traces["held_out"] + traces["rested"] + traces["pending"]


@pytest.mark.guarantee("answers-unchanged")
def test_every_request_is_answered_as_plain_decoding_answers_it(demo):
    _, _, report, _ = demo
    assert report["lossless"] == {"checked": REQUESTS, "identical": REQUESTS}
    assert (report["swaps"]["aborted"], report["swaps"]["retracted"]) == (0, 0)


def test_no_other_progress_bars_are_drawn(demo):
    _, done, _, _ = demo
    assert "throughput" in done.stdout
    assert [bar for bar in ("Loading weights", "Writing model shards") if bar in done.stdout + done.stderr] == []
