"""The target's hidden states at tokens that were served: what SGLang captures for a draft, computed here instead.

So is the token that the target would have committed at each place: by that it is known for another one.

One trace goes through the target at a time, so that its states depend on its own tokens alone: beside other traces, in
a padded batch, every state would differ by the rounding of another reduction, and a learning round could not be fitted
again to the same weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...buffer.errors import ConfigError
from ...buffer.stream.trace import DraftTrace, FeatureDtype, Int32s
from .dflash_config import DflashConfig
from .draft_config import DraftConfig
from .draft_io import target_config
from .eagle3_config import Eagle3Config
from .logits import positions_per_chunk

_KINDS: Mapping[torch.dtype, FeatureDtype] = {
    torch.float32: FeatureDtype.FLOAT32,
    torch.float16: FeatureDtype.FLOAT16,
    torch.bfloat16: FeatureDtype.BFLOAT16,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The target's own values at the tokens of one trace."""

    trace: DraftTrace  # with a feature row at every token; never `replay_exact`
    best_T: Int32s  # the token that it would have committed at each place after the context; -1 before


@dataclass(frozen=True, slots=True)
class _Target:
    decoder: nn.Module
    head_WH: Tensor


class TargetFeatures:
    """The target in `folder`, as a source of the features that one draft reads.

    Its weights are loaded by `load`, or on first use.
    """

    def __init__(self, folder: Path, draft: DraftConfig, device: torch.device, part_tokens: int) -> None:
        """`part_tokens` go through the target at once; a longer trace goes in parts, over a cache of keys and values.

        Reads the target's config alone. ConfigError when the target has no such layers, or another hidden size.
        """
        self._folder = folder
        self._device = device
        self._part_tokens = part_tokens
        self._layers = captured_layers(draft, target_config(folder))
        self._loaded: _Target | None = None

    def load(self) -> None:
        """Bring the weights onto the device unless they are there. ConfigError when transformers cannot load them."""
        self._target()

    @torch.inference_mode()
    def read(self, trace: DraftTrace) -> Reading:
        """Return what the target computes with the weights on disk, given all tokens of the request up to each.

        The trace has its whole prefix and ids of the target's vocabulary. Blocks on the disk the first time, then on
        the device. Equal bit by bit whenever it is computed on the same machine; ConfigError when transformers cannot
        load the target.
        """
        target = self._target()
        start = len(trace.prefix)
        ids_T = torch.from_numpy(np.concatenate([trace.prefix, trace.tokens]).astype(np.int64))
        states_TD, last_TH = self._states(target.decoder, ids_T)
        rows_TD, kind = _on_host(states_TD[start:])
        filled = replace(trace, features=rows_TD, feature_dtype=kind, replay_exact=False)
        best_T = np.full(len(trace.tokens), -1, np.int32)
        first = max(trace.context_len, 1)
        best_T[first:] = _best(last_TH[start + first - 1 : -1], target.head_WH).cpu().numpy()
        return Reading(filled, best_T)

    def _states(self, decoder: nn.Module, ids_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return what captured layers read at every token, side by side, [T, D], and what the head reads, [T, H]."""
        seen: dict[int, list[Tensor]] = {layer: [] for layer in self._layers}
        read = ((decoder.get_submodule(f"layers.{layer}"), partial(_keep, states)) for layer, states in seen.items())
        hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer, keep in read]
        try:
            last_TH = self._forward(decoder, ids_T)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([torch.cat(seen[layer]) for layer in self._layers], dim=-1), last_TH

    def _forward(self, decoder: nn.Module, ids_T: Tensor) -> Tensor:
        """Read all tokens, part after part; what the head reads, [T, H]."""
        parts = torch.split(ids_T, self._part_tokens)
        past = None
        last = list[Tensor]()
        for part in parts:
            is_cached = len(parts) > 1
            out = decoder(part[None].to(self._device), past_key_values=past, use_cache=is_cached)
            past = out.past_key_values if is_cached else None
            last.append(out.last_hidden_state[0])
        return torch.cat(last)

    def _target(self) -> _Target:
        if self._loaded is None:
            self._loaded = _load(self._folder, self._device)
        return self._loaded


def captured_layers(draft: DraftConfig, target: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers of the target before which SGLang captures the hidden states for `draft`, in the order of a feature row.

    As SGLang's set_eagle3_layers_to_capture and set_dflash_layers_to_capture: an id of the draft's config means the
    output of that layer, which the next one reads. Its forward captures each of them once, from the first layer to the
    last, in whatever order they are named. ConfigError when they are not layers of `target`, a target's config, or not
    of the draft's width, and for an MTP layer.
    """
    if not isinstance(draft, Eagle3Config | DflashConfig):
        raise ConfigError(
            "features of the target: got an MTP layer, expected an EAGLE-3 or DFLASH draft; recompute nothing"
        )
    count = target["num_hidden_layers"]
    hidden = target["hidden_size"]
    named = (2, count // 2, count - 3) if draft.layer_ids is None else tuple(at + 1 for at in draft.layer_ids)
    layers = tuple(sorted(set(named)))
    expected = draft.feature_width // draft.hidden_size
    if len(layers) != expected or hidden != draft.hidden_size:
        raise ConfigError(
            f"features of the target: got {len(layers)} layers of width {hidden}, expected {expected} of "
            f"width {draft.hidden_size}, as the draft reads them"
        )
    if not all(0 <= layer < count for layer in layers):
        raise ConfigError(f"features of the target: got what layers {layers} read, expected layers 0..{count - 1}")
    return layers


def _load(folder: Path, device: torch.device) -> _Target:
    """The target in the dtype of its config, dense if it is quantised. ConfigError when transformers cannot load it."""
    # Seconds of imports, and most learners recompute nothing.
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

    disable_progress_bar()  # a learner logs; it draws no bars
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        quantised = getattr(config, "quantization_config", None)
        if quantised:  # packed weights may need kernels of a GPU; what cannot be dequantised does not heed this
            config.quantization_config = {**quantised, "dequantize": True}
        load = partial(AutoModelForCausalLM.from_pretrained, config=config, dtype="auto", local_files_only=True)
        whole, found = load(folder, output_loading_info=True)
        decoder: nn.Module = whole.get_decoder().eval()
        decoder.get_submodule("layers")
        head_WH: Tensor = whole.get_output_embeddings().weight
        others = {*found["unexpected_keys"], *found["missing_keys"]}
        unread = sorted(name for name in others if name.rpartition(".")[2].startswith("weight_"))
    except Exception as error:  # transformers raises many types for a folder that it cannot load: all are one
        raise ConfigError(f"{folder}: got {error}, expected a target that transformers loads, with layers") from error
    if unread:  # scales of the weights, without which they are others
        raise ConfigError(
            f"{folder}: got {len(unread)} tensors that transformers does not read, {unread[0]} among them, expected "
            "none; name the checkpoint that the target was quantised from"
        )
    return _Target(decoder.to(device), head_WH.detach().to(device))


def _best(last_NH: Tensor, head_WH: Tensor) -> Tensor:
    """The most likely tokens, int64[N]; logits live for a chunk at a time."""
    chunks = torch.split(last_NH, positions_per_chunk(len(head_WH)))
    return torch.cat([(chunk_NH @ head_WH.T).argmax(-1) for chunk_NH in chunks])


def _keep(seen: list[Tensor], _layer: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    states_1TH: Tensor = given[0] if given else named["hidden_states"]
    seen.append(states_1TH[0])


def _on_host(rows_TD: Tensor) -> tuple[npt.NDArray[Any], FeatureDtype]:
    """Return features as a trace holds them: bfloat16 as its bits."""
    kind = _KINDS.get(rows_TD.dtype)
    if kind is None:
        raise ConfigError(f"features of the target: got {rows_TD.dtype}, expected one of {[*_KINDS]}")
    host_TD = rows_TD.cpu().contiguous()
    return (host_TD.view(torch.uint16) if kind is FeatureDtype.BFLOAT16 else host_TD).numpy(), kind
