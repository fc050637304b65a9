"""Rows of the compatibility table: what each server is started with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...buffer.board.speculation import NGRAM
from ...serving.sglang_speculation import CHAIN_FLAGS

#: What every row uses unless it says otherwise.
LLAMA = "Llama"
FOLDER = "folder"
HEAD = "EAGLE-3"
#: Heads that only some rows have.
EAGLE_3_1 = "EAGLE-3.1"
HALF_VOCABULARY = "half the vocabulary"
BFLOAT16 = "bfloat16"
#: The layer of the target's own checkpoint, and the families that have one.
MTP = "MTP"
MIMO = "MiMo"
GLM = "GLM-4.5"
DEEPSEEK = "DeepSeek-V3"
#: A draft of whole blocks.
BLOCKS = "DFLASH"
#: A family and a form that pairs have as well as rows of their own.
LLAMA_3 = "Llama 3, llama3 rope"
HUB_ID = "Hugging Face id"
#: What of a target with an MTP layer may be named as its draft, beside the target itself.
LAYER_ALONE = "its layer alone"

#: What keeps the draft as its file has it.
PLAIN_DRAFT = "--speculative-draft-model-quantization unquant"

#: The factor whose rows are run on every release, the others on the default one.
PER_RELEASE = "start"
#: The factor whose targets are in the formats of quantised.py, or quantised by SGLang.
QUANTISED = "quantised"
#: The factor whose drafts are layers of their targets' checkpoints.
OWN_LAYER = "layer"
#: The factor whose drafts make a whole block in one forward.
IN_BLOCKS = "block"
#: The factor whose servers have no draft.
WITHOUT_MODEL = "no model"
#: Factor -> the heading of its table.
FACTORS = {
    PER_RELEASE: "What to start with, by release",
    "flags": "Other flags",
    "draft": "Forms of the draft",
    "target": "Families of targets",
    QUANTISED: "Quantised targets",
    OWN_LAYER: "Drafts in the target's own checkpoint (MTP)",
    IN_BLOCKS: "Drafts of whole blocks (DFLASH)",
    WITHOUT_MODEL: "Drafts without a model (NGRAM)",
    "pair": "Pairs that people run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One server: a target, a draft of it, and SGLang's flags beside `--speculative-algorithm` and the draft's path."""

    factor: str  # one of FACTORS
    name: str
    flags: str = CHAIN_FLAGS
    family: str = LLAMA
    weights: str = ""  # of the target: one of quantised.FORMATS; empty: not quantised
    form: str = FOLDER
    head: str = HEAD
    temperature: float = 0.0  # of the requests it serves
    has_system_prompt: bool = False  # all its requests begin with the same tokens

    @property
    def key(self) -> str:
        """Factor and name; unique among ROWS."""
        return f"{self.factor}: {self.name}"

    @property
    def algorithm(self) -> str:
        """What `--speculative-algorithm` says."""
        return {MTP: "NEXTN", BLOCKS: "DFLASH", NGRAM: NGRAM}.get(self.head, "EAGLE3")

    @property
    def shown_flags(self) -> str:
        """The flags as the table has them: the usual chain by that name, "none" where there are none."""
        given = self.flags.replace(CHAIN_FLAGS, "").split(" --")
        parts = [f"`--{part.strip().removeprefix('--')}`" for part in given if part.strip()]
        return ", ".join((["chain"] if CHAIN_FLAGS in self.flags else []) + parts) or "none"


def _quantised(name: str, more: str = "", *, weights: str = "", family: str = LLAMA_3, head: str = HEAD) -> Row:
    """A quantised target on a server with `more` flags."""
    flags = f"{CHAIN_FLAGS} {more}".strip()
    return Row(factor=QUANTISED, name=name, flags=flags, family=family, weights=weights, head=head)


