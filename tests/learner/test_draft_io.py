"""Weights files: the exact layout SGLang reads, there and back."""

import hashlib
import json
import math

import pytest
import torch
from paceline.buffer.errors import ConfigError
from paceline.learner.model.draft_io import load_draft, load_target_embedding, random_draft, save_draft
from safetensors.torch import load_file, save_file

WORDS, HIDDEN, INNER = 50, 16, 24
TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_hidden_layers": 4,
    "vocab_size": WORDS,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "eos_token_id": 2,
}


def layout(draft_words: int, dtype: torch.dtype, layer: str = "midlayer") -> dict[str, tuple]:
    """Names, shapes and dtypes as llama_eagle3.py loads them; queries, keys and values see 2 * hidden."""
    return {
        "fc.weight": ((HIDDEN, 3 * HIDDEN), dtype),
        f"{layer}.input_layernorm.weight": ((HIDDEN,), dtype),
        f"{layer}.hidden_norm.weight": ((HIDDEN,), dtype),
        f"{layer}.post_attention_layernorm.weight": ((HIDDEN,), dtype),
        f"{layer}.self_attn.q_proj.weight": ((24, 2 * HIDDEN), dtype),
        f"{layer}.self_attn.k_proj.weight": ((12, 2 * HIDDEN), dtype),
        f"{layer}.self_attn.v_proj.weight": ((12, 2 * HIDDEN), dtype),
        f"{layer}.self_attn.o_proj.weight": ((HIDDEN, 24), dtype),
        f"{layer}.mlp.gate_proj.weight": ((INNER, HIDDEN), dtype),
        f"{layer}.mlp.up_proj.weight": ((INNER, HIDDEN), dtype),
        f"{layer}.mlp.down_proj.weight": ((HIDDEN, INNER), dtype),
        "norm.weight": ((HIDDEN,), dtype),
        "lm_head.weight": ((draft_words, HIDDEN), dtype),
        "d2t": ((draft_words,), torch.int64),
        "t2d": ((WORDS,), torch.bool),
    }


def layout_of(folder) -> dict[str, tuple]:
    return {name: (tuple(t.shape), t.dtype) for name, t in load_file(folder / "model.safetensors").items()}


def written_target(folder, *, norm=1.0, **changes):
    folder.mkdir()
    config = TARGET | changes
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "model.embed_tokens.weight": torch.randn(WORDS, HIDDEN, generator=generator).bfloat16(),
        "model.norm.weight": norm * torch.rand(HIDDEN, generator=generator).bfloat16(),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = torch.randn(WORDS, HIDDEN, generator=generator).bfloat16()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def target(tmp_path):
    return written_target(tmp_path / "target")


def test_a_random_draft_has_exactly_the_layout_sglang_reads(tmp_path, target):
    digest = random_draft(target, tmp_path / "draft", seed=3)
    assert layout_of(tmp_path / "draft") == layout(WORDS, torch.float32)
    assert hashlib.sha256((tmp_path / "draft" / "model.safetensors").read_bytes()).hexdigest() == digest
    tensors = load_file(tmp_path / "draft" / "model.safetensors")
    assert tensors["d2t"].tolist() == [0] * WORDS
    assert tensors["t2d"].all()


def test_a_random_draft_takes_head_norm_and_settings_from_the_target(tmp_path, target):
    random_draft(target, tmp_path / "draft", seed=3)
    own, drafts = load_file(target / "model.safetensors"), load_file(tmp_path / "draft" / "model.safetensors")
    assert torch.equal(drafts["lm_head.weight"], own["lm_head.weight"].float())
    share = drafts["norm.weight"] / own["model.norm.weight"].float()
    torch.testing.assert_close(share, torch.full((HIDDEN,), share[0].item()))
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["num_hidden_layers"], config["draft_vocab_size"], config["torch_dtype"]) == (1, WORDS, "float32")
    kept = ("rope_parameters", "rms_norm_eps", "max_position_embeddings", "eos_token_id", "head_dim")
    assert {name: config[name] for name in kept} == {name: TARGET[name] for name in kept}
    assert load_draft(tmp_path / "draft", load_target_embedding(target)).config.rope.rope_theta == 5e5


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("norm", [0.01, 1.0, 30.0])
def test_a_first_guess_is_nearly_uniform_whatever_the_targets_norm_and_head(tmp_path, is_tied, norm):
    target = written_target(tmp_path / "t", norm=norm, tie_word_embeddings=is_tied)
    random_draft(target, tmp_path / "d", seed=3)
    draft = load_draft(tmp_path / "d", load_target_embedding(target))
    hidden = 7.0 * torch.randn(4000, HIDDEN, generator=torch.Generator().manual_seed(2))
    guess = draft.lm_head(draft.norm(hidden)).log_softmax(-1)
    loss = -guess.mean()  # of a token that may be any
    assert math.log(WORDS) <= loss < math.log(WORDS) + 0.05


