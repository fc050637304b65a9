"""The MTP layer of a MiMo against a decoder that does one row at a time; SGLang's own is asked in tests/serving."""

import json

import numpy as np
import pytest
import torch
from naive_mtp import build_mtp, decode_mtp
from paceline.buffer.errors import ConfigError
from paceline.learner.model.draft_io import load_draft, save_draft
from paceline.learner.model.mimo import MimoConfig
from paceline.learner.model.target_features import captured_layers
from paceline.learner.training.batch import collate
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from safetensors.torch import load_file, save_file

#: As SGLang's MiMoMTP.load_weights reads them.
NAMES = {
    f"model.mtp_layers.0.{name}"
    for name in (
        "token_layernorm.weight", "hidden_layernorm.weight", "input_proj.weight", "final_layernorm.weight",
        "input_layernorm.weight", "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
        "mlp.down_proj.weight", "self_attn.o_proj.weight",
        *(f"self_attn.{part}_proj.{kind}" for part in "qkv" for kind in ("weight", "bias")),
    )
}  # fmt: skip


def inputs(seed: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 50, length), rng.normal(size=(length - 1, 16)).astype(np.float32)


@pytest.mark.parametrize("opens_text", [True, False])
def test_unroll_equals_decoding_every_round_by_itself(opens_text):
    draft, (tokens, features), steps = build_mtp(1), inputs(2, 12), 4
    rows_BQ = torch.arange(11)[None]
    chains = draft.begin(torch.tensor(tokens)[None], torch.tensor(features)[None], rows_BQ, torch.tensor([opens_text]))
    logits = [draft.lm_head(draft.advance(chains))[0].detach().numpy() for _ in range(steps)]
    compared = 0
    for root in range(1, 12):
        expected = decode_mtp(draft, tokens, features, root, tokens[root + 1 :][: steps - 1], opens_text=opens_text)
        for step, wanted in enumerate(expected):
            np.testing.assert_allclose(logits[step][root - 1], wanted, atol=3e-4)
            compared += 1
    assert compared == 8 * 4 + 3 + 2 + 1  # the last three roots run out of tokens to be fed


def test_only_the_first_token_of_a_text_is_fed_without_its_embedding():
    draft, (tokens, features) = build_mtp(1), inputs(2, 6)
    arguments = torch.tensor(tokens)[None].expand(2, -1), torch.tensor(features)[None].expand(2, -1, -1)
    chains = draft.begin(*arguments, torch.arange(5).expand(2, -1), torch.tensor([True, False]))
    opening, later = draft.advance(chains)
    assert (opening - later).abs().amax(-1).min() > 1e-4  # row 0 itself, and its key in all rows after it
    torch.testing.assert_close(draft.unroll(*arguments, 1)[0][1], draft.lm_head(opening), atol=1e-5, rtol=1e-5)


def test_a_batch_says_which_windows_open_their_text(make_trace):
    first, later = make_trace(), make_trace(offset=7)
    assert [trace.offset for trace in (first, later)] == [0, 7]
    assert collate([first, later], torch.device("cpu")).opens_text_B.tolist() == [True, False]


def test_gradients_reach_every_weight_and_neither_embedding_nor_head():
    draft, (tokens, features) = build_mtp(1), inputs(3, 9)
    logits = draft.unroll(torch.tensor(tokens)[None], torch.tensor(features)[None], 3)
    sum(step.square().mean() for step in logits).backward()
    reached = {name for name, weight in draft.named_parameters() if weight.grad.abs().max() > 0}
    assert {draft.parameter_of(name) for name in NAMES} == reached == {name for name, _ in draft.named_parameters()}


def test_a_layer_is_saved_under_sglangs_names_and_read_back(tmp_path):
    draft = build_mtp(1)
    save_draft(draft, tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == NAMES
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["MiMoForCausalLM"]
    loaded = load_draft(tmp_path, draft.embedding_WH, lambda: draft.lm_head.weight)
    assert isinstance(loaded.config, MimoConfig)
    for name, weight in draft.named_parameters():
        assert torch.equal(loaded.get_parameter(name), weight)
    halved = {name: weight.bfloat16() for name, weight in load_file(tmp_path / "model.safetensors").items()}
    save_file(halved, tmp_path / "model.safetensors", metadata={"format": "pt"})
    save_draft(load_draft(tmp_path, draft.embedding_WH, lambda: draft.lm_head.weight), tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', expected 'silu'"),
        ({"num_attention_heads": None}, "num_attention_heads: got None, expected a whole number above 0"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type: got 'dynamic'"),
    ],
)
def test_a_config_with_other_arithmetic_is_refused(tmp_path, changes, message):
    save_draft(build_mtp(1), tmp_path)
    file = tmp_path / "config.json"
    source = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in source.items() if key != "rope_parameters"} | changes))
    with pytest.raises(ConfigError, match=message):
        load_draft(tmp_path, torch.zeros(50, 16), lambda: torch.zeros(50, 16))


def test_hidden_states_are_not_recomputed_for_a_layer():
    with pytest.raises(ConfigError, match="got an MTP layer, expected an EAGLE-3 or DFLASH draft"):
        captured_layers(build_mtp(1).config, {"num_hidden_layers": 4, "hidden_size": 16})


def test_training_moves_every_weight_and_fits_the_traces(make_trace):
    draft = build_mtp(1)
    traces = [make_trace(seed, feature_dim=16) for seed in range(6)]
    before = {name: weight.detach().clone() for name, weight in draft.named_parameters()}
    trainer = DraftTrainer(draft, TrainingPlan(steps=3, passes=8))
    losses = [trainer.fit(traces, []).losses for _ in range(2)]
    assert losses[1][-1] < losses[0][0]
    assert all(not torch.equal(before[name], weight) for name, weight in trainer.draft.named_parameters())