def _mtp(name: str, flags: str = CHAIN_FLAGS, family: str = MIMO, **more: Any) -> Row:
    """A target that drafts by its own layer. transformers has no MiMo: checkpoints bring the class of their config."""
    flags = f"{flags} --trust-remote-code" if family == MIMO else flags
    return Row(factor=OWN_LAYER, name=name, flags=flags, family=family, head=MTP, **more)


def _with_experts(family: str) -> tuple[Row, ...]:
    """Rows of a family whose MTP layer has experts."""
    chunks = f"{CHAIN_FLAGS} --chunked-prefill-size 32"
    sampled = f"{CHAIN_FLAGS} --speculative-use-rejection-sampling"
    return (
        _mtp(family, family=family),
        _mtp(f"{family}, its layer alone named as the draft", family=family, form=LAYER_ALONE),
        _mtp(f"{family}, the algorithm and the draft alone", "", family),
        _mtp(f"{family}, a system prompt that is cached, prompts in chunks", chunks, family, has_system_prompt=True),
        _mtp(f"{family}, adaptive speculation", "--speculative-adaptive", family),
        _mtp(f"{family}, rejection sampling at temperature 0.7", sampled, family, temperature=0.7),
        _mtp(f"{family}, two ranks", f"{CHAIN_FLAGS} --tp-size 2", family),
    )


def _block(name: str, flags: str = "", **more: Any) -> Row:
    """A server that drafts blocks of four; SGLang takes their size from the draft's config."""
    return Row(factor=IN_BLOCKS, name=name, flags=flags, head=BLOCKS, **more)


