"""Draft configs that SpecForge publishes, by what distinguishes them, at tiny sizes: built, trained, saved, read."""

import json

import numpy as np
import pytest
import torch
from paceline.buffer.errors import ConfigError
from paceline.learner.model.draft_io import load_draft, save_draft
from paceline.learner.model.eagle3 import Eagle3Config, Eagle3Draft
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from safetensors.torch import load_file

VOCAB, HIDDEN = 50, 32
#: What all of them say, at a size for a test. `head_dim` is hidden_size / heads where they do not give it.
TINY = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu", "num_hidden_layers": 1,
    "tie_word_embeddings": False, "hidden_size": HIDDEN, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCAB, "draft_vocab_size": 24, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
#: Qwen's habits: a head size of its own, no bias, no window, no scaling.
QWEN = {
    "attention_bias": False, "attention_dropout": 0.0, "head_dim": 16, "rope_scaling": None, "rope_theta": 1e6,
    "sliding_window": None, "use_sliding_window": False, "max_window_layers": 36, "use_cache": True,
}  # fmt: skip
EPS5 = {"rms_norm_eps": 1e-5}
MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "target_model_type": "qwen2_5_vl"}


def layers(*ids: int, **more: bool) -> dict:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids), **more}}


PUBLISHED = {
    "deepseek-v2-lite": QWEN | {
        "num_key_value_heads": 4, "rope_theta": 10000, "rope_scaling": {
            "rope_type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707,
            "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096,
        },
    },
    "deepseek-v3-671b": EPS5 | layers(1, 29, 57, use_aux_hidden_state=True),
    "gemma3-1b": QWEN | {"num_key_value_heads": 1, "sliding_window": 512, "target_model_type": "gemma3_text"},
    "gpt-oss-120B": EPS5 | layers(1, 17, 33) | {"head_dim": 16},
    "gpt-oss-20B": EPS5 | layers(1, 11, 21) | {"head_dim": 16},
    "ling-flash-2.0": EPS5,
    "llama3-8B": EPS5 | {"max_position_embeddings": 2048},
    "llama4-scout-17B-16E": EPS5,
    "longcat-flash": QWEN | EPS5 | {"draft_vocab_size": VOCAB, "rope_theta": 1e7},
    "phi4": EPS5 | {"model_type": "phi3", "rope_theta": 250000.0, "attention_bias": False},
    "qwen2-5-vl-7b": QWEN | MROPE | {"pretraining_tp": 1},
    "qwen2.5-0.5b": {name: value for name, value in QWEN.items() if name != "head_dim"} | {"sliding_window": 131072},
    "qwen2.5-7b": {name: value for name, value in QWEN.items() if name != "head_dim"} | {"draft_vocab_size": 16},
    "qwen2.5-vl-32b": QWEN | MROPE,
    "qwen3-235B-A22B": QWEN | layers(1, 46, 90, use_aux_hidden_state=True),
    "qwen3-30B-A3B-3.1": QWEN | {"fc_norm": True, "norm_output": True},
    "qwen3-30B-A3B": QWEN,
    "qwen3-32b": QWEN,
    "qwen3-4b": QWEN,
    "qwen3-8b": QWEN,
    "qwen3-coder-30B-A3B": QWEN,
    "qwen3-coder-480B-A35B": QWEN | {"max_position_embeddings": 262144},
    "qwen3-coder-next": {"rope_scaling": None, "rope_theta": 1e6, "head_dim": 8, "attention_bias": False},
    "qwen3-next-80b-a3b": {"rope_scaling": None, "rope_theta": 1e7, "head_dim": 16, "decoder_sparse_step": 1},
    "qwen3.5-35b-a3b": {"rope_scaling": None, "rope_theta": 1e7, "head_dim": 16, "decoder_sparse_step": 1},
    "qwq-32B": EPS5 | {"model_type": "qwen2", "rope_theta": 1e6, "sliding_window": 32768},
}  # fmt: skip
REFUSED = {"qwen2-5-vl-7b", "qwen2.5-vl-32b"}


def written(folder, name):
    (folder / "config.json").write_text(json.dumps(TINY | PUBLISHED[name]))
    return folder / "config.json"


def random_draft_of(config):
    torch.manual_seed(0)
    has_own_vocabulary = config.draft_vocab_size < config.vocab_size
    draft = Eagle3Draft(
        config,
        torch.randn(config.vocab_size, config.hidden_size),
        torch.arange(0, config.vocab_size, 2)[: config.draft_vocab_size] if has_own_vocabulary else None,
    )
    draft.file_dtypes = dict.fromkeys(dict(draft.named_parameters()), torch.bfloat16)
    return draft


def test_of_26_configs_24_are_learned():
    assert len(PUBLISHED) == 26
    assert len(PUBLISHED.keys() - REFUSED) == 24


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_mrope_is_refused_by_name(tmp_path, name):
    with pytest.raises(
        ConfigError, match="rope type: got 'mrope', which turns by the place in a picture, expected one"
    ):
        Eagle3Config.from_json(written(tmp_path, name))


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - REFUSED))
def test_a_draft_of_this_config_decodes_trains_and_is_saved_as_it_came(tmp_path, make_trace, naive_draft, name):
    draft = random_draft_of(Eagle3Config.from_json(written(tmp_path, name)))
    tokens, features = np.arange(3, 15), np.random.default_rng(0).normal(size=(11, 3 * HIDDEN)).astype(np.float32)
    drafted = draft.unroll(torch.tensor(tokens)[None], torch.tensor(features)[None], 3)
    _, expected = naive_draft(draft, tokens, features, 6, 3, fed=tokens[7:])
    for step in range(3):
        np.testing.assert_allclose(drafted[step][0, 5].detach().numpy(), expected[step], atol=2e-4)

    before = {key: value.clone() for key, value in draft.state_dict().items()}
    traces = [make_trace(i, feature_dim=3 * HIDDEN, vocab=VOCAB) for i in range(4)]
    report = DraftTrainer(draft, TrainingPlan(steps=3, passes=1)).fit(traces, [])
    assert report.steps > report.skipped_steps == 0
    assert {key for key, value in draft.state_dict().items() if torch.equal(value, before[key])} == set()

    save_draft(draft, tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert {tensor.dtype for key, tensor in saved.items() if key not in {"d2t", "t2d"}} == {torch.bfloat16}
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert {key: config[key] for key in TINY | PUBLISHED[name]} == TINY | PUBLISHED[name]
    again = load_draft(tmp_path / "saved", draft.embedding_WH)
    for key, value in draft.named_parameters():
        assert torch.equal(again.get_parameter(key), value.bfloat16().float()), key
