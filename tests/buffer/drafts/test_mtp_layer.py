"""Of a target that drafts by a layer of its own, that layer alone becomes a draft, with the same bytes everywhere."""

import json
import re

import pytest
import torch
from paceline.buffer.board.weights_file import sha256_of
from paceline.buffer.drafts.checkpoint import architecture_of
from paceline.buffer.drafts.mtp_layer import layer_names
from paceline.buffer.drafts.single_file import draft_folder
from paceline.buffer.errors import ConfigError
from safetensors.torch import load_file, save_file

LAYER = "model.mtp_layers.0."
CONFIG = {
    "architectures": ["MiMoForCausalLM"], "model_type": "mimo", "hidden_size": 4,
    "auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"},
}  # fmt: skip


def layer():
    generator = torch.Generator().manual_seed(0)
    return {
        f"{LAYER}input_proj.weight": torch.randn(4, 8, generator=generator).bfloat16(),
        f"{LAYER}self_attn.q_proj.bias": torch.randn(4, generator=generator).half(),
    }


def target():
    return {"model.embed_tokens.weight": torch.ones(6, 4), "lm_head.weight": torch.zeros(6, 4), **layer()}


@pytest.fixture
def source(tmp_path):
    """A folder with the config of a MiMo alone."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "source"


def whole(folder):
    save_file(target(), folder / "model.safetensors")


def shards(folder):
    listed = {}
    for i, (name, tensor) in enumerate(target().items()):
        save_file({name: tensor}, folder / f"part-{i}.safetensors")
        listed[name] = f"part-{i}.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))


@pytest.mark.parametrize("form", [whole, shards])
def test_the_layer_alone_is_the_draft(tmp_path, source, form):
    form(source)
    made = draft_folder(source, tmp_path / "cache")
    assert sorted(path.name for path in made.iterdir()) == ["config.json", "model.safetensors"]
    found = load_file(made / "model.safetensors")
    assert found.keys() == layer().keys()
    for name, tensor in layer().items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_its_config_needs_no_code_beside_it_and_names_the_same_class_of_sglang(tmp_path, source):
    whole(source)
    file = draft_folder(source, tmp_path / "cache") / "config.json"
    assert json.loads(file.read_text()) == {
        "architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "hidden_size": 4
    }  # fmt: skip
    assert architecture_of(file) == "MiMoForCausalLM"


def test_a_layer_alone_stays_where_it_is(tmp_path, source):
    whole(source)
    made = draft_folder(source, tmp_path / "cache")
    assert draft_folder(made, tmp_path / "other") == made
    assert not (tmp_path / "other").exists()


def test_server_and_learner_make_the_same_bytes_of_any_form_and_others_of_another_layer(tmp_path, source):
    whole(source)
    made = [draft_folder(source, tmp_path / "server")]
    (source / "model.safetensors").unlink()
    shards(source)
    made.append(draft_folder(source, tmp_path / "learner"))
    save_file({f"{LAYER}input_proj.weight": torch.ones(4, 8)}, source / "part-2.safetensors")
    made.append(draft_folder(source, tmp_path / "server"))
    assert [folder.name for folder in made[:2]] == [made[0].name] * 2 != [made[2].name] * 2
    same, other = {sha256_of(folder / "model.safetensors") for folder in made[:2]}, made[2]
    assert len(same) == 1
    assert sha256_of(other / "model.safetensors") not in same


NUMBERED = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_hidden_layers": 2}


def numbered(folder, more):
    """A target of two layers whose MTP layer is numbered as its third, with what the layer may repeat of the target."""
    (folder / "config.json").write_text(json.dumps(NUMBERED))
    names = (
        "0.enorm",
        "1.mlp.gate",
        "2.enorm",
        "2.mlp.experts.7.up_proj",
        "2.embed_tokens",
        "2.shared_head.head",
        *more,
    )
    save_file({f"model.layers.{name}.weight": torch.ones(2) for name in names}, folder / "model.safetensors")
    return folder


def test_a_layer_that_is_numbered_after_the_targets_last_is_the_draft_without_what_it_repeats(tmp_path, source):
    made = draft_folder(numbered(source, ["2.shared_head.norm"]), tmp_path / "cache")
    assert load_file(made / "model.safetensors").keys() == {
        "model.layers.2.enorm.weight", "model.layers.2.mlp.experts.7.up_proj.weight",
        "model.layers.2.shared_head.norm.weight",
    }  # fmt: skip
    assert json.loads((made / "config.json").read_text()) == NUMBERED
    assert draft_folder(made, tmp_path / "other") == made


def test_several_layers_after_the_targets_last_are_refused(tmp_path, source):
    with pytest.raises(ConfigError, match=re.escape("got MTP layers 2 and 3, expected one MTP layer, model.layers.2.")):
        draft_folder(numbered(source, ["3.enorm"]), tmp_path / "cache")


@pytest.mark.parametrize("number", [None, "2", 1])
def test_a_target_that_does_not_say_how_many_layers_it_has_is_refused(number):
    with pytest.raises(ConfigError, match=f"num_hidden_layers: got {number!r}, expected the number of"):
        layer_names(NUMBERED | {"num_hidden_layers": number})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (dict.fromkeys(layer()), "got none, expected one MTP layer, model.mtp_layers.0."),
        ({"model.mtp_layers.1.input_proj.weight": torch.ones(2)}, "got MTP layers 0 and 1, expected one MTP layer"),
    ],
)
def test_a_target_without_one_such_layer_is_refused(tmp_path, source, more, message):
    tensors = {name: tensor for name, tensor in (target() | more).items() if tensor is not None}
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(ConfigError, match=re.escape(message)):
        draft_folder(source, tmp_path / "cache")


def test_a_file_that_is_no_safetensors_is_refused(tmp_path, source):
    torch.save(target(), source / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin: got .*, expected a safetensors file"):
        draft_folder(source, tmp_path / "cache")


@pytest.mark.parametrize("text", ["[1]", "{", '{"architectures": []}', '{"architectures": "MiMoForCausalLM"}'])
def test_a_config_that_names_no_class_has_none(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert architecture_of(tmp_path / "config.json") == ""
