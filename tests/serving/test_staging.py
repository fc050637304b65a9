"""Every weights file that must not enter the server is refused with got and expected; a good one is staged exactly."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from paceline.buffer.board.weights_file import sha256_of
from paceline.buffer.errors import WeightsRefused
from paceline.serving.swap.staging import read_layout, stage
from paceline.serving.swap.weights_in_memory import WeightsInMemory
from safetensors.torch import save_file


def weights():
    generator = torch.Generator().manual_seed(0)
    return {
        "fc.weight": torch.randn(4, 12, generator=generator),
        "norm.weight": torch.ones(4),
        "d2t": torch.arange(6),
        "t2d": torch.ones(8, dtype=torch.bool),
    }


@pytest.fixture
def served(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    save_file(weights(), folder / "model.safetensors")
    return read_layout(folder)


def offer(tmp_path, tensors):
    file = tmp_path / "offered.safetensors"
    save_file(tensors, file)
    return file


def test_a_good_file_is_staged_to_the_last_bit(tmp_path, served):
    offered = weights() | {"fc.weight": torch.randn(4, 12)}
    file = offer(tmp_path, offered)
    staged = stage(file, hashlib.sha256(file.read_bytes()).hexdigest(), served, torch.float32, is_pinned=False)
    assert [name for name, _ in staged.tensors] == ["fc.weight", "norm.weight"]
    for name, tensor in staged.tensors:
        assert torch.equal(tensor, offered[name])


def test_values_are_cast_to_the_servers_dtype(tmp_path, served):
    staged = stage(offer(tmp_path, weights()), "", served, torch.bfloat16, is_pinned=False)
    assert all(torch.equal(tensor, weights()[name].to(torch.bfloat16)) for name, tensor in staged.tensors)


def test_what_the_model_keeps_in_float32_is_not_rounded(tmp_path, served):
    offered = weights() | {"norm.weight": torch.ones(4) + torch.tensor([0.0, 1e-3, 2e-3, 3e-3])}
    file = offer(tmp_path, offered)
    staged = dict(stage(file, "", served, torch.bfloat16, is_pinned=False, in_float32={"norm.weight"}).tensors)
    assert torch.equal(staged["norm.weight"], offered["norm.weight"])
    assert staged["fc.weight"].dtype is torch.bfloat16


def test_tensors_that_are_not_aligned_in_the_file_are_staged_to_the_last_bit(tmp_path, served):
    header = json.dumps(
        {
            "odd": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
            "fc.weight": {"dtype": "F32", "shape": [4, 12], "data_offsets": [1, 193]},
            "norm.weight": {"dtype": "F32", "shape": [4], "data_offsets": [193, 209]},
        }
    ).encode()
    values = np.arange(52, dtype=np.float32)
    file = tmp_path / "unaligned.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" + values.tobytes())
    with pytest.raises(WeightsRefused, match=r"unknown \['odd'\]"):
        stage(file, "", served, torch.float32, is_pinned=False)
    layout = replace(served, shapes={"odd": (1,), **served.shapes})
    whole = WeightsInMemory.read(file, torch.float32, is_pinned=False)
    assert torch.equal(whole.tensor("fc.weight"), torch.from_numpy(values[:48].reshape(4, 12)))
    assert torch.equal(whole.tensor("norm.weight"), torch.from_numpy(values[48:]))
    with pytest.raises(WeightsRefused, match=r"odd: got dtype torch\.uint8, expected a floating one"):
        stage(file, "", layout, torch.float32, is_pinned=False)


HEADERS = {
    "offsets beyond the file": {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
    "offsets before it": {"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
    "fewer bytes than the shape": {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
    "a negative extent": {"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}},
    "an unknown dtype": {"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}},
    "no offsets": {"a": {"dtype": "F32", "shape": [1]}},
    "words for numbers": {"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}},
    "no object": ["a"],
    "no object for a tensor": {"a": 7},
}


@pytest.mark.guarantee("weights-refused")
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_header_that_is_not_one_is_refused(tmp_path, served, header):
    text = json.dumps(header).encode()
    file = tmp_path / "odd.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(WeightsRefused, match=r"not a readable safetensors file: .*got"):
        stage(file, "", served, torch.float32, is_pinned=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("at", [0, 7, 47])
def test_one_value_that_is_not_finite_is_found_wherever_it_is(tmp_path, served, dtype, value, at):
    offered = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights().items()}
    offered["fc.weight"].view(-1)[at] = float(value)
    with pytest.raises(WeightsRefused, match=r"fc\.weight: holds values that are not finite"):
        stage(offer(tmp_path, offered), "", served, dtype, is_pinned=False)


def nan(tensors):
    tensors["norm.weight"][2] = float("nan")


def overflow(tensors):
    tensors["norm.weight"] = torch.full((4,), 1e30)


CHANGES = {
    "another shape": (
        lambda t: t.update({"fc.weight": torch.zeros(4, 11)}),
        r"fc.weight: got shape \(4, 11\), expected \(4, 12\)",
    ),
    "an integer dtype": (
        lambda t: t.update({"norm.weight": torch.ones(4, dtype=torch.int32)}),
        "got dtype torch.int32",
    ),
    "NaN": (nan, "norm.weight: holds values that are not finite"),
    "values that overflow the server's dtype": (overflow, "not finite in torch.float16"),
    "an unknown name": (lambda t: t.update({"foo.weight": torch.ones(1)}), r"unknown \['foo.weight'\]"),
    "a missing name": (lambda t: t.pop("norm.weight"), r"expected also \['norm.weight'\]"),
    "the target's embedding": (
        lambda t: t.update({"model.embed_tokens.weight": torch.ones(2)}),
        r"belongs to the target .*; got torch.float32 \(2,\) sha256 .*, expected none, .*; write the file again",
    ),
    "another vocabulary map": (lambda t: t.update({"d2t": torch.arange(6) + 1}), "d2t: differs"),
}


@pytest.mark.guarantee("weights-refused")
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_with_this_change_is_refused(tmp_path, served, change):
    tensors = weights()
    make, message = CHANGES[change]
    make(tensors)
    file = offer(tmp_path, tensors)
    with pytest.raises(WeightsRefused, match=message):
        stage(file, sha256_of(file), served, torch.float16, is_pinned=False)


EMBEDDING = torch.arange(24, dtype=torch.float32).reshape(8, 3).to(torch.bfloat16)


@pytest.fixture
def served_with_embedding(tmp_path):
    """Layout of a server that was started with a file that holds the target's embedding too."""
    save_file(weights() | {"embed_tokens.weight": EMBEDDING}, tmp_path / "model.safetensors")
    return read_layout(tmp_path)


