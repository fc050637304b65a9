"""Shapes that published drafts have: norms of EAGLE-3.1, scaled rope, a head shared with the target."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from paceline.buffer.errors import ConfigError
from paceline.learner.model.draft_io import load_draft, load_target_head, save_draft
from paceline.learner.model.eagle3 import Eagle3Config, Eagle3Draft
from paceline.learner.model.rope import Llama3Rope, Rope, YarnRope, rope_from
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
SCALED = {
    "llama3 of Llama 3.1": (LLAMA3 | {"original_max_position_embeddings": 8192, "rope_theta": 5e5}, 128),
    "llama3, short": (LLAMA3 | {"rope_theta": 1e4}, 16),
    "llama3, no ramp": (LLAMA3 | {"low_freq_factor": 4.0, "rope_theta": 1e4}, 32),
    "yarn of DeepSeek-V2-Lite": (
        YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707, "rope_theta": 1e4}, 128,
    ),
    "yarn, by the paper": (YARN | {"factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1e6}, 128),
    "yarn, two scales": (YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "rope_theta": 1e4}, 64),
    "yarn of gpt-oss": (
        YARN | {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "rope_theta": 1.5e5}, 64,
    ),
    "yarn, ramp on one channel": (YARN | {"beta_fast": 1.0, "beta_slow": 1.0, "rope_theta": 1e4}, 8),
    "yarn that shrinks nothing": (YARN | {"factor": 1.0, "rope_theta": 1e4}, 16),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALED)
def test_scaled_rope_turns_and_grows_as_in_transformers(name, transformers_rope):
    settings, channels = SCALED[name]
    rope = rope_from({"rope_scaling": settings})
    turn, growth = transformers_rope(settings, channels)
    if "no ramp" in name:
        turn = [slow_llama3(settings, i, channels) for i in range(channels // 2)]  # transformers divides by zero
    np.testing.assert_allclose(rope.radians(channels // 2).numpy(), turn, rtol=2e-6)
    assert rope.magnitude == pytest.approx(growth, rel=1e-12)


def slow_llama3(settings: dict, pair: int, channels: int) -> float:
    """One channel pair, by the wavelengths that part fast from slow."""
    plain = settings["rope_theta"] ** (-2 * pair / channels)
    is_fast = 2 * math.pi / plain < settings["original_max_position_embeddings"] / settings["high_freq_factor"]
    return plain if is_fast else plain / settings["factor"]


def test_attention_factor_which_sglang_does_not_read_changes_nothing_and_attn_factor_does():
    plain = rope_from({"rope_scaling": YARN})
    assert rope_from({"rope_scaling": YARN | {"attention_factor": 3.0}}) == plain
    assert rope_from({"rope_scaling": YARN | {"attn_factor": 3.0}}).magnitude == 3 * plain.magnitude
    assert plain.magnitude == pytest.approx(0.1 * math.log(40) + 1)


def test_unscaled_rope_is_the_old_formula():
    assert Rope(100.0).radians(3).tolist() == pytest.approx([1.0, 100 ** (-1 / 3), 100 ** (-2 / 3)])


@pytest.mark.parametrize(
    "source",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        {"rope_scaling": LLAMA3 | {"rope_theta": 5e5}, "rope_theta": 1.0},
        {
            "rope_theta": 5e5,
            "rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4},
            "max_position_embeddings": 64,
        },
        {
            "rope_theta": 5e5,
            "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 3},
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_rope_settings_are_found_wherever_the_server_finds_them(source):
    assert rope_from(source) == Llama3Rope(5e5, 8.0, 1.0, 4.0, 64.0)
    theirs = LlamaConfig(**copy.deepcopy(source)).rope_parameters
    # SGLang writes a length that stands outside over the one inside.
    length = source.get("original_max_position_embeddings", theirs["original_max_position_embeddings"])
    assert (theirs["rope_type"], theirs["rope_theta"], length) == ("llama3", 5e5, 64)
    assert rope_from({"rope_parameters": rope_from(source).settings()}) == rope_from(source)


SHAPES = {
    "one norm before fc": {"norm_before_fc": True},
    "a norm for each layer": {"fc_norm": True},
    "both, and normed outputs": {"norm_before_fc": True, "fc_norm": True, "norm_output": True},
    "normed outputs": {"norm_output": True},
    "llama3": {"rope": Llama3Rope(100.0, 8.0, 1.0, 4.0, 16)},
    "yarn": {"rope": YarnRope(100.0, factor=4.0, beta_fast=8.0, beta_slow=1.0, original_max_position_embeddings=32)},
    "the target's head": {"shares_head": True},
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_decodes_as_the_slow_decoder_does(make_draft, naive_draft, name):
    draft, plain = make_draft(1, **SHAPES[name]), make_draft(1)
    rng = np.random.default_rng(2)
    tokens, features = rng.integers(0, 50, 12), rng.normal(size=(11, 48)).astype(np.float32)
    inputs = torch.tensor(tokens)[None], torch.tensor(features)[None], 4
    logits = draft.unroll(*inputs)
    for root in range(1, 12):
        fed = tokens[root + 1 :]
        _, expected = naive_draft(draft, tokens, features, root, min(4, len(fed) + 1), fed=fed)
        for step, wanted in enumerate(expected):
            np.testing.assert_allclose(logits[step][0, root - 1].detach().numpy(), wanted, atol=3e-4)
    # The shape matters: without it the same weights say something else.
    assert not torch.allclose(logits[1], plain.unroll(*inputs)[1], atol=1e-2)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_saved_and_loaded_with_what_it_needs(tmp_path, make_draft, name):
    draft = make_draft(1, **SHAPES[name])
    save_draft(draft, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert {key for key in ("norm_before_fc", "fc_norm", "norm_output") if key in config} == {
        key for key in SHAPES[name] if "norm" in key
    }
    loaded = load_draft(tmp_path, draft.embedding_WH, lambda: draft.lm_head.weight)
    assert loaded.config.rope == draft.config.rope
    tokens, features = torch.randint(0, 50, (2, 9)), torch.randn(2, 8, 48)
    for ours, theirs in zip(draft.unroll(tokens, features, 2), loaded.unroll(tokens, features, 2), strict=True):
        assert torch.equal(ours, theirs)


def test_a_shared_head_is_neither_learned_nor_saved_and_has_no_vocabulary_map(tmp_path, make_draft):
    draft = make_draft(1, shares_head=True)
    assert "lm_head.weight" not in dict(draft.named_parameters()) | draft.state_dict()
    save_draft(draft, tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys().isdisjoint({"lm_head.weight", "d2t", "t2d"})
    assert json.loads((tmp_path / "config.json").read_text())["draft_vocab_size"] is None


def test_a_file_that_ships_the_shared_head_is_read_without_it(tmp_path, make_draft):
    draft = make_draft(1, shares_head=True)
    save_draft(draft, tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"lm_head.weight": torch.zeros(3)}, file)
    loaded = load_draft(tmp_path, draft.embedding_WH, lambda: draft.lm_head.weight)
    assert torch.equal(loaded.lm_head.weight, draft.lm_head.weight)
    assert "lm_head.weight" not in loaded.file_dtypes


def test_a_shared_head_that_is_not_given_or_of_another_size_is_an_error(tmp_path, make_draft):
    save_draft(make_draft(1, shares_head=True), tmp_path)
    with pytest.raises(
        ConfigError, match=r"target head: got None, expected \(50, 16\), since the draft has none of its own"
    ):
        load_draft(tmp_path, torch.zeros(50, 16))
    with pytest.raises(ConfigError, match=r"target head: got \(50, 8\), expected \(50, 16\)"):
        load_draft(tmp_path, torch.zeros(50, 16), lambda: torch.zeros(50, 8))


def test_a_shared_head_cannot_have_another_vocabulary():
    config = Eagle3Config(
        hidden_size=16,
        intermediate_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        vocab_size=4,
        draft_vocab_size=4,
        shares_head=True,
    )
    head = torch.zeros(4, 16)
    assert Eagle3Draft(config, head, torch.arange(4), head).has_vocabulary_map
    with pytest.raises(ConfigError, match="d2t: got other ids than the target's"):
        Eagle3Draft(config, head, torch.tensor([1, 0, 2, 3]), head)


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_targets_head_is_its_embedding_where_they_are_tied(tmp_path, is_tied):
    tensors = {"model.embed_tokens.weight": torch.ones(2, 3), "lm_head.weight": torch.zeros(2, 3)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": is_tied}))
    assert torch.equal(load_target_head(tmp_path), torch.full((2, 3), float(is_tied)))


def test_norms_of_an_older_file_are_known_by_their_old_names(tmp_path, make_draft):
    draft = make_draft(1, fc_norm=True)
    save_draft(draft, tmp_path)
    old = {"fc_norm.0.": "aux_norm_low.", "fc_norm.1.": "aux_norm_mid.", "fc_norm.2.": "aux_norm_high."}
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {old.get(name[:10], name[:10]) + name[10:]: tensor for name, tensor in tensors.items()}
    assert {name.split(".")[0] for name in renamed} >= {"aux_norm_low", "aux_norm_mid", "aux_norm_high"}
    save_file(renamed, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["fc_norm"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"use_aux_norm": True}))
    loaded = load_draft(tmp_path, draft.embedding_WH)
    for i in range(3):
        assert torch.equal(loaded.fc_norm[i].weight, draft.fc_norm[i].weight)
    save_draft(loaded, tmp_path / "copy")
    assert load_file(tmp_path / "copy" / "model.safetensors").keys() == renamed.keys()


def test_where_the_norm_before_fc_is_asked_for_twice_the_inner_word_counts(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "vocab_size": 50}
    both = sizes | {"draft_vocab_size": 50, "norm_before_fc": True, "eagle_config": {"norm_before_fc": False}}
    (tmp_path / "config.json").write_text(json.dumps(both))
    assert not Eagle3Config.from_json(tmp_path / "config.json").norm_before_fc
