"""Weights files in the layout that SGLang's llama_eagle3.py, dflash.py, mimo_mtp.py and the like read.

SGLang silently skips tensor names it does not know, so names are checked here, in both directions. The
target's embedding is never part of a draft's file: the server shares it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ...buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from ...buffer.drafts.block_draft import check_folder, is_block_draft
from ...buffer.drafts.checkpoint import CONFIG_FILE, architecture_of, index_of, read_index, shard_file
from ...buffer.drafts.mtp_layer import DEEPSEEK, GLM4_MOE, MIMO
from ...buffer.errors import ConfigError
from .dflash import DflashDraft
from .dflash_config import DflashConfig
from .draft import Draft
from .draft_config import DraftConfig, check_sizes, check_tables
from .eagle3 import Eagle3Draft
from .eagle3_config import Eagle3Config
from .mimo import MimoConfig, MimoDraft
from .rope import rope_from

_EMBEDDING = "model.embed_tokens.weight"
_INIT_STD = 0.02  # Llama's initializer_range
#: Of an untrained draft's logits over its V tokens. Logits that deviate by s cost ln V + s^2 / 2 nats where they say
#: nothing: those under SmolLM2's own norm deviate by 6.2, and began at 31.9 nats.
_FIRST_LOGIT_DEVIATION = 0.25
_DTYPES = MappingProxyType({"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16})


def load_draft(folder: Path, embedding: Tensor, target_head: Callable[[], Tensor] | None = None) -> Draft:
    """Read a draft folder into float32 on the CPU; the names and dtypes of its file are kept for save_draft.

    Its config says of which kind it is. Of EAGLE-3, takes the layer as `midlayer.` or `layers.0.`, with or without
    `model.` before it, and the norms of an older EAGLE-3.1 by their names. `target_head` is called for a draft that
    shares the target's head. ConfigError when a file is absent or a tensor is missing, unknown, of the wrong shape,
    or holds a value that is not finite.
    """
    kind = _MTP_DRAFTS.get(architecture_of(folder / CONFIG_FILE))
    if kind is not None:
        made = kind()
        tensors = _read(folder / WEIGHTS_FILE)
        config = made.config.from_json(folder / CONFIG_FILE)
        draft: Draft = made.draft(config, embedding, None if target_head is None else target_head())
    elif is_block_draft(folder / CONFIG_FILE):
        check_folder(folder)
        tensors = _read(folder / WEIGHTS_FILE)
        block = DflashConfig.from_json(folder / CONFIG_FILE)
        draft = DflashDraft(block, embedding, None if target_head is None else target_head())
    else:
        draft, tensors = _eagle3(folder, embedding, target_head)
    own = {draft.parameter_of(name): tensor.float() for name, tensor in tensors.items()}
    expected = draft.file_tensors()
    _check_tensors(folder / WEIGHTS_FILE, own, expected)
    with torch.no_grad():
        for name, tensor in own.items():
            expected[name].copy_(tensor)
    draft.file_dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    return draft


class _Kind(NamedTuple):
    """How drafts of one kind are made."""

    config: type[DraftConfig]
    draft: Callable[[Any, Tensor, Tensor | None], Draft]


def _glm4_moe() -> _Kind:
    # transformers' models are seconds of imports, and most drafts need none.
    from .glm4_moe import GlmConfig, GlmDraft  # noqa: PLC0415

    return _Kind(GlmConfig, GlmDraft)


def _deepseek() -> _Kind:
    from .deepseek import DeepseekConfig, DeepseekDraft  # noqa: PLC0415 - as above

    return _Kind(DeepseekConfig, DeepseekDraft)


#: Of the architectures of mtp_layer.
_MTP_DRAFTS: Mapping[str, Callable[[], _Kind]] = {
    MIMO: lambda: _Kind(MimoConfig, MimoDraft),
    GLM4_MOE: _glm4_moe,
    DEEPSEEK: _deepseek,
}


def _eagle3(
    folder: Path, embedding: Tensor, target_head: Callable[[], Tensor] | None
) -> tuple[Eagle3Draft, dict[str, Tensor]]:
    """A draft of the folder's config, and the tensors of its parameters by the names of the file."""
    config = Eagle3Config.from_json(folder / CONFIG_FILE)
    tensors = _read(folder / WEIGHTS_FILE)
    shift = tensors.pop("d2t", None)  # d2t stores target id minus draft id
    if shift is not None and (shift.dim() != 1 or shift.is_floating_point() or shift.is_complex()):
        got = f"{shift.dtype} of shape {tuple(shift.shape)}"
        raise ConfigError(f"{folder / WEIGHTS_FILE}: d2t: got {got}, expected one whole number per draft token")
    tensors = {name: tensor for name, tensor in tensors.items() if not _is_the_targets(name, config)}
    head = target_head() if config.shares_head and target_head is not None else None
    ids_V = None if shift is None else shift.long() + torch.arange(len(shift))
    return Eagle3Draft(config, embedding, ids_V, head), tensors