HEAD = torch.ones(8, 4)


@pytest.mark.guarantee("weights-refused")
@pytest.mark.parametrize("ships_it", [True, False])
def test_a_head_that_is_the_targets_is_never_loaded(tmp_path, ships_it):
    file = tmp_path / "model.safetensors"
    save_file(weights() | ({"lm_head.weight": HEAD} if ships_it else {}), file)
    layout = read_layout(tmp_path, shares_head=True)
    assert [name for name, _ in stage(file, "", layout, torch.float32, is_pinned=False).tensors] == [
        "fc.weight",
        "norm.weight",
    ]
    other = offer(tmp_path, weights() | {"lm_head.weight": HEAD + 1})
    with pytest.raises(WeightsRefused, match=r"lm_head\.weight: belongs to the target and must not be shipped"):
        stage(other, "", layout, torch.float32, is_pinned=False)
    # A draft with a head of its own does load it.
    assert "lm_head.weight" in read_layout(tmp_path).shapes or not ships_it


@pytest.mark.parametrize("checked", [True, False], ids=["from the board", "at the start"])
def test_the_file_the_server_was_started_with_comes_back_and_its_embedding_is_ignored(
    tmp_path, served_with_embedding, checked
):
    file = tmp_path / "model.safetensors"
    staged = stage(file, sha256_of(file) if checked else "", served_with_embedding, torch.float32, is_pinned=False)
    assert [name for name, _ in staged.tensors] == ["fc.weight", "norm.weight"]
    assert all(torch.equal(tensor, weights()[name]) for name, tensor in staged.tensors)


