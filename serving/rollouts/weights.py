"""The trainer's tensors on their way to a server: as a safetensors file both sides see, or in requests. Knows torch."""

import base64
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ...buffer.board.weights_file import WEIGHTS_FILE
from ...buffer.errors import ConfigError

NamedTensors = Iterable[tuple[str, Tensor]]


def write_folder(named: NamedTensors, folder: Path) -> str:
    """Write the tensors, in their own dtypes, as the one weights file of `folder`; return its absolute path.

    The file is replaced in one step. Disk errors are raised as OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{WEIGHTS_FILE}.partial"
    save_file(dict(_on_host(named)), partial, {"format": "pt"})
    partial.replace(folder / WEIGHTS_FILE)
    return str(folder.absolute())


def buckets(named: NamedTensors, bucket_bytes: int) -> Iterator[tuple[str, bool]]:
    """Yield the tensors as texts for RolloutServer.load_bucket, and whether each is the last one.

    A bucket is complete once it holds `bucket_bytes`, so one tensor may make it larger.
    """
    waiting = ""
    bucket = []
    size = 0
    for name, tensor in _on_host(named):
        bucket.append((name, tensor))
        size += tensor.nbytes
        if size >= bucket_bytes:
            if waiting:
                yield waiting, False
            waiting = _packed(bucket)
            bucket = []
            size = 0
    if bucket and waiting:
        yield waiting, False
    yield (_packed(bucket) if bucket else waiting), True


def _packed(bucket: list[tuple[str, Tensor]]) -> str:
    """A pickle, which is what SGLang takes: its server reads it with an unpickler that knows tensors alone."""
    return base64.b64encode(pickle.dumps(bucket)).decode()


def _on_host(named: NamedTensors) -> Iterator[tuple[str, Tensor]]:
    """Copies in host memory: tensors that share storage, as tied embeddings do, could not be written otherwise."""
    count = 0
    for count, (name, tensor) in enumerate(named, start=1):  # noqa: B007 - asked for below
        yield name, tensor.detach().to("cpu", copy=True).contiguous()
    if not count:
        raise ConfigError("weights: got no tensor, expected those of the target by name")