def save_draft(draft: Draft, folder: Path) -> str:
    """Write model.safetensors and config.json into `folder`, made if absent; return the sha256 of the weights file.

    Names and dtypes are those of the file the draft was loaded from, else SGLang's and float32; d2t (int64)
    and t2d (bool) are there unless draft and target have one vocabulary and the file had none. Equal weights give
    equal bytes. Not atomic: publish by renaming the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held = draft.file_tensors()
    dtypes = draft.file_dtypes or dict.fromkeys(held, torch.float32)
    tensors = {name: _exported(held[draft.parameter_of(name)], dtype) for name, dtype in dtypes.items()}
    if draft.has_vocabulary_map:
        ids_V = draft.draft_to_target_V.cpu()
        tensors["d2t"] = ids_V - torch.arange(len(ids_V))
        tensors["t2d"] = draft.target_to_draft_W.cpu() >= 0
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    draft.config.to_json(folder / CONFIG_FILE)
    return sha256_of(folder / WEIGHTS_FILE)


def load_target_embedding(target_folder: Path) -> Tensor:
    """The target's token embedding, float32 [vocab, hidden]; ConfigError when the folder has none."""
    return _target_tensor(target_folder, _EMBEDDING)


def load_target_head(target_folder: Path) -> Tensor:
    """The target's head, float32 [vocab, hidden], which is its embedding where they are tied; ConfigError without."""
    target = target_config(target_folder)
    return _target_tensor(target_folder, _EMBEDDING if target.get("tie_word_embeddings") else "lm_head.weight")


def random_draft(
    target_folder: Path,
    out_folder: Path,
    seed: int,
    *,
    draft_ids: Sequence[int] | None = None,
    layer_ids: Sequence[int] | None = None,
    dtype: str = "float32",
) -> str:
    """Write an untrained draft for a Llama target into `out_folder`; return the sha256 of its weights file.

    The head starts as the target's, the last norm as a share of the target's by which a first guess is nearly uniform,
    and the rest is random by `seed`. `draft_ids` are the target ids the draft may propose (all by default). `layer_ids`
    i mean the output of target layer i; the default is SGLang's own choice where that names three
    different layers. ConfigError when the target has too few layers.
    """
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype: got {dtype!r}, expected one of {sorted(_DTYPES)}")
    target = target_config(target_folder)
    check_sizes(target_folder / CONFIG_FILE, target)
    ids_V = torch.arange(target["vocab_size"]) if draft_ids is None else torch.tensor(sorted(draft_ids))
    source = _draft_source(target, len(ids_V), layer_ids or _default_layers(target["num_hidden_layers"]), dtype)
    out_folder.mkdir(parents=True, exist_ok=True)
    (out_folder / CONFIG_FILE).write_text(json.dumps(source), encoding="utf-8")
    config = Eagle3Config.from_json(out_folder / CONFIG_FILE)
    draft = Eagle3Draft(config, load_target_embedding(target_folder), ids_V)
    _initialise(draft, target_folder, seed)
    draft.file_dtypes = dict.fromkeys(dict(draft.named_parameters()), _DTYPES[dtype])
    return save_draft(draft, out_folder)


@torch.no_grad()
def _initialise(draft: Eagle3Draft, target_folder: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in draft.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=_INIT_STD, generator=generator)
    draft.lm_head.weight.copy_(load_target_head(target_folder)[draft.draft_to_target_V])
    draft.norm.weight.copy_(_target_tensor(target_folder, "model.norm.weight"))
    # Of a random direction of length sqrt(H), which is what the norm makes of any hidden state.
    deviation = (draft.lm_head.weight * draft.norm.weight).square().sum(1).mean().sqrt()
    draft.norm.weight.mul_(_FIRST_LOGIT_DEVIATION / deviation)


