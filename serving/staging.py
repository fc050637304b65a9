"""Loads and checks a weights file beside the live draft, so that a swap only copies what is known to fit."""

import hashlib
import json
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..buffer.errors import WeightsRefused

#: EAGLE-3 shares this parameter with the target: loading it would overwrite the target.
SHARED_WITH_TARGET = "embed_tokens"
#: The vocabulary map. SGLang's workers and graphs hold their own copy, so it is fixed for a server's life.
VOCABULARY_MAP = "d2t"
#: Written by trainers, skipped by SGLang's loader.
UNUSED = frozenset({"t2d"})
FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """What every later weights file must look like: the served draft's own file."""

    shapes: Mapping[str, tuple[int, ...]]  # by parameter name, vocabulary map and shared parameters left out
    vocabulary_map: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class StagedDraft:
    """Checked weights in the server's dtype on its device; `ready` is a CUDA event, None on a CPU."""

    tensors: list[tuple[str, torch.Tensor]]
    ready: Any
    seconds: float


def read_layout(folder: Path) -> DraftLayout:
    """Layout of the draft in `folder` from its safetensors headers; OSError when there is none to read."""
    shapes: dict[str, tuple[int, ...]] = {}
    vocabulary_map = None
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - safe_open is no mapping
                if name == VOCABULARY_MAP:
                    vocabulary_map = weights.get_tensor(name)
                elif name not in UNUSED and SHARED_WITH_TARGET not in name:
                    shapes[name] = tuple(weights.get_slice(name).get_shape())
    if not shapes:
        raise FileNotFoundError(f"no safetensors draft in {folder}")
    return DraftLayout(shapes, vocabulary_map)


def sha256_of(file: Path) -> str:
    """Digest of a whole file, lower-case hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def stage(file: Path, sha256: str, layout: DraftLayout, device: torch.device, dtype: torch.dtype) -> StagedDraft:
    """Check `file` and load it to `device` in `dtype`. Blocks on the disk; touches no live tensor.

    Raises WeightsRefused for an absent, tampered, truncated or non-safetensors file, an unknown or missing name, a
    parameter shared with the target, another vocabulary map, a wrong shape or dtype, and values that are not finite.
    `sha256` is empty for the file the server was started with: a parameter shared with the target is passed over.
    """
    began = time.perf_counter()
    try:
        _check_digest(file, sha256)
        with safe_open(file, "pt") as weights:
            names = set(weights.keys())
            if sha256:
                _check_shared(names)
            _check_names(names, layout)
            _check_vocabulary_map(weights, names, layout)
            tensors = [(n, _load(weights, n, layout.shapes[n], device, dtype)) for n in sorted(layout.shapes)]
    except (OSError, SafetensorError, struct.error, json.JSONDecodeError) as fault:
        raise WeightsRefused(f"{file.name}: not a readable safetensors file: {fault}") from fault
    return StagedDraft(tensors, _record_event(device), time.perf_counter() - began)


def _check_digest(file: Path, sha256: str) -> None:
    got = sha256_of(file)
    if sha256 and got != sha256:
        raise WeightsRefused(f"{file.name}: got sha256 {got[:12]}…, expected {sha256[:12]}… (the file was changed)")


def _check_shared(names: set[str]) -> None:
    shared = sorted(name for name in names if SHARED_WITH_TARGET in name)
    if shared:
        raise WeightsRefused(f"{shared[0]}: belongs to the target and must not be shipped with a draft")


def _check_names(names: set[str], layout: DraftLayout) -> None:
    names = {name for name in names if SHARED_WITH_TARGET not in name}
    known = set(layout.shapes) | {VOCABULARY_MAP} | UNUSED
    unknown, missing = sorted(names - known), sorted(set(layout.shapes) - names)
    if unknown or missing:
        raise WeightsRefused(
            f"names differ from the served draft: got unknown {unknown[:3]}, expected also {missing[:3]}"
        )


def _check_vocabulary_map(weights: Any, names: set[str], layout: DraftLayout) -> None:
    if VOCABULARY_MAP not in names:
        return  # the served map stays, which is what is wanted
    offered = weights.get_tensor(VOCABULARY_MAP)
    if layout.vocabulary_map is None or not torch.equal(offered, layout.vocabulary_map):
        raise WeightsRefused(
            f"{VOCABULARY_MAP}: differs from the served draft's vocabulary map; restart the server for it"
        )


def _load(weights: Any, name: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    tensor: torch.Tensor = weights.get_tensor(name)
    if tuple(tensor.shape) != shape:
        raise WeightsRefused(f"{name}: got shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.dtype not in FLOATS:
        raise WeightsRefused(f"{name}: got dtype {tensor.dtype}, expected a floating one")
    # Cast while staging, so that the commit is a plain copy; checked behind the cast, which may overflow.
    cast = tensor.to(device=device, dtype=dtype, copy=True)
    if not bool(torch.isfinite(cast).all()):
        raise WeightsRefused(f"{name}: holds values that are not finite in {dtype}")
    return cast


def _record_event(device: torch.device) -> Any:
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
