"""The whole loop on the real parts: SGLang, Redis, a Celery worker and MLflow; the command line on top."""

import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from paceline.buffer.version import VersionState
from paceline.demo.services import learner_service

pytestmark = pytest.mark.e2e

ROUND = 24
MEMBER = "learner:e2e-learner"
WAVES = 8


def cli(rig, *words):
    command = [sys.executable, "-m", "paceline.cli", *words, "--redis-url", rig.redis_url, "--speculator", "e2e"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def learner_env(rig, folder: Path):
    return {
        "PACELINE_REDIS_URL": rig.redis_url,
        "PACELINE_SPECULATOR": "e2e",
        "PACELINE_TARGET": "e2e-target",
        "PACELINE_TARGET_PATH": str(rig.target),
        "PACELINE_DRAFT": str(rig.draft),
        "PACELINE_DATA_DIR": str(folder),
        "PACELINE_MLFLOW_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "PACELINE_LEARNER": "e2e-learner",
        "PACELINE_MIN_NEW_TRACES": str(ROUND),
        "PACELINE_HOLDOUT_SHARE": "0.25",
        "PACELINE_ROUND_INTERVAL_S": "1.0",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="module")
def learned(rig, tmp_path_factory):
    """Serve waves of requests with a learner at work until a version of its own is live; returns the replies."""
    folder = tmp_path_factory.mktemp("learner")
    started_with = rig.board.read().live
    jobs = [{"text": rig.texts[i % 30][150 * (i // 30) :][:160], "max_tokens": 64} for i in range(WAVES * ROUND)]
    replies = []
    with learner_service(log=folder / "learner.log", env=learner_env(rig, folder)):
        for wave in range(WAVES):
            batch = jobs[wave * ROUND : (wave + 1) * ROUND]
            replies += rig.generate_all([{**job, "rid": f"loop-{wave}-{i}"} for i, job in enumerate(batch)])
            if wave >= 2 and rig.board.read().live not in {None, started_with}:
                break
        rig.until(lambda: rig.board.read().live not in {None, started_with}, "a learnt version to go live", 240.0)
        live = rig.board.read().live
        rig.until(lambda: rig.reading()["draft_version"] >= live, "the swap")
        jobs = [{"rid": f"after-{i}", "text": rig.texts[i][:160], "max_tokens": 64} for i in range(ROUND)]
        after = rig.generate_all(jobs)
        rig.until(lambda: not is_learning(rig), "the round's end", 240.0)
        said = rig.board.heartbeats()[MEMBER]  # it expires soon after the learner has ended
    return folder, replies, after, said


def is_learning(rig):
    return rig.board.heartbeats()[MEMBER]["kind"] == "learning"


def accept_length(replies):
    drafts = sum(reply["meta_info"]["spec_num_correct_drafts"] for reply in replies)
    return 1 + drafts / sum(reply["meta_info"]["spec_verify_ct"] for reply in replies)


def test_the_server_accepts_more_after_learning_from_its_own_traffic(learned):
    _, replies, after, _ = learned
    assert accept_length(after) > accept_length(replies[:ROUND]) + 0.15


def test_no_request_was_touched_by_learning_or_swaps(learned):
    _, replies, after, _ = learned
    assert all(r["meta_info"]["finish_reason"]["type"] == "length" for r in replies + after)
    assert sum(r["meta_info"]["num_retractions"] for r in replies) == 0


def test_every_delivered_trace_is_learned_held_out_or_pending(rig, learned):
    rig.drained()
    counts = rig.buffer.counts()
    assert counts.delivered == sum(counts.acked.values()) + counts.pending
    assert counts.acked["learned"] > 0
    assert counts.acked["held_out"] > 0
    assert set(counts.acked) <= {"learned", "held_out"}


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")  # MLflow's own query
def test_a_live_version_is_a_registered_model_with_its_lineage(rig, learned):
    folder, *_ = learned
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (model,) = client.search_registered_models()
    state = rig.board.read()
    live = client.get_model_version_by_alias(model.name, "live")
    assert live.tags["paceline.version"] == str(state.live)
    assert live.tags["paceline.objective"] == "soft"
    run = client.get_run(live.run_id)
    assert run.data.metrics["holdout_accept_length"] > run.data.metrics["live_holdout_accept_length"]
    steps = client.get_metric_history(live.run_id, "loss")
    assert len(steps) > 10


def test_the_learner_replays_what_was_served_by_every_version(learned):
    *_, said = learned
    assert said["identity_compared"] > 100
    assert said["identity_equal"] >= 0.999 * said["identity_compared"]


def test_the_command_line_lists_promotes_and_rolls_back(rig, learned):
    listed = cli(rig, "versions")
    assert listed.returncode == 0
    live = rig.board.read().live
    assert "live" in listed.stdout
    assert cli(rig, "promote", "0", "--why", "by hand").returncode == 0
    rig.until(lambda: rig.reading()["draft_version"] == 0, "the promotion")
    assert cli(rig, "rollback").returncode == 0
    rig.until(lambda: rig.reading()["draft_version"] == live, "the roll back")
    assert rig.board.read().rows[0].state is VersionState.ROLLED_BACK


def test_promoting_a_number_nobody_knows_is_an_error(rig, learned):
    failed = cli(rig, "promote", "999")
    assert failed.returncode == 1
    assert "version 999: got a number that is not on the board, expected one of [0, " in failed.stderr