def test_an_embedding_is_not_missed_in_a_later_file(tmp_path, served_with_embedding):
    file = offer(tmp_path, weights())
    staged = stage(file, sha256_of(file), served_with_embedding, torch.float32, is_pinned=False)
    assert [name for name, _ in staged.tensors] == ["fc.weight", "norm.weight"]


def next_value(embedding):
    bits = embedding.clone().view(torch.int16)
    bits[7, 2] ^= 1
    return bits.view(torch.bfloat16)


OTHER_EMBEDDINGS = {
    "one bit": next_value,
    "negative zero": lambda e: torch.where(e == 0, -0.0, e).to(torch.bfloat16),  # equal as numbers, not as bits
    "another dtype": lambda e: e.to(torch.float32),
    "the same bytes in another shape": lambda e: e.reshape(3, 8),
}


@pytest.mark.parametrize("change", OTHER_EMBEDDINGS)
def test_an_embedding_that_is_not_bit_by_bit_the_servers_is_refused(tmp_path, served_with_embedding, change):
    other = OTHER_EMBEDDINGS[change](EMBEDDING).contiguous()
    file = offer(tmp_path, weights() | {"embed_tokens.weight": other})
    with pytest.raises(WeightsRefused) as refused:
        stage(file, sha256_of(file), served_with_embedding, torch.float32, is_pinned=False)
    assert "embed_tokens.weight: belongs to the target" in str(refused.value)
    digests = [hashlib.sha256(t.view(torch.uint8).numpy()).hexdigest() for t in (other, EMBEDDING)]
    assert f"got {other.dtype} {tuple(other.shape)} sha256 {digests[0]}" in str(refused.value)
    assert f"expected torch.bfloat16 (8, 3) sha256 {digests[1]}" in str(refused.value)


def test_an_embedding_under_another_name_is_refused(tmp_path, served_with_embedding):
    file = offer(tmp_path, weights() | {"model.embed_tokens.weight": EMBEDDING})
    with pytest.raises(WeightsRefused, match=r"model\.embed_tokens\.weight: belongs to the target .* expected none"):
        stage(file, sha256_of(file), served_with_embedding, torch.float32, is_pinned=False)


@pytest.mark.guarantee("weights-refused")
def test_a_file_changed_after_its_publication_is_refused(tmp_path, served):
    file = offer(tmp_path, weights())
    digest = sha256_of(file)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(WeightsRefused, match="the file was changed"):
        stage(file, digest, served, torch.float32, is_pinned=False)


@pytest.mark.guarantee("data-is-never-code")
@pytest.mark.parametrize("content", ["truncated", "garbage", "pickle", "empty", "absent"])
def test_a_file_that_is_not_safetensors_is_refused(tmp_path, served, content):
    file = offer(tmp_path, weights())
    whole = file.read_bytes()
    match content:
        case "truncated":
            file.write_bytes(whole[:-7])
        case "garbage":
            file.write_bytes(bytes(range(256)) * 16)
        case "pickle":
            torch.save(weights(), file)
        case "empty":
            file.write_bytes(b"")
        case "absent":
            file.unlink()
    with pytest.raises(WeightsRefused, match="not a readable safetensors file"):
        stage(file, "", served, torch.float32, is_pinned=False)


def test_a_folder_without_weights_has_no_layout(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        read_layout(tmp_path)