ROWS: Sequence[Row] = (
    Row(factor=PER_RELEASE, name="a chain of three drafts, Llama"),
    Row(factor=PER_RELEASE, name="the algorithm and the draft alone, Llama", flags=""),
    Row(factor=PER_RELEASE, name="the algorithm and the draft alone, Qwen3", flags="", family="Qwen3"),
    Row(factor=PER_RELEASE, name="adaptive speculation alone, Llama", flags="--speculative-adaptive"),
    Row(
        factor="flags",
        name="rejection sampling, at temperature 0.7",
        flags=f"{CHAIN_FLAGS} --speculative-use-rejection-sampling",
        temperature=0.7,
    ),
    Row(factor="flags", name="no radix cache (the other rows have it)", flags=f"{CHAIN_FLAGS} --disable-radix-cache"),
    Row(factor="flags", name="mixed chunks", flags=f"{CHAIN_FLAGS} --enable-mixed-chunk --chunked-prefill-size 32"),
    Row(factor="flags", name="one step, the rest left to SGLang", flags="--speculative-num-steps 1"),
    Row(
        factor="flags",
        name="one step, spelled out",
        flags="--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2",
    ),
    *(Row(factor="draft", name=name, form=name) for name in ("safetensors in shards", "pytorch_model.bin", HUB_ID)),
    *(
        Row(factor="target", name=name, family=name)
        for name in (
            LLAMA_3, "Qwen2.5", "Qwen3", "Qwen3 MoE", "Mistral", "Gemma 3", "Phi-3 and Phi-4", "gpt-oss",
        )
    ),
    *(
        _quantised(name, weights=name)
        for name in (
            "FP8", "compressed-tensors, FP8", "compressed-tensors, INT8", "compressed-tensors, INT4", "AWQ", "GPTQ",
        )
    ),
    # SGLang's Llama leaves the scales of blocks out.
    _quantised("FP8 in blocks, Qwen3", weights="FP8 in blocks", family="Qwen3"),
    _quantised("AWQ, named by a flag", "--quantization awq", weights="AWQ"),
    _quantised("AWQ, named by a flag, the draft excepted", f"--quantization awq {PLAIN_DRAFT}", weights="AWQ"),
    _quantised("AWQ in float16, the draft in bfloat16", "--dtype auto", weights="AWQ", head=BFLOAT16),
    _quantised("FP8 by SGLang", "--quantization fp8"),
    _quantised("FP8 by SGLang, the draft excepted", f"--quantization fp8 {PLAIN_DRAFT}"),
    _mtp("MiMo"),
    _mtp("MiMo, its layer alone named as the draft", form=LAYER_ALONE),
    _mtp("MiMo, the algorithm and the draft alone", ""),
    _mtp(
        "MiMo, a system prompt that is cached, prompts in chunks",
        f"{CHAIN_FLAGS} --chunked-prefill-size 32",
        has_system_prompt=True,
    ),
    _mtp("MiMo, adaptive speculation", "--speculative-adaptive"),
    _mtp(
        "MiMo, rejection sampling at temperature 0.7",
        f"{CHAIN_FLAGS} --speculative-use-rejection-sampling",
        temperature=0.7,
    ),
    _mtp("MiMo, two ranks", f"{CHAIN_FLAGS} --tp-size 2"),
    *(row for family in (GLM, DEEPSEEK) for row in _with_experts(family)),
    _block("Llama"),
    _block("Qwen3", family="Qwen3"),
    _block("Llama 3, no radix cache", "--disable-radix-cache", family=LLAMA_3),
    _block("Llama, temperature 0.7", temperature=0.7),
    _block(
        "Llama, a system prompt that is cached, prompts in chunks", "--chunked-prefill-size 32", has_system_prompt=True
    ),
    _block("Llama, mixed chunks", "--enable-mixed-chunk --chunked-prefill-size 32"),
    _block("Llama, two ranks", "--tp-size 2"),
    _block("Llama, blocks of another size than the draft's", "--speculative-num-draft-tokens 3"),
    Row(factor=WITHOUT_MODEL, name="Llama", flags="", head=NGRAM),
    Row(
        factor=WITHOUT_MODEL,
        name="Llama, one branch per match, temperature 0.7",
        flags="--speculative-ngram-max-bfs-breadth 1",
        head=NGRAM,
        temperature=0.7,
    ),
    Row(factor="pair", name="Llama 3, SGLang's own tree", flags="", family=LLAMA_3),
    Row(factor="pair", name="Llama 3, two ranks", flags=f"{CHAIN_FLAGS} --tp-size 2", family=LLAMA_3),
    Row(
        factor="pair",
        name="Llama 3, a system prompt that is cached, prompts in chunks",
        flags=f"{CHAIN_FLAGS} --chunked-prefill-size 32",
        family=LLAMA_3,
        has_system_prompt=True,
    ),
    Row(
        factor="pair",
        name="Llama 3, mixed chunks",
        flags=f"{CHAIN_FLAGS} --enable-mixed-chunk --chunked-prefill-size 32",
        family=LLAMA_3,
    ),
    Row(
        factor="pair",
        name="Llama 3, rejection sampling at temperature 0.7, a draft of half the vocabulary",
        flags=f"{CHAIN_FLAGS} --speculative-use-rejection-sampling",
        family=LLAMA_3,
        head=HALF_VOCABULARY,
        temperature=0.7,
    ),
    Row(factor="pair", name="Qwen3, temperature 0.6", family="Qwen3", temperature=0.6),
    Row(factor="pair", name="Qwen3, adaptive speculation", flags="--speculative-adaptive", family="Qwen3"),
    Row(factor="pair", name="Qwen3, an EAGLE-3.1 draft from the Hub", family="Qwen3", form=HUB_ID, head=EAGLE_3_1),
    Row(factor="pair", name="Qwen3 MoE, a draft of half the vocabulary", family="Qwen3 MoE", head=HALF_VOCABULARY),
    Row(factor="pair", name="Mistral, no radix cache", flags=f"{CHAIN_FLAGS} --disable-radix-cache", family="Mistral"),
)  # fmt: skip


def chosen(rows: Iterable[Row], parts: Sequence[str]) -> list[Row]:
    """The rows whose key contains one of `parts`, in their own order; all of them without any part."""
    return [row for row in rows if not parts or any(part in row.key for part in parts)]
