"""MTP layers with experts against transformers' own layer, run over every round by itself; SGLang's is asked in e2e."""

import json

import numpy as np
import pytest
import torch
from nextn_layers import FAMILIES, build, decode, layer_tensors
from paceline.buffer.errors import ConfigError
from paceline.learner.model.draft_io import load_draft, save_draft
from paceline.learner.model.target_features import captured_layers
from paceline.learner.training.optimiser import hidden_matrices
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture
def draft(family, tmp_path):
    return build(family, tmp_path / "draft")


def inputs(seed, length):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.integers(0, 50, length)), torch.tensor(rng.normal(size=(length - 1, 16))).float()


def test_unroll_equals_transformers_layer_on_every_round_by_itself(draft):
    (tokens, features), steps = inputs(2, 12), 4
    logits = draft.unroll(tokens[None], features[None], steps)
    compared = 0
    for root in range(1, 12):
        for step, expected in enumerate(decode(draft, tokens, features, root, steps)):
            torch.testing.assert_close(logits[step][0, root - 1], expected, atol=1e-4, rtol=1e-4)
            compared += 1
    assert compared == 8 * 4 + 3 + 2 + 1  # the last three roots run out of tokens to be fed


def test_a_layer_is_saved_as_it_was_read_every_expert_by_itself(draft, family, tmp_path):
    expected = layer_tensors(family)
    save_draft(draft, tmp_path / "saved")
    found = load_file(tmp_path / "saved" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert "model.layers.4.mlp.experts.3.up_proj.weight" in found
    assert "model.layers.4.mlp.gate.e_score_correction_bias" in found
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    source, saved = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("draft", "saved"))
    assert source.items() <= saved.items()


def test_dtypes_of_the_checkpoint_are_kept(draft, tmp_path):
    file = tmp_path / "draft" / "model.safetensors"
    mixed = {n: t if n.endswith("bias") else t.bfloat16() for n, t in load_file(file).items()}
    save_file(mixed, file, metadata={"format": "pt"})
    save_draft(load_draft(tmp_path / "draft", draft.embedding_WH, lambda: draft.lm_head.weight), tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == file.read_bytes()


def test_training_moves_every_expert_and_leaves_the_router(draft, make_trace):
    traces = [make_trace(seed, feature_dim=16) for seed in range(6)]
    before = {name: weight.detach().clone() for name, weight in draft.file_tensors().items()}
    trainer = DraftTrainer(draft, TrainingPlan(steps=3, passes=8))
    losses = [trainer.fit(traces, []).losses for _ in range(2)]
    assert losses[1][-1] < losses[0][0]
    stayed = {name for name, weight in trainer.draft.file_tensors().items() if torch.equal(before[name], weight)}
    assert stayed == {"midlayer.mlp.gate.weight", "midlayer.mlp.gate.e_score_correction_bias"}


def test_matrices_of_experts_that_are_one_parameter_move_by_adamw(draft):
    by_muon = {id(weight) for weight in hidden_matrices(draft)}
    names = {name for name, weight in draft.named_parameters() if id(weight) in by_muon}
    assert {"midlayer.mlp.shared_experts.up_proj.weight", "eh_proj.weight"} < names
    assert not {"midlayer.mlp.experts.down_proj", "midlayer.mlp.gate.weight"} & names


def test_a_state_of_the_trainer_is_continued(draft, family, tmp_path, make_trace):
    traces = [make_trace(seed, feature_dim=16) for seed in range(4)]
    trainers = [DraftTrainer(each, TrainingPlan(steps=2, passes=1)) for each in (draft, build(family, tmp_path / "b"))]
    trainers[0].fit(traces, [])
    trainers[0].save(tmp_path / "state")
    trainers[1].load(tmp_path / "state")
    reports = [trainer.fit(traces, []) for trainer in trainers]
    assert reports[0].losses == reports[1].losses


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 1}, "num_hidden_layers: got 1, expected the number of the target's layers"),
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', expected 'silu'"),
        ({"n_routed_experts": None}, "n_routed_experts"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type: got 'dynamic'"),
    ],
)
def test_a_config_with_other_arithmetic_is_refused(draft, tmp_path, changes, message):
    file = tmp_path / "draft" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ConfigError, match=message):
        load_draft(tmp_path / "draft", draft.embedding_WH, lambda: draft.lm_head.weight)


def test_hidden_states_are_not_recomputed_for_a_layer(draft):
    with pytest.raises(ConfigError, match="got an MTP layer, expected an EAGLE-3 or DFLASH draft"):
        captured_layers(draft.config, {"num_hidden_layers": 4, "hidden_size": 16})
