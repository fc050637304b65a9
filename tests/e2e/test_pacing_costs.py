"""`paceline pacing-costs` on the real server: a table that pacing reads, and nothing left in Redis."""

import json
import os
import subprocess
import sys

import pytest
from in_memory import redis_in_memory
from paceline.buffer.redis_client import connect
from paceline.rig.readiness import free_port
from paceline.serving.pacing.costs_file import read_costs, table_of

pytestmark = [pytest.mark.e2e, pytest.mark.servers]


@pytest.fixture(scope="module")
def measured(models, tmp_path_factory):
    """What the command said, its file, and the keys that it left in Redis."""
    target, draft = models
    port, out = free_port(), tmp_path_factory.mktemp("costs") / "costs.json"
    server = [
        "--model-path", str(target), "--device", "cpu", "--log-level", "warning", "--max-running-requests", "2",
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft),
    ]  # fmt: skip
    asked = ["--out", str(out), "--batch", "1", "--batch", "2", "--max-steps", "2", "--plain"]
    env = {
        **os.environ,
        "PACELINE_CONFIG": os.devnull,
        "PACELINE_REDIS_URL": f"redis://127.0.0.1:{port}/0",
        "PACELINE_PACING_COSTS": str(out),  # which is not there yet
        "OMP_NUM_THREADS": "1",
    }
    with redis_in_memory(port), connect(env["PACELINE_REDIS_URL"], timeout_s=30.0) as client:
        command = [sys.executable, "-m", "paceline.cli", "pacing-costs", *asked, "--", *server]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, out, client.keys()


def test_every_batch_size_and_length_has_a_cost_that_pacing_reads(measured):
    said, out, _ = measured
    found = json.loads(out.read_text())
    assert {batch: len(row) for batch, row in found["cost_ms"].items()} == {"1": 3, "2": 3}
    assert found["no_speculation_ms"].keys() == {"1", "2"}
    table = table_of(read_costs(str(out)), str(out))
    assert [table.cost_ms(2, k) for k in range(3)] == found["cost_ms"]["2"]
    assert f"batch 2: 0: {found['cost_ms']['2'][0]:.1f}, 1:" in said


def test_more_drafts_and_more_requests_cost_more(measured):
    cost_ms = json.loads(measured[1].read_text())["cost_ms"]
    assert 0.0 < cost_ms["1"][0] < cost_ms["1"][2]
    assert cost_ms["1"][2] < cost_ms["2"][2]


def test_nothing_is_left_in_redis(measured):
    assert measured[2] == []
