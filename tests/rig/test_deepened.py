"""A deepened target is slower than the one it was made of, and gives the same answers."""

import torch
from paceline.rig.models.deepened import deepened
from transformers import LlamaConfig, LlamaForCausalLM


def test_further_layers_change_no_hidden_state_and_no_logit(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=40, num_key_value_heads=1, tie_word_embeddings=False, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target = LlamaForCausalLM(config).eval()
    target.save_pretrained(tmp_path / "target")
    folder = deepened(tmp_path / "target", 8, tmp_path / "deep")
    deep = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert len(deep.model.layers) == 8
    assert all(layer.self_attn.q_proj.weight.abs().sum() > 0 for layer in deep.model.layers)  # at full price
    ids = torch.arange(20).view(2, 10)
    with torch.no_grad():
        said, wanted = (model(ids, output_hidden_states=True) for model in (deep, target))
    assert torch.equal(said.logits, wanted.logits)
    assert torch.equal(said.hidden_states[2], wanted.hidden_states[2])
    assert deepened(tmp_path / "absent", 8, folder) == folder  # made once
