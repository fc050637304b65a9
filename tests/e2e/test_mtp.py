"""A target that drafts by its own MTP layer, on the real server: captured, replayed, learned from and swapped."""

import json

import pytest
from learned_draft import register
from mtp_targets import deepseek_beside, glm_of, mimo_of
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import WEIGHTS_FILE, sha256_of, weights_file
from paceline.buffer.drafts.mtp_layer import layer_names
from paceline.buffer.drafts.single_file import draft_folder
from paceline.learner.model.draft_io import save_draft
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from safetensors.torch import load_file
from served_drafts import (
    assert_learned_whatever_the_seed,
    assert_replayed_as_served,
    doctor,
    loader,
    published_by_a_learner,
    traces_of,
)
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

TARGETS = {"mimo": mimo_of, "glm": glm_of, "deepseek": deepseek_beside}


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
    return loader(target)


def assert_replayed(draft, traces):
    assert_replayed_as_served(draft, traces, 3, 200)


def test_what_the_layer_drafts_is_replayed_learned_from_and_swapped(served, layer, load, tmp_path):
    initial = register(served, layer)
    served.board.move(initial, VersionState.LIVE, "test", "served from the start")
    traces, plain = traces_of(served, "first")
    width = load(layer).config.hidden_size
    assert {trace.features.shape[1] for trace in traces} == {width}  # the last hidden state alone
    assert_replayed(load(layer), traces)
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
    assert_replayed(load(tmp_path / "learned"), traces)
    assert sum(int(trace.rounds.accepted.sum()) for trace in traces) > 50

    served.board.roll_back("operator:test", "back to the target's own layer")
    until(lambda: served.status().draft_version == initial, "the roll back")


def test_what_is_learned_from_some_requests_has_more_accepted_of_others_whatever_the_seed(served, layer, load):
    assert_learned_whatever_the_seed(served, load, layer, 3)


def test_a_learner_takes_the_layer_from_the_target_and_publishes_it_alone(served, layer, tmp_path):
    version = published_by_a_learner(served, served.target, tmp_path)
    assert version.drafter == "mtp"
    published = load_file(weights_file(version.weights_uri))
    assert published.keys() == load_file(layer / WEIGHTS_FILE).keys()
    prefix = layer_names(json.loads((served.target / "config.json").read_text())).prefix
    assert all(name.startswith(prefix) for name in published)
    until(lambda: served.status().draft_version == version.number, "the swap")


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
