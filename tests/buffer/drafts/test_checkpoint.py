"""A draft is found by folder or Hugging Face id and never downloaded; what is missing is named."""

import json
from pathlib import Path

import pytest
from paceline.buffer.drafts.checkpoint import local_folder, weight_files
from paceline.buffer.errors import ConfigError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached(cache: Path, repository: str = "org/draft", revision: str = "main") -> Path:
    """The snapshot folder of a model in a Hugging Face cache, laid out as huggingface_hub downloads it."""
    home = cache / f"models--{repository.replace('/', '--')}"
    (home / "refs").mkdir(parents=True, exist_ok=True)
    (home / "refs" / revision).write_text(COMMIT)
    (home / "snapshots" / COMMIT).mkdir(parents=True, exist_ok=True)
    return home / "snapshots" / COMMIT


def test_a_folder_is_itself_also_where_its_name_could_be_an_id(tmp_path, monkeypatch):
    (tmp_path / "org" / "draft").mkdir(parents=True)
    cached(tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    assert local_folder("org/draft", download_dir=tmp_path / "cache") == Path("org/draft")


def test_an_id_is_the_snapshot_of_its_revision(tmp_path):
    snapshot = cached(tmp_path)
    assert local_folder("org/draft", download_dir=tmp_path) == snapshot
    assert local_folder(Path("org/draft"), download_dir=tmp_path) == snapshot
    tagged = cached(tmp_path, revision="v2")
    assert local_folder("org/draft", "v2", tmp_path) == local_folder("org/draft@v2", "main", tmp_path) == tagged


@pytest.mark.parametrize(
    ("name", "revision", "command"),
    [
        ("org/other", None, "hf download org/other --cache-dir CACHE`"),
        ("org/draft", "v9", "hf download org/draft --revision v9 --cache-dir CACHE`"),
        ("org/draft@v8", None, "hf download org/draft --revision v8 --cache-dir CACHE`"),
    ],
)
def test_an_id_that_is_not_here_is_not_downloaded_and_the_error_says_what_to_run(tmp_path, name, revision, command):
    cached(tmp_path)
    with pytest.raises(ConfigError, match="got neither a folder nor a copy") as refused:
        local_folder(name, revision, tmp_path)
    assert str(refused.value).endswith(command.replace("CACHE", str(tmp_path)))


@pytest.mark.parametrize("name", ["/no/such/folder", "a/b/c", "./draft", "-"])
def test_a_name_that_is_no_id_is_a_missing_folder(name):
    with pytest.raises(ConfigError, match="got no such folder, expected one or a Hugging Face id"):
        local_folder(name)


@pytest.mark.parametrize(
    ("there", "loaded"),
    [
        (["model.safetensors", "pytorch_model.bin", "config.json"], ["model.safetensors"]),
        (["draft.safetensors", "optimizer.bin"], ["draft.safetensors"]),
        (["a.safetensors", "b.safetensors"], ["a.safetensors", "b.safetensors"]),
        (["pytorch_model.bin", "optimizer.bin"], ["pytorch_model.bin"]),
    ],
)
def test_without_an_index_safetensors_win_over_a_pickle(tmp_path, there, loaded):
    for name in there:
        (tmp_path / name).touch()
    found = weight_files(tmp_path)
    assert ([file.name for file in found.files], found.listed) == (loaded, {})


@pytest.mark.parametrize("single", ["model.safetensors", "pytorch_model.bin"])
def test_an_index_says_which_files_there_are(tmp_path, single):
    for name in ("b.part", "a.part", single):
        (tmp_path / name).touch()
    listed = {"x": "b.part", "y": "a.part", "z": "b.part"}
    if single == "pytorch_model.bin":
        (tmp_path / single).unlink()
    (tmp_path / f"{single}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    found = weight_files(tmp_path)
    assert (found.files, found.listed) == ((tmp_path / "a.part", tmp_path / "b.part"), listed)


@pytest.mark.parametrize("shard", ["gone.safetensors", "../outside.safetensors", "/etc/hostname", "sub/x", ""])
def test_an_index_that_names_what_is_not_beside_it_is_refused(tmp_path, shard):
    (tmp_path / "draft" / "sub").mkdir(parents=True)
    (tmp_path / "outside.safetensors").touch()
    (tmp_path / "draft" / "sub" / "x").touch()
    (tmp_path / "draft" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"fc.weight": shard}}))
    with pytest.raises(ConfigError) as refused:
        weight_files(tmp_path / "draft")
    assert f"got {shard!r} for fc.weight, expected a file in {tmp_path / 'draft'}; download it again" in str(
        refused.value
    )


def test_a_folder_without_weights_is_listed(tmp_path):
    (tmp_path / "training_args.bin").touch()
    with pytest.raises(ConfigError, match=r"got \['training_args\.bin'\], expected model\.safetensors, shards"):
        weight_files(tmp_path)
