"""A target that drafts by its own MTP layer, on the real server: captured, replayed, learned from and swapped."""

import json
import logging
import os
import subprocess
import sys
from functools import partial

import pytest
from learned_draft import register
from mtp_targets import deepseek_beside, glm_of, mimo_of
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import WEIGHTS_FILE, sha256_of, weights_file
from paceline.buffer.drafts.mtp_layer import layer_names
from paceline.buffer.drafts.single_file import draft_folder
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding, load_target_head, save_draft
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from paceline.policies.acceptance import Tally, identity, replayed_tally
from paceline.rig.services import learner_service
from safetensors.torch import load_file
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

REQUESTS, WAVES = 24, 12
TARGETS = {"mimo": mimo_of, "glm": glm_of, "deepseek": deepseek_beside}
log = logging.getLogger(__name__)


@pytest.fixture(scope="module", params=TARGETS)
def target(request, models, tmp_path_factory):
    return TARGETS[request.param](models[0], tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def served(target, start_rig, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mtp")
    # The last of a flag counts. Room for all requests, and no cached prefix that other weights have drafted for.
    more = ["--speculative-algorithm", "NEXTN", "--trust-remote-code"]
    more += ["--max-total-tokens", "16384", "--disable-radix-cache"]
    with start_rig((target, target), folder, more, {"PACELINE_CACHE_DIR": str(folder / "servers")}) as rig:
        yield rig


@pytest.fixture(scope="module")
def layer(served):
    """The layer as the learner finds it in the target's folder."""
    return draft_folder(served.target, served.folder / "learners")


@pytest.fixture(scope="module")
def load(target):
    return partial(load_draft, embedding=load_target_embedding(target), target_head=partial(load_target_head, target))


def traces_of(rig, name, start=0):
    """Serve and return a trace each of so many requests, and the answers."""
    texts = [text[start:][:160] for text in rig.texts[:REQUESTS]]
    jobs = [{"rid": f"{name}-{i}", "text": text, "max_tokens": 48} for i, text in enumerate(texts)]
    replies = rig.generate_all(jobs)
    assert rig.drained().swap_reason == ""
    found = {entry.trace.request_id: entry.trace for entry in rig.buffer.replay(10_000)}
    return [found[job["rid"]] for job in jobs], [reply["output_ids"] for reply in replies]


def assert_replayed_as_served(draft, traces):
    runs = replay_traces(draft, traces, 3)
    pairs = [identity(trace, run) for trace, run in zip(traces, runs, strict=True)]
    assert sum(compared for _, compared in pairs) > 200
    assert [equal for equal, _ in pairs] == [compared for _, compared in pairs]


def test_what_the_layer_drafts_is_replayed_learned_from_and_swapped(served, layer, load, tmp_path):
    initial = register(served, layer)
    served.board.move(initial, VersionState.LIVE, "test", "served from the start")
    traces, plain = traces_of(served, "first")
    width = load(layer).config.hidden_size
    assert {trace.features.shape[1] for trace in traces} == {width}  # the last hidden state alone
    assert_replayed_as_served(load(layer), traces)
    # Server and learner have taken the same file out of the target's, without having seen each other's.
    assert served.status().loaded_sha256 == sha256_of(layer / WEIGHTS_FILE)

    trainer = DraftTrainer(load(layer), TrainingPlan(steps=3, passes=8))
    trainer.fit(traces, [])
    save_draft(trainer.draft, tmp_path / "learned")
    number = register(served, tmp_path / "learned")
    served.board.move(number, VersionState.LIVE, "test", "learned")
    until(lambda: served.status().draft_version == number, "the swap")
    traces, answers = traces_of(served, "second")
    assert {trace.draft_version for trace in traces} == {number}
    assert answers == plain
    assert_replayed_as_served(load(tmp_path / "learned"), traces)
    assert sum(int(trace.rounds.accepted.sum()) for trace in traces) > 50

    served.board.roll_back("operator:test", "back to the target's own layer")
    until(lambda: served.status().draft_version == initial, "the roll back")


def test_what_is_learned_from_some_requests_has_more_accepted_of_others_whatever_the_seed(served, layer, load):
    asked = [traces_of(served, f"learn-{part}", start=160 * part)[0] for part in range(1, 4)]
    held_out = asked.pop()
    before = accept_length(load(layer), held_out)
    after = []
    for seed in range(3):
        trainer = DraftTrainer(load(layer), TrainingPlan(steps=3, passes=3, seed=seed))
        trainer.fit([trace for part in asked for trace in part], [])
        after.append(accept_length(trainer.draft, held_out))
    log.info("accept length of %d other requests: %.3f, learned %s", REQUESTS, before, after)
    assert min(after) > before + 0.2


def accept_length(draft, traces):
    tallies = map(replayed_tally, traces, replay_traces(draft, traces, 3))
    return sum(tallies, Tally()).accept_length


def test_a_learner_takes_the_layer_from_the_target_and_publishes_it_alone(served, layer, tmp_path):
    env = {
        "PACELINE_REDIS_URL": served.redis_url,
        "PACELINE_SPECULATOR": "e2e",
        "PACELINE_TARGET": "e2e-target",
        "PACELINE_TARGET_PATH": str(served.target),
        "PACELINE_DRAFT": str(served.target),
        "PACELINE_CACHE_DIR": str(tmp_path / "cache"),
        "PACELINE_DATA_DIR": str(tmp_path),
        "PACELINE_MLFLOW_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "PACELINE_MIN_NEW_TRACES": "16",
        "PACELINE_ROUND_INTERVAL_S": "1.0",
        "OMP_NUM_THREADS": "1",
    }
    started_with = served.board.read().live
    with learner_service(log=tmp_path / "learner.log", env=env):
        for wave in range(WAVES):
            traces_of(served, f"wave-{wave}", start=160 * (5 + wave))
            until(lambda: served.buffer.counts().pending < REQUESTS, "the learner to keep up", 240.0)
            if served.board.read().live != started_with:
                break
    state = served.board.read()
    version = state.rows[state.live].version
    assert version.number != started_with, f"{WAVES} waves, and no draft passed the gate"
    assert version.drafter == "mtp"
    published = load_file(weights_file(version.weights_uri))
    assert published.keys() == load_file(layer / WEIGHTS_FILE).keys()
    prefix = layer_names(json.loads((served.target / "config.json").read_text())).prefix
    assert all(name.startswith(prefix) for name in published)
    until(lambda: served.status().draft_version == version.number, "the swap")


def doctor(*flags, **env):
    """What `paceline doctor` finds about a server with these flags, by topic."""
    command = [sys.executable, "-m", "paceline.cli", "doctor", "--json", "--", *flags]
    said = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=300, check=False)
    lines = map(json.loads, said.stdout.splitlines())
    return {line["topic"]: (line["level"], line["sentence"]) for line in lines}


def test_the_doctor_says_what_happens_with_an_mtp_layer(served, tmp_path):
    given = ["--model-path", str(served.target), "--device", "cpu", "--speculative-algorithm", "NEXTN"]
    given += ["--trust-remote-code", "--speculative-draft-model-path"]
    env = {"PACELINE_REDIS_URL": served.redis_url, "PACELINE_CACHE_DIR": str(tmp_path)}
    found = doctor(*given, str(served.target), **env)
    assert found["flags"][1].startswith("SGLang resolves them to EAGLE, steps 3, top-k 1"), found["flags"]
    assert found["capture"] == ("ok", "on, for 100% of requests")
    assert found["swap"][0] == "ok"
    assert str(tmp_path / "drafts") in found["swap"][1]
    width = json.loads((served.target / "config.json").read_text())["hidden_size"]
    assert f"{4 * width + 24} bytes" in found["traffic"][1]  # one layer of float32, and 24 bytes
