"""Loads and checks a weights file while the live draft serves, so that a swap only copies what is known to fit.

What is loaded stays in host memory: a device that SGLang has filled has no room for drafts that do not draft.

Staging runs beside the scheduler's thread, and whoever takes Python's lock from that thread delays tokens. So a file is
read in one call and digested in one, both of which leave the lock alone, and tensors are views of what was read.
safetensors' own loader copies every tensor while it holds the lock.
"""

import hashlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors import safe_open

from ...buffer.board.weights_file import WEIGHTS_FILE
from ...buffer.errors import WeightsRefused
from .weights_in_memory import WeightsInMemory

#: EAGLE-3 shares this parameter with the target: loading it would overwrite the target.
SHARED_WITH_TARGET = "embed_tokens"
#: So it does with this one, where the draft's config has no vocabulary size of its own.
HEAD = "lm_head"
#: The vocabulary map. SGLang's workers and graphs hold their own copy, so it is fixed for a server's life.
VOCABULARY_MAP = "d2t"
#: Written by trainers, skipped by SGLang's loader.
UNUSED = frozenset({"t2d"})
#: Drafts kept in host memory, the live one included.
KEPT_DRAFTS = 2
FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """What every later weights file must look like, by the served draft's own file."""

    shapes: Mapping[str, tuple[int, ...]]  # by parameter name, vocabulary map and shared parameters left out
    vocabulary_map: torch.Tensor | None
    shared: Mapping[str, str] = field(default_factory=dict)  # parameter of the target in the file -> its fingerprint
    shares_head: bool = False

    def is_targets(self, name: str) -> bool:
        """Whether the server has this parameter from the target."""
        return SHARED_WITH_TARGET in name or (self.shares_head and HEAD in name)


@dataclass(frozen=True, slots=True)
class StagedDraft:
    """Checked weights in the dtypes that they are served in, in host memory."""

    tensors: list[tuple[str, torch.Tensor]]
    seconds: float  # that staging took
    sha256: str = ""  # of the file; empty: unknown


@dataclass(slots=True)
class Staging:
    """A staging in progress: once `done`, either the draft or why there is none."""

    done: threading.Event = field(default_factory=threading.Event)
    draft: StagedDraft | None = None
    refusal: str = ""
    is_local: bool = False  # for lack of a disk or memory, which another host may have

    def refuse(self, fault: Exception) -> None:
        """Note why there is no draft."""
        is_refusal = isinstance(fault, WeightsRefused)
        self.is_local = not is_refusal or isinstance(fault.__cause__, OSError)
        self.refusal = str(fault) if is_refusal else f"{type(fault).__name__}: {fault}"

    def check(self) -> None:
        """Raise WeightsRefused when the file must not enter the server, OSError when this host cannot load it."""
        if self.refusal:
            raise OSError(self.refusal) if self.is_local else WeightsRefused(self.refusal)


def read_layout(folder: Path, *, shares_head: bool = False) -> DraftLayout:
    """Layout of the draft in `folder` from its file's header; a parameter shared with the target is read and digested.

    `shares_head` says whether the server gave the draft the target's head. Blocks on the disk. OSError when there is
    no draft to read.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    shared: dict[str, str] = {}
    layout = DraftLayout(shapes, None, shared, shares_head)
    with safe_open(folder / WEIGHTS_FILE, "pt") as weights:
        names = set(weights.keys())
        for name in sorted(names - UNUSED - {VOCABULARY_MAP}):
            if layout.is_targets(name):
                shared[name] = _fingerprint(weights.get_tensor(name))
            else:
                shapes[name] = tuple(weights.get_slice(name).get_shape())
        vocabulary_map = weights.get_tensor(VOCABULARY_MAP) if VOCABULARY_MAP in names else None
    return replace(layout, vocabulary_map=vocabulary_map)


def stage(
    file: Path,
    sha256: str,
    layout: DraftLayout,
    dtype: torch.dtype,
    *,
    is_pinned: bool,
    in_float32: Collection[str] = (),
) -> StagedDraft:
    """Check `file` and load it in `dtype`. Blocks on the disk; touches no live tensor and allocates on no device.

    Pinned memory is page-locked, for copies to a GPU that do not block. `in_float32`: what `short_name` makes of the
    parameters that the model keeps in float32 beside others of `dtype`.

    Raises WeightsRefused for an absent, tampered, truncated or non-safetensors file, an unknown or missing name,
    another vocabulary map, a wrong shape or dtype, and values that are not finite. A parameter shared with the target
    is never loaded: it is ignored when it equals, bit by bit, the one in the file the server was started with, so that
    this file can come back; any other is refused. An empty `sha256` is not compared.
    """
    began = time.perf_counter()
    try:
        weights = WeightsInMemory.read(file, dtype, is_pinned=is_pinned)
        _check_bytes(file, weights, sha256)
        _check_shared(weights, layout)
        _check_names(set(weights.entries), layout)
        _check_vocabulary_map(weights, layout)
        dtypes = {name: torch.float32 if short_name(name) in in_float32 else dtype for name in sorted(layout.shapes)}
        tensors = [(n, _load(weights, n, layout.shapes[n], kept, is_pinned=is_pinned)) for n, kept in dtypes.items()]
    except OSError as fault:
        raise WeightsRefused(f"{file.name}: not a readable safetensors file: {fault}") from fault
    return StagedDraft(tensors, time.perf_counter() - began, sha256)


def short_name(name: str) -> str:
    """The last two parts of a parameter's name, which are the same in a file and in the model that serves it."""
    return ".".join(name.split(".")[-2:])