#: Settings of a target that its draft takes over. Others are about weights, experts and layers that it does not have.
_INHERITED = (
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


def _draft_source(target: Mapping[str, Any], words: int, layer_ids: Sequence[int], dtype: str) -> dict[str, Any]:
    """config.json of a draft: the target's own sizes, with what makes it an EAGLE-3 head."""
    eagle = {"eagle_aux_hidden_state_layer_ids": list(layer_ids), "use_aux_hidden_state": True}
    # A draft layer has no biases, and its head is its own.
    own = {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "num_hidden_layers": 1}
    named = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu"}
    inherited = {name: target[name] for name in _INHERITED if target.get(name) is not None}
    sized = {**_heads(target), "draft_vocab_size": words, "torch_dtype": dtype}
    return {**inherited, **own, **named, **sized, "rope_parameters": _rope(target), "eagle_config": eagle}


def _heads(target: Mapping[str, Any]) -> dict[str, int]:
    heads = target["num_attention_heads"]
    if "kv_lora_rank" in target:  # latent attention: its heads are not those of a Llama layer
        heads = target["hidden_size"] // 128
        return {"head_dim": 128, "num_attention_heads": heads, "num_key_value_heads": heads}
    given = {name: target[name] for name in ("head_dim", "num_key_value_heads") if target.get(name)}
    return {"num_attention_heads": heads, **given}


def _rope(target: Mapping[str, Any]) -> dict[str, Any]:
    """The target's, where a draft can have it; any other rope serves an untrained draft as well."""
    try:
        return rope_from(target).settings()
    except (ConfigError, KeyError):
        given = {**target, **(target.get("rope_scaling") or {}), **(target.get("rope_parameters") or {})}
        return rope_from({"rope_theta": given.get("rope_theta")}).settings()


def _default_layers(layers: int) -> list[int]:
    chosen = [1, layers // 2 - 1, layers - 4] if layers >= 8 else [0, (layers - 2) // 2, layers - 2]
    if len(set(chosen)) < 3:
        raise ConfigError(f"target: got {layers} layers, expected at least 4; pass layer_ids for a smaller one")
    return chosen


def _is_the_targets(name: str, config: Eagle3Config) -> bool:
    """Return whether the server takes this tensor from the target, or needs none, whatever the file holds."""
    return name == "t2d" or "embed_tokens" in name or (config.shares_head and "lm_head" in name)


def _exported(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    return parameter.detach().to("cpu", dtype, copy=True).contiguous()


def _check_tensors(path: Path, got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    missing = expected.keys() - got.keys()
    unknown = got.keys() - expected.keys()
    if missing or unknown:
        raise ConfigError(f"{path}: missing {sorted(missing)}, unknown {sorted(unknown)}, expected {sorted(expected)}")
    for name, tensor in got.items():
        if tensor.shape != expected[name].shape:
            raise ConfigError(f"{path}: {name} is {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}")
        if not bool(torch.isfinite(tensor).all()):
            raise ConfigError(f"{path}: got values in {name} that are no finite numbers, expected a draft without any")


def _read(path: Path) -> dict[str, Tensor]:
    try:
        path.open("rb").close()  # safetensors says "no such file" of one that it may not read
        return dict(load_file(path))
    except Exception as error:  # safetensors raises its own type and OSError: every unreadable file is a ConfigError
        raise ConfigError(f"{path}: got {error}, expected a safetensors file") from error


def target_config(folder: Path) -> dict[str, Any]:
    """The target's config.json, with what it says of its text model outside; ConfigError when it cannot be read."""
    try:
        config: dict[str, Any] = json.loads(_text(folder / CONFIG_FILE))
        check_tables(config)
    except ValueError as error:
        raise ConfigError(f"{folder / CONFIG_FILE}: got {error}, expected the config.json of a target") from error
    except ConfigError as error:
        raise ConfigError(f"{folder / CONFIG_FILE}: {error}") from error
    return {**config, **(config.get("text_config") or {})}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: got {error}, expected a readable file") from error


def _target_tensor(folder: Path, name: str) -> Tensor:
    """One tensor of the target without reading the rest, whether the weights are in one file or in shards."""
    index = index_of(folder, WEIGHTS_FILE)
    file = folder / WEIGHTS_FILE if index is None else shard_file(index, name, read_index(index))
    try:
        file.open("rb").close()  # as above
        with safe_open(file, framework="pt") as weights:
            tensor: Tensor = weights.get_tensor(name)
    except Exception as error:  # as above: an absent file, a broken one and a missing tensor are alike
        raise ConfigError(f"{file}: got {error}, expected a tensor named {name}") from error
    if tensor.dtype not in _DTYPES.values():  # codes, of which the values are elsewhere
        raise ConfigError(
            f"{file}: {name}: got {tensor.dtype}, expected one of {sorted(_DTYPES)}; name the checkpoint that this "
            "target was quantised from"
        )
    return tensor.float()