def test_equal_seeds_give_equal_bytes_and_others_do_not(tmp_path, target):
    digests = [random_draft(target, tmp_path / str(i), seed) for i, seed in enumerate((3, 3, 4))]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(("layers", "chosen"), [(4, [0, 1, 2]), (6, [0, 2, 4]), (8, [1, 3, 4]), (32, [1, 15, 28])])
def test_default_layers_are_three_different_ones(tmp_path, layers, chosen):
    random_draft(written_target(tmp_path / "t", num_hidden_layers=layers), tmp_path / "d", seed=0)
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == chosen


def test_a_target_with_too_few_layers_needs_layer_ids(tmp_path):
    shallow = written_target(tmp_path / "t", num_hidden_layers=2)
    with pytest.raises(ConfigError, match="got 2 layers"):
        random_draft(shallow, tmp_path / "d", seed=0)
    random_draft(shallow, tmp_path / "d", seed=0, layer_ids=[0, 1])
    assert layout_of(tmp_path / "d")["fc.weight"][0] == (HIDDEN, 2 * HIDDEN)


def test_a_pruned_vocabulary_is_in_d2t_and_t2d(tmp_path, target):
    draft_ids = [3, 7, 8, 49]
    random_draft(target, tmp_path / "draft", seed=3, draft_ids=draft_ids, dtype="bfloat16")
    assert layout_of(tmp_path / "draft") == layout(4, torch.bfloat16)
    tensors = load_file(tmp_path / "draft" / "model.safetensors")
    assert (tensors["d2t"] + torch.arange(4)).tolist() == draft_ids
    assert tensors["t2d"].nonzero().flatten().tolist() == draft_ids
    draft = load_draft(tmp_path / "draft", load_target_embedding(target))
    assert draft.draft_to_target_V.tolist() == draft_ids
    assert [int(draft.target_to_draft_W[i]) for i in (*draft_ids, 0, 9)] == [0, 1, 2, 3, -1, -1]
    assert torch.equal(
        draft.lm_head.weight.bfloat16(), load_file(target / "model.safetensors")["lm_head.weight"][draft_ids]
    )


def test_a_tied_targets_embedding_becomes_the_head(tmp_path):
    tied = written_target(tmp_path / "t", tie_word_embeddings=True)
    random_draft(tied, tmp_path / "d", seed=0)
    assert torch.equal(load_file(tmp_path / "d" / "model.safetensors")["lm_head.weight"], load_target_embedding(tied))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_saving_what_was_loaded_gives_the_same_bytes(tmp_path, target, dtype):
    digest = random_draft(target, tmp_path / "first", seed=5, dtype=dtype)
    draft = load_draft(tmp_path / "first", load_target_embedding(target))
    assert {parameter.dtype for parameter in draft.parameters()} == {torch.float32}
    assert save_draft(draft, tmp_path / "deep" / "second") == digest
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "deep" / "second" / name).read_bytes()


def test_a_file_keeps_the_names_it_was_loaded_with_and_never_gains_an_embedding(tmp_path, target):
    random_draft(target, tmp_path / "draft", seed=5)
    file = tmp_path / "draft" / "model.safetensors"
    renamed = {name.replace("midlayer.", "model.layers.0."): tensor for name, tensor in load_file(file).items()}
    save_file(renamed | {"model.embed_tokens.weight": torch.zeros(WORDS, HIDDEN)}, file)
    save_draft(load_draft(tmp_path / "draft", load_target_embedding(target)), tmp_path / "copy")
    assert layout_of(tmp_path / "copy") == layout(WORDS, torch.float32, layer="model.layers.0")
    for name, tensor in load_file(tmp_path / "copy" / "model.safetensors").items():
        assert torch.equal(tensor, renamed[name]), name