def _check_bytes(file: Path, weights: WeightsInMemory, sha256: str) -> None:
    if sha256 and weights.sha256 != sha256:
        got = weights.sha256[:12]
        expected = sha256[:12]
        raise WeightsRefused(f"{file.name}: got sha256 {got}…, expected {expected}… (the file was changed)")
    if weights.fault:
        raise WeightsRefused(f"{file.name}: not a readable safetensors file: {weights.fault}")


def _check_shared(weights: WeightsInMemory, layout: DraftLayout) -> None:
    for name in sorted(filter(layout.is_targets, weights.entries)):
        expected = layout.shared.get(name, "none, as in the file the server was started with")
        got = _fingerprint(weights.tensor(name))
        if got != expected:
            raise WeightsRefused(
                f"{name}: belongs to the target and must not be shipped with a draft; got {got}, expected {expected}; "
                "write the file again without it: the server shares the target's own"
            )


def _fingerprint(tensor: torch.Tensor) -> str:
    """Dtype, shape and a digest of the bytes: equal for tensors that are equal bit by bit, and for no others."""
    digest = hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy().data).hexdigest()
    return f"{tensor.dtype} {tuple(tensor.shape)} sha256 {digest}"


def _check_names(names: set[str], layout: DraftLayout) -> None:
    names = {name for name in names if not layout.is_targets(name)}
    known = set(layout.shapes) | {VOCABULARY_MAP} | UNUSED
    unknown = sorted(names - known)
    missing = sorted(set(layout.shapes) - names)
    if unknown or missing:
        raise WeightsRefused(
            f"names differ from the served draft: got unknown {unknown[:3]}, expected also {missing[:3]}"
        )


def _check_vocabulary_map(weights: WeightsInMemory, layout: DraftLayout) -> None:
    if VOCABULARY_MAP not in weights.entries:
        return  # the served map stays, as it must
    offered = weights.tensor(VOCABULARY_MAP)
    if layout.vocabulary_map is None or not torch.equal(offered, layout.vocabulary_map):
        raise WeightsRefused(
            f"{VOCABULARY_MAP}: differs from the served draft's vocabulary map; restart the server for it"
        )


def _load(
    weights: WeightsInMemory, name: str, shape: tuple[int, ...], dtype: torch.dtype, *, is_pinned: bool
) -> torch.Tensor:
    tensor = weights.tensor(name)
    if tuple(tensor.shape) != shape:
        raise WeightsRefused(f"{name}: got shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.dtype not in FLOATS:
        raise WeightsRefused(f"{name}: got dtype {tensor.dtype}, expected a floating one")
    if tensor.dtype != dtype or (is_pinned and not tensor.is_pinned()):
        # Cast while staging, so that the commit is a plain copy; checked after the cast, which may overflow.
        tensor = torch.empty(shape, dtype=dtype, pin_memory=is_pinned).copy_(tensor)
    # The extremes of values with a NaN among them are NaN: one pass that needs no memory, unlike isfinite.
    if tensor.numel() and not all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor)):
        raise WeightsRefused(f"{name}: holds values that are not finite in {dtype}")
    return tensor


class KeptDrafts:
    """The drafts that drafted last, by version number; the same on every rank. For the scheduler thread."""

    def __init__(self) -> None:
        self._drafts: dict[int, StagedDraft] = {}  # oldest first

    def __iter__(self) -> Iterator[int]:
        """Version numbers, the oldest first."""
        return iter(self._drafts)

    @property
    def digests(self) -> list[str]:
        """Of their files; any thread."""
        return [draft.sha256 for draft in list(self._drafts.values())]

    def __getitem__(self, number: int) -> StagedDraft:
        return self._drafts[number]

    def find(self, number: int, sha256: str) -> StagedDraft | None:
        """The draft of this version, if it is kept; any thread. An empty digest, of either, is that of any file.

        A board that lost its data gives numbers again: the same number is the same weights only by their digest.
        """
        kept = self._drafts.get(number)
        return kept if kept is not None and ("" in {kept.sha256, sha256} or kept.sha256 == sha256) else None

    def keep(self, number: int, draft: StagedDraft) -> None:
        """Keep what drafts from now on, and let the oldest go."""
        self._drafts.pop(number, None)
        self._drafts[number] = draft
        while len(self._drafts) > KEPT_DRAFTS:
            del self._drafts[next(iter(self._drafts))]
