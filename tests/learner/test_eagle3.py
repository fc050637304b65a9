"""The draft against a decoder that does one row, one head and one key at a time."""

import json

import numpy as np
import pytest
import torch
from paceline.buffer.errors import ConfigError
from paceline.learner.model.eagle3 import Eagle3Config, Eagle3Draft

RAW = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "draft_vocab_size": 20,
    "rms_norm_eps": 1e-5,
}


def inputs(seed: int, length: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 50, length), rng.normal(size=(rows, 48)).astype(np.float32)


def read_config(tmp_path, **changes: object) -> Eagle3Config:
    (tmp_path / "config.json").write_text(json.dumps(RAW | changes))
    return Eagle3Config.from_json(tmp_path / "config.json")


@pytest.mark.parametrize("draft_ids", [None, [3, 7, 11, 12, 30, 49]])
def test_unroll_equals_decoding_every_round_by_itself(make_draft, naive_draft, draft_ids):
    draft, (tokens, features), steps = make_draft(1, draft_ids=draft_ids), inputs(2, 12, 11), 4
    logits = draft.unroll(torch.tensor(tokens)[None], torch.tensor(features)[None], steps)
    assert [tuple(step.shape) for step in logits] == [(1, 11, len(draft_ids or range(50)))] * steps
    compared = 0
    for root in range(1, 12):
        fed = tokens[root + 1 :]
        reach = min(steps, len(fed) + 1)
        _, expected = naive_draft(draft, tokens, features, root, reach, fed=fed)
        for step in range(reach):
            np.testing.assert_allclose(logits[step][0, root - 1].detach().numpy(), expected[step], atol=2e-4)
            compared += 1
    assert compared == 8 * 4 + 3 + 2 + 1  # the last three roots run out of tokens to be fed


def test_unroll_of_a_trace_does_not_depend_on_what_it_is_padded_with(make_draft):
    draft, (tokens, features) = make_draft(1), inputs(3, 9, 8)
    other_tokens, other_features = inputs(4, 15, 14)
    padded_tokens, padded_features = other_tokens.copy(), 100 * other_features
    padded_tokens[:9], padded_features[:8] = tokens, features
    alone = draft.unroll(torch.tensor(tokens)[None], torch.tensor(features)[None], 3)
    beside = draft.unroll(
        torch.tensor(np.stack([other_tokens, padded_tokens])),
        torch.tensor(np.stack([other_features, padded_features])),
        3,
    )
    for step in range(3):
        rows = 8 - step  # deeper steps of the last rows are fed tokens past the trace
        torch.testing.assert_close(beside[step][1, :rows], alone[step][0, :rows], atol=1e-5, rtol=1e-5)


def test_chains_of_chosen_rows_give_what_they_give_among_all_rows(make_draft):
    draft, (tokens, features) = make_draft(1), inputs(5, 12, 11)
    tokens_BT, features_BFD = torch.tensor(tokens)[None], torch.tensor(features)[None]
    every = draft.unroll(tokens_BT, features_BFD, 3)
    chains = draft.begin(tokens_BT, features_BFD, torch.tensor([[6, 2, 8]]))
    torch.testing.assert_close(draft.lm_head(draft.advance(chains))[0], every[0][0, [6, 2, 8]])
    torch.testing.assert_close(draft.lm_head(draft.advance(chains))[0], every[1][0, [6, 2, 8]])
    chains.keep(torch.tensor([[2, 0]]))
    torch.testing.assert_close(draft.lm_head(draft.advance(chains))[0], every[2][0, [8, 6]])
    assert chains.predicted().tolist() == [[8 + 2 + 3, 6 + 2 + 3]]


def test_best_tokens_speak_target_ids(make_draft):
    draft = make_draft(1, draft_ids=[4, 9, 40])
    hidden = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    assert draft.best_tokens(hidden).tolist() == [[4, 9, 40][i] for i in draft.lm_head(hidden).argmax(-1)]


