"""kill -9 of a learner at every point of a round: its successor leaves no trace unaccounted and no half version."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_board import RedisVersionBoard
from paceline.buffer.redis_stream import RedisTraceBuffer
from paceline.buffer.version import VersionState
from paceline.buffer.weights import check_weights, weights_file
from paceline.learner.intake import is_held_out
from paceline.learner.weights import load_draft, load_target_embedding

SCRIPT = Path(__file__).with_name("mortal_learner.py")
TRACES, SHARE, LEASE_S = 24, 0.25, 0.5
POINTS = (
    "before_training",
    "before_the_gate",
    "half_way_through_publishing",
    "between_folder_and_board",
    "between_candidate_and_verdict",
    "behind_the_verdict",
    "before_the_checkpoint",
    "half_way_through_the_checkpoint",
    "between_checkpoint_and_ack",
)


@pytest.fixture
def house(tiny_speculator, redis_url, redis_client, tmp_path):
    """24 traces in a real Redis, and the settings of learners that share a folder."""
    buffer = RedisTraceBuffer(redis_client, BufferConfig())
    traces = [tiny_speculator.serve(number) for number in range(TRACES)]
    buffer.append(traces)
    env = {
        "PACELINE_REDIS_URL": redis_url,
        "PACELINE_TARGET": "target",
        "PACELINE_TARGET_PATH": str(tiny_speculator.target),
        "PACELINE_TARGET_VERSION": "1",
        "PACELINE_DRAFT": str(tiny_speculator.draft),
        "PACELINE_DATA_DIR": str(tmp_path / "data"),
        "PACELINE_MLFLOW_URI": "http://127.0.0.1:9",  # nothing listens: versions wait in the outbox
        "PACELINE_LEARNER": "mortal",
        "PACELINE_MIN_NEW_TRACES": "8",
        "PACELINE_PASSES": "2",
        "PACELINE_HOLDOUT_SHARE": str(SHARE),
        "PACELINE_MIN_HOLDOUT_REQUESTS": "2",
        "PACELINE_GATE_CONFIDENCE": "0.01",  # so that there is a verdict in most rounds, whichever
        "PACELINE_ROUND_LEASE_S": str(LEASE_S),
        "PACELINE_BUFFER_CLAIM_IDLE_MS": "1",
        "OMP_NUM_THREADS": "1",
    }
    return buffer, RedisVersionBoard(redis_client, BufferConfig()), traces, env, tiny_speculator


def learn(env, point):
    command = [sys.executable, str(SCRIPT), point]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=300, check=False)


def wait_for_lease(client):
    """Until the dead learner's lease has ended: Redis says when that is."""
    key = "paceline:{default}:lease:learner:default"
    while (left_ms := client.pttl(key)) > 0:
        client.blpop("paceline:{default}:nobody-writes-here", timeout=left_ms / 1000 + 0.01)


@pytest.mark.parametrize("point", POINTS)
def test_a_learner_killed_at_any_point_leaves_nothing_unaccounted_and_nothing_half(house, redis_client, point):
    buffer, board, traces, env, speculator = house
    died = learn(env, point)
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    assert_no_half_version(board, speculator)
    wait_for_lease(redis_client)
    healed = learn(env, "none")
    assert healed.returncode == 0, healed.stderr[-2000:]
    counts = buffer.counts()
    held_out = sum(is_held_out(trace.request_id, SHARE) for trace in traces)
    assert dict(counts.acked) == {"learned": TRACES - held_out, "held_out": held_out}, healed.stdout
    assert (counts.delivered, counts.pending, counts.dead_lettered, counts.trimmed) == (TRACES, 0, 0, 0)
    assert_no_half_version(board, speculator)
    assert VersionState.CANDIDATE not in {row.state for row in board.read().rows.values()}


def assert_no_half_version(board, speculator):
    """Every version on the board has whole weights of the digest it was published with, and a draft can be read."""
    state = board.read()
    for number, row in state.rows.items():
        check_weights(state, number)
        load_draft(weights_file(row.version.weights_uri).parent, load_target_embedding(speculator.target))


def test_the_script_knows_these_points_and_no_others():
    source = SCRIPT.read_text(encoding="utf-8")
    assert [line.split('"')[1] for line in source.splitlines() if '": (' in line] == list(POINTS)


def test_two_learners_at_once_learn_every_trace_once(house):
    buffer, _, _, env, _ = house
    command = [sys.executable, str(SCRIPT), "none"]
    pair = [
        subprocess.Popen(
            command, env={**os.environ, **env, "PACELINE_LEARNER": name}, stdout=subprocess.PIPE, text=True
        )
        for name in ("first", "second")
    ]
    said = [json.loads(line) for process in pair for line in process.communicate(timeout=300)[0].splitlines()]
    counts = buffer.counts()
    assert sum(counts.acked.values()) + counts.pending == TRACES
    assert sum(line.get("learned", 0) for line in said) == counts.acked["learned"]
    assert set(counts.acked) <= {"learned", "held_out"}
