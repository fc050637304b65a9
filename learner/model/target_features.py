"""The target's hidden states at tokens that were served: what SGLang captures for a draft, computed here instead.

One trace goes through the target at a time, so that its states depend on its own tokens alone: beside other traces, in
a padded batch, every state would differ by the rounding of another reduction, and a learning round could not be fitted
again to the same weights.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from ...buffer.errors import ConfigError
from ...buffer.trace import DraftTrace, FeatureDtype
from .draft_io import target_config
from .eagle3_config import Eagle3Config

_KINDS: Mapping[torch.dtype, FeatureDtype] = {
    torch.float32: FeatureDtype.FLOAT32,
    torch.float16: FeatureDtype.FLOAT16,
    torch.bfloat16: FeatureDtype.BFLOAT16,
}


class TargetFeatures:
    """The target in `folder`, as a source of the features that one draft reads.

    Its weights are loaded by `load`, or on first use.
    """

    def __init__(self, folder: Path, draft: Eagle3Config, device: torch.device, part_tokens: int) -> None:
        """`part_tokens` go through the target at once; a longer trace goes in parts, over a cache of keys and values.

        Reads the target's config alone. ConfigError when the target has no such layers, or another hidden size.
        """
        self._folder, self._device, self._part_tokens = folder, device, part_tokens
        self._layers = captured_layers(draft, target_config(folder))
        self._loaded: nn.Module | None = None

    def load(self) -> None:
        """Bring the weights onto the device unless they are there. ConfigError when transformers cannot load them."""
        self._decoder()

    def filled(self, trace: DraftTrace) -> DraftTrace:
        """`trace` with a feature row at every token, computed with the weights on disk. Never `replay_exact`.

        The trace has its whole prefix and ids of the target's vocabulary. Blocks on the disk the first time, then on
        the device. Equal bit by bit whenever it is computed on the same machine; ConfigError when transformers cannot
        load the target.
        """
        read_T = np.concatenate([trace.prefix, trace.tokens]).astype(np.int64)
        rows_TD, kind = _on_host(self._states(torch.from_numpy(read_T))[len(trace.prefix) :])
        return replace(trace, features=rows_TD, feature_dtype=kind, replay_exact=False)

    @torch.inference_mode()
    def _states(self, ids_T: Tensor) -> Tensor:
        """What the captured layers read at every token, side by side, [T, D] on the device."""
        decoder = self._decoder()
        seen: dict[int, list[Tensor]] = {layer: [] for layer in self._layers}
        read = ((decoder.get_submodule(f"layers.{layer}"), partial(_keep, states)) for layer, states in seen.items())
        hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer, keep in read]
        try:
            self._read(decoder, ids_T)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([torch.cat(seen[layer]) for layer in self._layers], dim=-1)

    def _read(self, decoder: nn.Module, ids_T: Tensor) -> None:
        parts, past = torch.split(ids_T, self._part_tokens), None
        for part in parts:
            is_cached = len(parts) > 1
            out = decoder(part[None].to(self._device), past_key_values=past, use_cache=is_cached)
            past = out.past_key_values if is_cached else None

    def _decoder(self) -> nn.Module:
        if self._loaded is None:
            self._loaded = _load(self._folder).to(self._device)
        return self._loaded


def captured_layers(draft: Eagle3Config, target: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers of the target before which SGLang captures the hidden states for `draft`, in the order of a feature row.

    As SGLang's set_eagle3_layers_to_capture: an id of the draft's config means the output of that layer, which the next
    one reads. ConfigError when they are not layers of `target`, a target's config, or not of the draft's width.
    """
    count, hidden = target["num_hidden_layers"], target["hidden_size"]
    layers = (2, count // 2, count - 3) if draft.layer_ids is None else tuple(at + 1 for at in draft.layer_ids)
    if len(layers) != draft.feature_layers or hidden != draft.hidden_size:
        raise ConfigError(
            f"features of the target: got {len(layers)} layers of width {hidden}, expected {draft.feature_layers} of "
            f"width {draft.hidden_size}, as the draft reads them"
        )
    if not all(0 <= layer < count for layer in layers):
        raise ConfigError(f"features of the target: got what layers {layers} read, expected layers 0..{count - 1}")
    return layers


def _load(folder: Path) -> nn.Module:
    """The target without its head, in the dtype of its config, on the CPU."""
    disable_progress_bar()  # a learner logs; it draws no bars
    try:
        whole = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
        decoder: nn.Module = whole.get_decoder().eval()
        decoder.get_submodule("layers")
    except Exception as error:  # transformers raises many types for a folder that it cannot load: all are one
        raise ConfigError(f"{folder}: got {error}, expected a target that transformers loads, with layers") from error
    return decoder


def _keep(seen: list[Tensor], _layer: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    states_1TH: Tensor = given[0] if given else named["hidden_states"]
    seen.append(states_1TH[0])


def _on_host(rows_TD: Tensor) -> tuple[npt.NDArray[Any], FeatureDtype]:
    """As a trace holds them: bfloat16 as its bits."""
    kind = _KINDS.get(rows_TD.dtype)
    if kind is None:
        raise ConfigError(f"features of the target: got {rows_TD.dtype}, expected one of {[*_KINDS]}")
    host_TD = rows_TD.cpu().contiguous()
    return (host_TD.view(torch.uint16) if kind is FeatureDtype.BFLOAT16 else host_TD).numpy(), kind
