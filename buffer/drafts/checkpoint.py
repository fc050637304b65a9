"""Finds the files of a model in Hugging Face's layout, as SGLang's loader does, and downloads none."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from ..board.weights_file import WEIGHTS_FILE
from ..errors import ConfigError

CONFIG_FILE = "config.json"
PICKLE_FILE = "pytorch_model.bin"

#: Where Hugging Face's tools write which file holds which tensor.
_INDEX = ".index.json"


def local_folder(name: str | Path, revision: str | None = None, download_dir: str | Path | None = None) -> Path:
    """The folder `name`, or the local copy of the Hugging Face id `name` (`org/model`, or `org/model@revision`).

    A folder wins over an id, as in SGLang. `revision` goes with an id without one; `download_dir` is where SGLang was
    told to download to, else the usual cache is searched. ConfigError, with the command to run, when there is neither.
    """
    if Path(name).is_dir():
        return Path(name)
    repository, _, own_revision = str(name).partition("@")
    revision = own_revision or revision
    try:
        found = snapshot_download(repository, revision=revision, cache_dir=download_dir, local_files_only=True)
    except HFValidationError as error:
        raise ConfigError(f"{name}: got no such folder, expected one or a Hugging Face id like org/model") from error
    except LocalEntryNotFoundError as error:
        options = f" --revision {revision}" * bool(revision) + f" --cache-dir {download_dir}" * bool(download_dir)
        raise ConfigError(
            f"{name}: got neither a folder nor a copy in the Hugging Face cache of this machine, expected one of them; "
            f"if it is a Hugging Face id, run `hf download {repository}{options}`"
        ) from error
    return Path(found)


def config_of(folder: Path) -> dict[str, Any]:
    """The table in a model's config.json; an empty one where there is none, or no such file can be read."""
    return _table(folder / CONFIG_FILE)


def architecture_of(config: Path) -> str:
    """The first of `architectures` in a config.json; empty where there is none, or no such file can be read."""
    named = _table(config).get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _table(file: Path) -> dict[str, Any]:
    try:
        source = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return source if isinstance(source, dict) else {}


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The files of one model, in the order of their names."""

    files: tuple[Path, ...]
    listed: Mapping[str, str]  # tensor -> name of its file, by the index; empty without one


def weight_files(folder: Path) -> WeightFiles:
    """The files that SGLang would load from `folder`: safetensors, else pickles; an index says which of them.

    ConfigError when there are none, or when an index names a file that is not there.
    """
    for single, pattern in ((WEIGHTS_FILE, "*.safetensors"), (PICKLE_FILE, PICKLE_FILE)):
        index = index_of(folder, single)
        if index is not None:
            listed = read_index(index)
            return WeightFiles(tuple(sorted({shard_file(index, name, listed) for name in listed})), listed)
        if found := tuple(sorted(folder.glob(pattern))):
            return WeightFiles(found, {})
    got = sorted(path.name for path in folder.iterdir())
    raise ConfigError(f"{folder}: got {got}, expected {WEIGHTS_FILE}, shards with an index, or {PICKLE_FILE}")


def index_of(folder: Path, single: str) -> Path | None:
    """The index of the shards of what would be the file `single`; None when `folder` has none."""
    index = folder / f"{single}{_INDEX}"
    return index if index.exists() else None


def read_index(index: Path) -> Mapping[str, str]:
    """Which file holds which tensor, by name. ConfigError when `index` is no such list."""
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        wrong = {name: file for name, file in listed.items() if not isinstance(file, str)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{index}: got {error!r}, expected JSON with a weight_map of tensor name to file") from error
    if wrong:
        raise ConfigError(f"{index}: got {wrong}, expected the name of a file for each tensor")
    return dict(listed)


def shard_file(index: Path, tensor: str, listed: Mapping[str, str]) -> Path:
    """The file that holds `tensor` by what `index` lists. ConfigError when it lists none that is beside it."""
    name = listed.get(tensor)
    # A name with a folder in it could point anywhere.
    if name is None or Path(name).name != name or not (index.parent / name).is_file():
        raise ConfigError(f"{index}: got {name!r} for {tensor}, expected a file in {index.parent}; download it again")
    return index.parent / name
