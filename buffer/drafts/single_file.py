"""Brings a draft into the one form that paceline swaps and publishes: config.json and one model.safetensors.

A draft in shards, pickled, or in its target's checkpoint is written again into paceline's cache, once for its contents.
A pickle is read here and nowhere else, by torch's reader that makes tensors and runs no code.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..board.weights_file import WEIGHTS_FILE, sha256_of
from ..errors import ConfigError
from .checkpoint import CONFIG_FILE, WeightFiles, local_folder, weight_files
from .mtp_layer import LayerNames, config_of_layer, is_mtp, layer_names


def draft_folder(
    name: str | Path, cache: Path, revision: str | None = None, download_dir: str | Path | None = None
) -> Path:
    """Folder with config.json and one model.safetensors of the draft `name`: its own, or one made in `cache`.

    The draft of a target that drafts by a layer of its own (mtp_layer) is that layer alone.
    `name`, `revision` and `download_dir` are those of `local_folder`. Blocks on the disk: shards and pickles are read
    whole at every call, and written at the first. Several processes may call it for one draft at a time. ConfigError
    when there is no such draft, a part of it is missing, or a pickle holds anything but tensors by name; OSError when
    `cache` cannot be written.
    """
    folder = local_folder(name, revision, download_dir)
    config = folder / CONFIG_FILE
    if not config.is_file():
        raise ConfigError(f"{folder}: got no {CONFIG_FILE}, expected the folder of a draft")
    weights = weight_files(folder)
    is_one = weights.files == (folder / WEIGHTS_FILE,)
    if is_mtp(config):
        names = layer_names(json.loads(config.read_text(encoding="utf-8")))
        tensors, is_alone = _layer_of(weights, names)
        if is_alone and is_one:
            return folder
        text = config_of_layer(config).encode()
        return _kept(cache, _digest_of_layer(text, tensors), text, lambda: tensors)
    if is_one:
        return folder
    return _kept(cache, _digest(config, *weights.files), config.read_bytes(), lambda: _tensors(folder, weights))


def _kept(cache: Path, digest: str, config: bytes, tensors: Callable[[], Mapping[str, Tensor]]) -> Path:
    """The folder of this digest in `cache`, written if it is not there."""
    try:
        made = cache.expanduser() / "drafts" / digest
    except RuntimeError as error:  # pathlib's, where a user has no home
        raise ConfigError(f"PACELINE_CACHE_DIR: got {cache} ({error}), expected a folder; set it") from error
    if not os.path.exists(made):  # noqa: PTH110 - pathlib's raises where it may not look
        _write(made, config, tensors())
    return made


def _digest(*files: Path) -> str:
    """Of names and contents: a file that is replaced makes another draft."""
    named = "".join(f"{file.name} {sha256_of(file)}\n" for file in files)
    return hashlib.sha256(named.encode()).hexdigest()[:32]


def _layer_of(weights: WeightFiles, layer: LayerNames) -> tuple[dict[str, Tensor], bool]:
    """The tensors of the layer, and whether the checkpoint holds no others; they are not read. Blocks on the disk.

    ConfigError when there is no such layer, more than one, or a file that is not safetensors.
    """
    found: dict[str, Tensor] = {}
    stored_names = set[str]()
    for file in weights.files:
        try:
            with safe_open(file, framework="pt") as stored:
                stored_names.update(stored.keys())
                names = [name for name in stored.keys() if layer.layer_of(name) is not None]  # noqa: SIM118 - no mapping
                found |= {name: stored.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{file}: got {error}, expected a safetensors file") from error
    others = sorted({str(layer.layer_of(name)) for name in found} - {str(layer.number)})
    if others or not found:
        got = f"MTP layers {layer.number} and {', '.join(others)}" if others else "none"
        raise ConfigError(f"{weights.files[0].parent}: got {got}, expected one MTP layer, {layer.prefix}*")
    return found, stored_names == found.keys()


def _digest_of_layer(config: bytes, tensors: Mapping[str, Tensor]) -> str:
    """Of names and contents: a layer that is replaced makes another draft."""
    digest = hashlib.sha256(config)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def _write(made: Path, config: bytes, tensors: Mapping[str, Tensor]) -> None:
    """Equal tensors give equal bytes, so that servers and learner agree on the digest without seeing each other."""
    hidden = made.parent / f".writing-{made.name}-{uuid4().hex}"
    try:
        hidden.mkdir(parents=True)
        save_file(dict(tensors), hidden / WEIGHTS_FILE, metadata={"format": "pt"})
        (hidden / CONFIG_FILE).write_bytes(config)
        _force(hidden / WEIGHTS_FILE)
        hidden.rename(made)
    except (OSError, SafetensorError) as fault:
        if not made.exists():  # else another process has written the same
            raise OSError(
                f"{made}: got {fault}, expected to keep the draft there as one file; see PACELINE_CACHE_DIR"
            ) from fault
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _force(file: Path) -> None:
    """To the disk: what is found under its final name is never half a file, a power failure included."""
    with file.open("rb") as written:
        os.fsync(written.fileno())


def _tensors(folder: Path, weights: WeightFiles) -> dict[str, Tensor]:
    """All tensors, each from one file and, where there is an index, from the file that it names."""
    found: dict[str, Tensor] = {}
    homes: dict[str, str] = {}
    for file in weights.files:
        for name, tensor in _read(file).items():
            if name in found:
                raise ConfigError(f"{folder}: got {name} in {homes[name]} and in {file.name}, expected it in one file")
            # A copy of its own: a pickle may hold two names of one tensor, and views into others.
            found[name] = tensor.detach().clone().contiguous()
            homes[name] = file.name
    if lost := {name: file for name, file in weights.listed.items() if homes.get(name) != file}:
        raise ConfigError(f"{folder}: got files without {lost}, expected what the index lists; download it again")
    return found


def _read(file: Path) -> Mapping[str, Tensor]:
    return _unpickled(file) if file.suffix == ".bin" else _loaded(file)


def _loaded(file: Path) -> Mapping[str, Tensor]:
    try:
        file.open("rb").close()  # safetensors says "no such file" of one that it may not read
        return dict(load_file(file))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file}: got {error}, expected a safetensors file") from error


def _unpickled(file: Path) -> Mapping[str, Tensor]:
    expected = "expected a dictionary of tensors by name, as torch.save writes a state_dict"
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no one type for what it does not load
        raise ConfigError(f"{file}: got {' '.join(str(error).split())[:300]}, {expected}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{file}: got a {type(loaded).__name__}, {expected}")
    others = [f"{type(value).__name__} for {name!r}" for name, value in loaded.items() if not _is_tensor(name, value)]
    if others:
        raise ConfigError(f"{file}: got {', '.join(others[:3])}, {expected}")
    return loaded


def _is_tensor(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, Tensor) and value.layout is torch.strided
