"""Shards and pickles become one safetensors file, once, with the same bytes everywhere; a bad pickle runs nothing."""

import json
import pickle
import threading
from pathlib import Path

import pytest
import torch
from paceline.buffer.board.weights_file import sha256_of
from paceline.buffer.drafts.single_file import draft_folder
from paceline.buffer.errors import ConfigError
from safetensors.torch import load_file, save_file


def tensors():
    generator = torch.Generator().manual_seed(0)
    return {
        "fc.weight": torch.randn(4, 12, generator=generator).half(),
        "norm.weight": torch.ones(4).bfloat16(),
        "d2t": torch.arange(6),
        "t2d": torch.tensor([True, False, True]),
    }


@pytest.fixture
def source(tmp_path):
    """A folder with a config alone."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text('{"hidden_size": 4}')
    return tmp_path / "source"


def whole(folder):
    save_file(tensors(), folder / "model.safetensors")


def shards(folder, suffix="safetensors", single="model.safetensors", write=save_file):
    parts = {f"part-{i}.{suffix}": {name: t} for i, (name, t) in enumerate(tensors().items())}
    for name, part in parts.items():
        write(part, folder / name)
    listed = {tensor: name for name, part in parts.items() for tensor in part}
    (folder / f"{single}.index.json").write_text(json.dumps({"weight_map": listed}))


def pickled(folder):
    torch.save(tensors(), folder / "pytorch_model.bin")


def pickled_shards(folder):
    shards(folder, "bin", "pytorch_model.bin", torch.save)


def one_file_of_another_name(folder):
    save_file(tensors(), folder / "draft.safetensors")


FORMS = [shards, pickled, pickled_shards, one_file_of_another_name]


def test_one_safetensors_file_stays_where_it_is(tmp_path, source):
    whole(source)
    assert draft_folder(source, tmp_path / "cache") == source
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("form", FORMS)
def test_every_other_form_becomes_one_file_with_the_same_tensors(tmp_path, source, form):
    form(source)
    made = draft_folder(source, tmp_path / "cache")
    assert sorted(path.name for path in made.iterdir()) == ["config.json", "model.safetensors"]
    assert (made / "config.json").read_bytes() == (source / "config.json").read_bytes()
    found = load_file(made / "model.safetensors")
    assert found.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert [*(tmp_path / "cache" / "drafts").iterdir()] == [made]


def test_equal_tensors_give_equal_bytes_in_every_cache_whatever_they_came_in(tmp_path, source):
    digests = set()
    for form in FORMS:
        folder = tmp_path / form.__name__
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        form(folder)
        digests |= {sha256_of(draft_folder(folder, tmp_path / c) / "model.safetensors") for c in ("here", "there")}
    assert len(digests) == 1


def test_it_is_written_once_and_again_when_the_source_changes(tmp_path, source):
    pickled(source)
    first = draft_folder(source, tmp_path / "cache")
    written_at = (first / "model.safetensors").stat().st_mtime_ns
    assert draft_folder(source, tmp_path / "cache") == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written_at
    torch.save(tensors() | {"norm.weight": torch.zeros(4)}, source / "pytorch_model.bin")
    second = draft_folder(source, tmp_path / "cache")
    assert second != first
    assert not load_file(second / "model.safetensors")["norm.weight"].any()


def test_several_processes_may_write_one_draft(tmp_path, source, monkeypatch):
    pickled(source)
    rename, made, met = Path.rename, [], threading.Barrier(4, timeout=30.0)

    def together(path, target):
        met.wait()  # everybody has written and nobody has renamed
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", together)
    threads = [threading.Thread(target=lambda: made.append(draft_folder(source, tmp_path / "cache"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [made[0]] * 4
    assert [*(tmp_path / "cache" / "drafts").iterdir()] == [made[0]]
    assert torch.equal(load_file(made[0] / "model.safetensors")["d2t"], torch.arange(6))


def test_two_names_of_one_tensor_in_a_pickle_become_two_tensors(tmp_path, source):
    shared = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": shared, "b": shared, "c": shared.T}, source / "pytorch_model.bin")
    found = load_file(draft_folder(source, tmp_path / "cache") / "model.safetensors")
    assert torch.equal(found["a"], shared)
    assert torch.equal(found["b"], shared)
    assert torch.equal(found["c"], shared.T)


class Marker:
    """Makes a file when it is unpickled by a reader that runs code."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def harmful(file, marker):
    torch.save({"fc.weight": torch.ones(2), "extra": Marker(marker)}, file)


def raw(file, marker):
    file.write_bytes(pickle.dumps(Marker(marker)))


BAD_PICKLES = {
    "code": (harmful, "expected a dictionary of tensors by name"),
    "raw code": (raw, "expected a dictionary of tensors by name"),
    "a nested state": (lambda f, _: torch.save({"model": {"fc.weight": torch.ones(2)}}, f), "got dict for 'model'"),
    "a list": (lambda f, _: torch.save([torch.ones(2)], f), "got a list"),
    "a tensor": (lambda f, _: torch.save(torch.ones(2), f), "got a Tensor"),
    "numbered tensors": (lambda f, _: torch.save({3: torch.ones(2)}, f), "got Tensor for 3"),
    "a number among them": (lambda f, _: torch.save({"step": 7, "w": torch.ones(2)}, f), "got int for 'step'"),
    "half a file": (lambda f, _: f.write_bytes(b"PK\x03\x04"), "expected a dictionary of tensors by name"),
}


@pytest.mark.guarantee("data-is-never-code")
@pytest.mark.parametrize("name", BAD_PICKLES)
def test_a_pickle_of_anything_but_tensors_by_name_is_refused_and_runs_nothing(tmp_path, source, name):
    write, message = BAD_PICKLES[name]
    write(source / "pytorch_model.bin", tmp_path / "ran")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin: got ") as refused:
        draft_folder(source, tmp_path / "cache")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "cache").exists()


def test_half_a_sharded_draft_is_refused(tmp_path, source):
    shards(source)
    save_file({"other": torch.ones(1)}, source / "part-0.safetensors")
    with pytest.raises(ConfigError, match=r"got files without \{'fc\.weight': 'part-0\.safetensors'\}, expected what"):
        draft_folder(source, tmp_path / "cache")
    (source / "part-0.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"got 'part-0\.safetensors' for fc\.weight, expected a file in"):
        draft_folder(source, tmp_path / "cache")


def test_a_broken_shard_is_named(tmp_path, source):
    shards(source)
    (source / "part-1.safetensors").write_bytes(b"\x08")
    with pytest.raises(ConfigError, match=r"part-1\.safetensors: got .*, expected a safetensors file"):
        draft_folder(source, tmp_path / "cache")


def test_a_tensor_in_two_files_is_refused(tmp_path, source):
    save_file({"w": torch.ones(1)}, source / "a.safetensors")
    save_file({"w": torch.zeros(1)}, source / "b.safetensors")
    with pytest.raises(ConfigError, match=r"got w in a\.safetensors and in b\.safetensors, expected it in one file"):
        draft_folder(source, tmp_path / "cache")


def test_a_draft_without_a_config_is_refused(tmp_path, source):
    whole(source)
    (source / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"got no config\.json"):
        draft_folder(source, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named_with_its_setting(tmp_path, source):
    pickled(source)
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(OSError, match="PACELINE_CACHE_DIR"):
        draft_folder(source, blocked)
