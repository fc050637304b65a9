"""A DFLASH draft against a decoder that does one place at a time; SGLang's own is asked in tests/e2e."""

import json

import numpy as np
import pytest
import torch
from naive_dflash import build_dflash, draft_block
from paceline.buffer.errors import ConfigError
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model import dflash
from paceline.learner.model.dflash_config import DflashConfig
from paceline.learner.model.draft_io import load_draft, save_draft
from paceline.learner.model.target_features import captured_layers
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from safetensors.torch import load_file, save_file

LAYER = {
    "input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
}  # fmt: skip
#: As SGLang's DFlashDraftModel.load_weights reads them.
NAMES = {f"layers.{at}.{name}.weight" for at in range(2) for name in LAYER} | {
    "fc.weight", "hidden_norm.weight", "norm.weight",
}  # fmt: skip


def inputs(seed: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 50, length), rng.normal(size=(length - 1, 32)).astype(np.float32)


@pytest.mark.parametrize("parts", [False, True])
def test_every_row_drafts_the_block_that_its_root_would_draft_by_itself(monkeypatch, parts):
    if parts:  # of two rows each, and a last one
        monkeypatch.setattr(dflash, "_SCORES_PER_PART", 2 * 4 * 5 * (11 + 5))
    draft, (tokens, features) = build_dflash(1), inputs(2, 12)
    logits = [
        step[0].detach().numpy() for step in draft.unroll(torch.tensor(tokens)[None], torch.tensor(features)[None], 4)
    ]
    for row in range(11):
        expected = draft_block(draft, tokens[row + 1], features[: row + 1])
        for step, wanted in enumerate(expected):
            np.testing.assert_allclose(logits[step][row], wanted, atol=3e-4)
    assert len(logits) == len(expected) == 4


def test_rows_may_be_chosen_and_dropped_between_steps():
    draft, (tokens, features) = build_dflash(1), inputs(2, 9)
    given = torch.tensor(tokens)[None], torch.tensor(features)[None]
    whole = draft.unroll(*given, 2)[1][0]
    blocks = draft.begin(*given, torch.tensor([[6, 2, 4]]))
    draft.advance(blocks)
    blocks.keep(torch.tensor([[2, 0]]))
    assert blocks.predicted().tolist() == [[7, 9]]
    torch.testing.assert_close(draft.lm_head(draft.advance(blocks))[0], whole[[4, 6]])


def test_a_block_has_no_more_steps_than_places_after_its_root():
    draft, (tokens, features) = build_dflash(1), inputs(2, 9)
    with pytest.raises(ConfigError, match="draft steps: got more than 4, expected at most those of a block of 5"):
        draft.unroll(torch.tensor(tokens)[None], torch.tensor(features)[None], 5)


def test_gradients_are_those_without_parts_and_reach_every_weight(monkeypatch):
    found = []
    for most in (1 << 24, 1):
        monkeypatch.setattr(dflash, "_SCORES_PER_PART", most)
        draft, (tokens, features) = build_dflash(1), inputs(3, 9)
        logits = draft.unroll(torch.tensor(tokens)[None], torch.tensor(features)[None], 4)
        sum(step.square().mean() for step in logits).backward()
        found.append({name: weight.grad for name, weight in draft.named_parameters()})
    assert {name for name, grad in found[0].items() if grad.abs().max() > 0} == NAMES == found[0].keys()
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, atol=1e-4, rtol=1e-4)


def test_replay_counts_the_places_that_a_block_has_right(make_trace):
    draft = build_dflash(1)
    trace = make_trace(feature_dim=32)
    (runs,) = replay_traces(draft, [trace], 4)
    numbers = trace.feature_numbers()
    for root in range(1, len(trace.features) + 1):
        guesses = [int(logits.argmax()) for logits in draft_block(draft, trace.tokens[root], numbers[:root])]
        told = zip(guesses, trace.tokens[root + 1 :].tolist(), strict=False)
        expected = next((at for at, (guess, token) in enumerate(told) if guess != token), None)
        most = min(4, len(trace.tokens) - root - 1)
        assert runs[root] == (most if expected is None else expected)


def test_a_draft_is_saved_under_sglangs_names_and_read_back(tmp_path):
    draft = build_dflash(1)
    save_draft(draft, tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == NAMES
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["architectures"] == ["DFlashDraftModel"]
    assert written["dflash_config"] == {"mask_token_id": 3, "target_layer_ids": [0, 2]}
    loaded = load_draft(tmp_path, draft.embedding_WH, lambda: draft.lm_head.weight)
    assert isinstance(loaded.config, DflashConfig)
    assert (loaded.config.block_size, loaded.config.layers, loaded.config.feature_width) == (5, 2, 32)
    for name, weight in draft.named_parameters():
        assert torch.equal(loaded.get_parameter(name), weight)
    renamed = {f"model.{name}": weight.bfloat16() for name, weight in load_file(tmp_path / "model.safetensors").items()}
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    save_draft(load_draft(tmp_path, draft.embedding_WH, lambda: draft.lm_head.weight), tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias: got True, expected False"),
        ({"is_causal": True}, "is_causal: got True, expected False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "expected full_attention alone"),
        ({"block_size": 1}, "block_size: got 1, expected at least 2"),
        ({"block_size": None}, "block_size is missing"),
        ({"dflash_config": {"target_layer_ids": [0, 2]}}, "mask_token_id: got None, expected a token .*, 0 to 49"),
        ({"dflash_config": {"mask_token_id": 50, "target_layer_ids": [0, 2]}}, "mask_token_id: got 50"),
        ({"dflash_config": {"mask_token_id": 3}}, "target_layer_ids: got None, expected a list of different layers"),
        ({"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 0]}}, r"target_layer_ids: got \[0, 0\]"),
        (
            {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0], "selector_rank": 8}},
            "got {'selector_rank': 8}",
        ),
        ({"dflash_config": 3}, "dflash_config: got 3, expected a JSON object"),
    ],
)
def test_a_config_with_other_arithmetic_is_refused(tmp_path, changes, message):
    save_draft(build_dflash(1), tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ConfigError, match=message):
        load_draft(tmp_path, torch.zeros(50, 16), lambda: torch.zeros(50, 16))


def test_an_embedding_that_sglang_would_write_into_the_target_is_refused(tmp_path):
    save_draft(build_dflash(1), tmp_path)
    (tmp_path / "mask_embedding.pt").touch()
    with pytest.raises(ConfigError, match=r"got mask_embedding.pt, expected none"):
        load_draft(tmp_path, torch.zeros(50, 16), lambda: torch.zeros(50, 16))


def test_the_layers_of_its_features_are_those_that_sglang_captures():
    target = {"num_hidden_layers": 4, "hidden_size": 16}
    assert captured_layers(build_dflash(1).config, target) == (1, 3)


def test_training_moves_every_weight_and_fits_the_traces(make_trace):
    draft = build_dflash(1)
    traces = [make_trace(seed, feature_dim=32) for seed in range(6)]
    before = {name: weight.detach().clone() for name, weight in draft.named_parameters()}
    trainer = DraftTrainer(draft, TrainingPlan(steps=3, passes=8))
    losses = [trainer.fit(traces, []).losses for _ in range(2)]
    assert losses[1][-1] < losses[0][0]
    assert all(not torch.equal(before[name], weight) for name, weight in trainer.draft.named_parameters())
