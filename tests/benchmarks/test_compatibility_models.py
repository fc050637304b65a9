"""Heads of the compatibility table: what is distinct about each, and that the learner reads it."""

import json

import pytest
import torch
from paceline.benchmarks.matrix.models import random_target, untrained_draft
from paceline.benchmarks.matrix.rows import DEEPSEEK, EAGLE_3_1, GLM, HALF_VOCABULARY, HEAD, LLAMA_3, MIMO, MTP
from paceline.learner.model.draft_io import load_draft, load_target_embedding, load_target_head, random_draft
from paceline.rig.models.target import DRAFT_LAYERS
from safetensors.torch import load_file

WORDS = 40


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "config.json").write_text(json.dumps({"vocab_size": WORDS}))
    return random_target(LLAMA_3, folder, folder / "target")


def loaded(head, target, folder):
    return load_draft(untrained_draft(head, target, folder), load_target_embedding(target))


def test_the_usual_head_is_the_rigs_random_draft(target, tmp_path):
    untrained_draft(HEAD, target, tmp_path / "made")
    random_draft(target, tmp_path / "expected", 0, layer_ids=DRAFT_LAYERS)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "made" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()


def test_half_the_vocabulary_is_every_other_token(target, tmp_path):
    draft = loaded(HALF_VOCABULARY, target, tmp_path / "draft")
    assert draft.draft_to_target_V.tolist() == list(range(0, WORDS, 2))
    assert draft.lm_head.weight.shape[0] == draft.config.draft_vocab_size == WORDS // 2


def test_every_norm_of_an_eagle_3_1_head_counts(target, tmp_path):
    draft = loaded(EAGLE_3_1, target, tmp_path / "draft")
    assert (draft.config.fc_norm, draft.config.norm_output) == (True, True)
    norms = {name: value for name, value in draft.named_parameters() if name.startswith("fc_norm.")}
    assert len(norms) == len(DRAFT_LAYERS)
    assert all((value - 1.0).abs().mean() > 0.1 for value in norms.values())
    plain = load_draft(untrained_draft(HEAD, target, tmp_path / "plain"), load_target_embedding(target))
    assert all(torch.equal(draft.get_parameter(name), value) for name, value in plain.named_parameters())


def test_a_mimo_is_a_qwen2_with_one_layer_more_in_which_every_weight_counts(target, tmp_path):
    mimo = random_target(MIMO, target, tmp_path / "mimo")
    folder = untrained_draft(MTP, mimo, tmp_path / "draft")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    draft = load_draft(folder, load_target_embedding(mimo), lambda: load_target_head(mimo))
    assert torch.equal(draft.lm_head.weight, load_target_head(mimo))
    for name, weight in draft.named_parameters():
        plain = 1.0 if "norm" in name else 0.0
        assert (weight - plain).abs().mean() > 0.01, name
    stored = load_file(mimo / "model.safetensors")
    names = {name.removeprefix("model.layers.0.") for name in stored if name.startswith("model.layers.0.")}
    block = {name.removeprefix("midlayer.") for name, _ in draft.named_parameters() if name.startswith("midlayer.")}
    assert names == block


@pytest.mark.parametrize("family", [GLM, DEEPSEEK])
def test_the_last_layer_of_a_target_with_experts_is_its_mtp_layer_in_which_every_weight_counts(
    target, tmp_path, family
):
    made = random_target(family, target, tmp_path / "target")
    folder = untrained_draft(MTP, made, tmp_path / "draft")
    draft = load_draft(folder, load_target_embedding(made), lambda: load_target_head(made))
    for name, weight in draft.file_tensors().items():
        plain = 1.0 if "norm" in name else 0.0
        assert (weight - plain).abs().mean() > 0.01, name
    stored = load_file(made / "model.safetensors").keys() - load_file(folder / "model.safetensors").keys()
    config = json.loads((made / "config.json").read_text())
    assert {int(name.split(".")[2]) for name in stored if ".layers." in name} == set(range(config["num_hidden_layers"]))
    assert draft.config.layer.num_hidden_layers == config["num_hidden_layers"] == 4
