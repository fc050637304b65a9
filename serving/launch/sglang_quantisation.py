"""What quantised weights of target and draft mean for learned drafts: SGLang itself is asked, before it serves."""

from pathlib import Path
from typing import Any, Final

from safetensors import safe_open

from ...buffer.board.weights_file import WEIGHTS_FILE
from ...buffer.drafts.checkpoint import index_of, local_folder, read_index, shard_file
from ...buffer.errors import ConfigError
from ...buffer.finding import Finding, Level

TOPIC: Final = "target"
#: What keeps the draft from being quantised with the target.
PLAIN_DRAFT: Final = "--speculative-draft-model-quantization unquant"
#: As safetensors names the types that a learner reads.
_PLAIN: Final = ("BF16", "F16", "F32")
_EMBEDDING: Final = "model.embed_tokens.weight"
_HEAD: Final = "lm_head.weight"


def check_draft(server_args: Any) -> None:
    """ConfigError where SGLang would quantise the draft, not load it, or compute it in another dtype than the target.

    A learned draft has plain weights. In another dtype it would meet hidden states that SGLang does not cast.
    """
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
    from sglang.srt.runtime_context import get_spec

    spec = get_spec()
    path = spec.speculative_draft_model_path
    revision = spec.speculative_draft_model_revision
    model = ModelConfig.from_server_args(server_args, model_path=path, model_revision=revision, is_draft_model=True)
    target = ModelConfig.from_server_args(server_args)
    if model.dtype != target.dtype:
        raise ConfigError(
            f"{path}: got {model.dtype} for the draft, expected {target.dtype} as for the target; add "
            f"--dtype {str(target.dtype).removeprefix('torch.')}"
        )
    if model.quantization is None:
        return
    own = getattr(model.hf_config, "quantization_config", None)
    do = "start it with a draft that is not quantised" if own else f"add {PLAIN_DRAFT}"
    try:
        method = _linear_method(model)
    except Exception as fault:  # SGLang raises anything for what it cannot load
        why = f"it cannot load the draft in {model.quantization}: {type(fault).__name__}: {fault}"
        raise ConfigError(f"SGLang will not start: {why}; {do}") from fault
    if not isinstance(method, UnquantizedLinearMethod):
        got = f"got {model.quantization} for the draft, by {type(method).__name__}"
        raise ConfigError(f"{got}, expected no quantisation; {do}")


def _linear_method(model: Any) -> Any:
    """What SGLang gives a linear layer of this model."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.layers.linear import ReplicatedLinear
    from sglang.srt.model_loader.weight_utils import get_quant_config

    layer = ReplicatedLinear(256, 256, bias=False)
    return get_quant_config(model, LoadConfig(), {}).get_quant_method(layer, "midlayer.mlp.down_proj")


def target_finding(server_args: Any) -> Finding:
    """How SGLang loads the target, and whether a learner can read what it needs of that."""
    from sglang.srt.configs.model_config import ModelConfig

    model = ModelConfig.from_server_args(server_args)
    if model.quantization is None:
        return Finding(TOPIC, Level.OK, "not quantised")
    says = f"quantised, in {model.quantization}: hidden states and verdicts are those of the quantised target"
    try:
        folder = local_folder(server_args.model_path, server_args.revision, server_args.download_dir)
    except ConfigError as fault:
        return Finding(TOPIC, Level.UNKNOWN, f"{says}; cannot tell whether a learner can read it: {fault}")
    names = [_EMBEDDING] if model.hf_text_config.tie_word_embeddings else [_EMBEDDING, _HEAD]
    stored = {name: _stored_as(folder, name) for name in names}
    unread = [f"{name}: got {kind}" for name, kind in stored.items() if kind not in _PLAIN]
    if not unread:
        return Finding(TOPIC, Level.OK, f"{says}; its embedding and head are not quantised, so a learner can read them")
    return Finding(
        TOPIC,
        Level.NOTE,
        f"{says}; a learner cannot read {'; '.join(unread)}, expected one of {', '.join(_PLAIN)}: give learners as "
        "PACELINE_TARGET_PATH, and `paceline draft init` as --target, the checkpoint that it was quantised from",
    )


def _stored_as(folder: Path, name: str) -> str:
    """The type of a tensor as safetensors names it; where there is none, why. Reads a header alone."""
    try:
        index = index_of(folder, WEIGHTS_FILE)
        file = folder / WEIGHTS_FILE if index is None else shard_file(index, name, read_index(index))
        with safe_open(file, "pt") as weights:
            kind: str = weights.get_slice(name).get_dtype()
    except Exception as fault:  # noqa: BLE001 - safetensors' own type; an absent file and an absent tensor are alike
        return f"{type(fault).__name__}: {fault}"
    return kind