def test_gradient_flows_through_the_hidden_state_of_earlier_steps(make_draft):
    draft, (tokens, features) = make_draft(1), inputs(6, 6, 5)
    features_BFD = torch.tensor(features)[None].requires_grad_()
    draft.unroll(torch.tensor(tokens)[None], features_BFD, 2)[1][0, 2].sum().backward()
    reached = features_BFD.grad[0].abs().sum(1) > 0
    assert reached.tolist() == [True, True, True, False, False]


def test_bfloat16_autocast_stays_near_float32(make_draft):
    draft, (tokens, features) = make_draft(1), inputs(7, 10, 9)
    arguments = torch.tensor(tokens)[None], torch.tensor(features)[None], 2
    exact = draft.unroll(*arguments)
    with torch.autocast("cpu", torch.bfloat16):
        rough = draft.unroll(*arguments)
    assert rough[1].dtype is torch.float32
    torch.testing.assert_close(rough[1], exact[1], atol=0.3, rtol=0.1)


def test_config_reads_sizes_and_both_ways_to_write_rope_theta(tmp_path):
    flat = read_config(tmp_path, rope_theta=5e5)
    assert (flat.head_dim, flat.feature_layers, flat.feature_width) == (4, 3, 48)
    assert (flat.rope.rope_theta, flat.rms_norm_eps, flat.draft_vocab_size) == (5e5, 1e-5, 20)
    nested = read_config(tmp_path, rope_parameters={"rope_theta": 7e4, "rope_type": "default"}, head_dim=8)
    assert (nested.rope.rope_theta, nested.head_dim) == (7e4, 8)
    five = read_config(tmp_path, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 3, 4]})
    assert five.feature_layers == 5


def test_config_keeps_settings_it_does_not_know(tmp_path):
    read_config(tmp_path, bos_token_id=1, eagle_config={"use_aux_hidden_state": True}).to_json(tmp_path / "copy.json")
    assert json.loads((tmp_path / "copy.json").read_text()).items() >= {**RAW, "bos_token_id": 1}.items()
    assert Eagle3Config.from_json(tmp_path / "copy.json").feature_layers == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_aux_hidden_states": 1}, "target layers: got 1, expected at least 2"),
        ({"bias": True}, "bias: got True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: got True"),
        ({"num_hidden_layers": 2}, "num_hidden_layers: got 2"),
        ({"attention_bias": True}, "attention_bias: got True"),
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor of the rope type 'llama3' is missing"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": "4"}}, "factor: got '4', expected a number"),
        (
            {"rope_scaling": {"rope_type": "longrope"}},
            "rope type: got 'longrope', expected one of default, llama3, yarn",
        ),
        ({"rope_scaling": {"rope_type": "default", "use_fope": True}}, "rope type: got 'fope'"),
        ({"target_hidden_size": 32}, "target_hidden_size: got 32"),
        ({"architectures": ["LlamaForCausalLM"]}, "architectures"),
    ],
)
def test_config_refuses_what_the_draft_would_compute_otherwise(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=r"config\.json") as refused:
        read_config(tmp_path, **changes)
    assert message in str(refused.value)


def test_config_that_is_absent_or_incomplete_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.json"):
        Eagle3Config.from_json(tmp_path / "absent.json")
    (tmp_path / "config.json").write_text('{"hidden_size": 16, "draft_vocab_size": 3}')
    with pytest.raises(ConfigError, match="num_attention_heads is missing"):
        Eagle3Config.from_json(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("embedding", "draft_ids", "message"),
    [
        ((50, 8), [1] * 20, r"target embedding: got \(50, 8\), expected \(50, 16\)"),
        ((50, 16), None, "d2t: missing"),
        ((50, 16), [1] * 20, "different"),
        ((50, 16), [*range(19), 50], r"target ids 0\.\.50"),
    ],
)
def test_vocabulary_that_does_not_fit_is_refused(tmp_path, embedding, draft_ids, message):
    with pytest.raises(ConfigError, match=message):
        Eagle3Draft(
            read_config(tmp_path), torch.zeros(embedding), None if draft_ids is None else torch.tensor(draft_ids)
        )