def test_a_draft_not_loaded_from_a_file_is_written_in_the_default_layout(tmp_path, make_draft):
    draft = make_draft(1, draft_ids=[5, 6, 40])
    save_draft(draft, tmp_path / "draft")
    loaded = load_draft(tmp_path / "draft", draft.embedding_WH)
    assert loaded.config.rope.rope_theta == 100.0
    tokens, features = torch.randint(0, 50, (2, 9)), torch.randn(2, 8, 48)
    for ours, theirs in zip(draft.unroll(tokens, features, 2), loaded.unroll(tokens, features, 2), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.pop("fc.weight"), r"missing \['fc.weight'\]"),
        (lambda t: t.update({"midlayer.extra.weight": torch.zeros(1)}), r"unknown \['midlayer.extra.weight'\]"),
        (lambda t: t.update({"norm.weight": torch.zeros(7)}), r"norm.weight is \(7,\), expected \(16,\)"),
        (lambda t: t.update({"d2t": torch.ones(WORDS, dtype=torch.int64)}), "target ids 1..50"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, target, spoil, message):
    random_draft(target, tmp_path / "draft", seed=5)
    tensors = load_file(tmp_path / "draft" / "model.safetensors")
    spoil(tensors)
    save_file(tensors, tmp_path / "draft" / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        load_draft(tmp_path / "draft", load_target_embedding(target))


def test_absent_and_broken_files_are_named(tmp_path, target):
    with pytest.raises(ConfigError, match=r"nowhere.*config\.json"):
        load_draft(tmp_path / "nowhere", torch.zeros(1))
    random_draft(target, tmp_path / "draft", seed=5)
    (tmp_path / "draft" / "model.safetensors").write_bytes(b"\x08")
    with pytest.raises(ConfigError, match=r"draft.*model\.safetensors"):
        load_draft(tmp_path / "draft", torch.zeros(WORDS, HIDDEN))
    with pytest.raises(ConfigError, match=r"model\.embed_tokens\.weight"):
        load_target_embedding(tmp_path / "draft")
    with pytest.raises(ConfigError, match="dtype: got 'int8'"):
        random_draft(target, tmp_path / "draft", seed=5, dtype="int8")


def test_the_embedding_is_found_in_a_sharded_target(tmp_path, target):
    whole = load_file(target / "model.safetensors")
    (target / "model.safetensors").rename(target / "model-00002-of-00002.safetensors")
    index = {"weight_map": dict.fromkeys(whole, "model-00002-of-00002.safetensors")}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(load_target_embedding(target), whole["model.embed_tokens.weight"].float())


EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    "left",
    [
        '{"weight_map": {"' + EMBEDDING + '": ',
        "[]",
        "null",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {}}',
        '{"weight_map": {"' + EMBEDDING + '": 3}}',
        '{"weight_map": {"' + EMBEDDING + '": "model-00001-of-00002.safetensors"}}',
    ],
)
def test_a_damaged_or_incomplete_index_is_named_with_what_it_holds(tmp_path, target, left):
    (target / "model.safetensors").rename(target / "model-00002-of-00002.safetensors")
    index = target / "model.safetensors.index.json"
    index.write_text(left)
    with pytest.raises(ConfigError, match=rf"^{index}: got .*, expected "):
        load_target_embedding(target)
    with pytest.raises(ConfigError, match=rf"^{index}: got "):
        random_draft(target, tmp_path / "draft", seed=0)


def test_an_index_that_is_not_text_is_named(target):
    index = target / "model.safetensors.index.json"
    index.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=rf"^{index}: got .*, expected JSON with a weight_map"):
        load_target_embedding(target)


def test_a_target_whose_embedding_is_quantised_is_refused_and_not_read_as_codes(tmp_path, target):
    tensors = load_file(target / "model.safetensors")
    save_file(tensors | {EMBEDDING: tensors[EMBEDDING].to(torch.float8_e4m3fn)}, target / "model.safetensors")
    expected = rf"{EMBEDDING}: got torch.float8_e4m3fn, expected one of .*bfloat16.*; name the checkpoint"
    with pytest.raises(ConfigError, match=expected):
        load_target_embedding(target)
    with pytest.raises(ConfigError, match=expected):
        random_draft(target, tmp_path / "draft", seed=0)
