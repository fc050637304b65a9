"""Rows of the compatibility table: what each server is started with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...serving.sglang_speculation import CHAIN_FLAGS

#: What every row uses unless it says otherwise.
LLAMA = "Llama"
FOLDER = "folder"
HEAD = "EAGLE-3"
#: Heads that only some rows have.
EAGLE_3_1 = "EAGLE-3.1"
HALF_VOCABULARY = "half the vocabulary"
#: A family and a form that pairs have as well as rows of their own.
LLAMA_3 = "Llama 3, llama3 rope"
HUB_ID = "Hugging Face id"

#: The factor whose rows are run on every release, the others on the default one.
PER_RELEASE = "start"
#: Factor -> the heading of its table.
FACTORS = {
    PER_RELEASE: "What to start with, by release",
    "flags": "Other flags",
    "draft": "Forms of the draft",
    "target": "Families of targets",
    "pair": "Pairs that people run",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One server: a target, a draft of it, and SGLang's flags beside `--speculative-algorithm` and the draft's path."""

    factor: str  # one of FACTORS
    name: str
    flags: str = CHAIN_FLAGS
    family: str = LLAMA
    form: str = FOLDER
    head: str = HEAD
    temperature: float = 0.0  # of the requests it serves
    has_system_prompt: bool = False  # all its requests begin with the same tokens

    @property
    def key(self) -> str:
        """Factor and name; unique among ROWS."""
        return f"{self.factor}: {self.name}"

    @property
    def shown_flags(self) -> str:
        """The flags as the table has them: the usual chain by that name, "none" where there are none."""
        given = self.flags.replace(CHAIN_FLAGS, "").split(" --")
        parts = [f"`--{part.strip().removeprefix('--')}`" for part in given if part.strip()]
        return ", ".join((["chain"] if CHAIN_FLAGS in self.flags else []) + parts) or "none"


ROWS: Sequence[Row] = (
    Row(PER_RELEASE, "a chain of three drafts, Llama"),
    Row(PER_RELEASE, "the algorithm and the draft alone, Llama", ""),
    Row(PER_RELEASE, "the algorithm and the draft alone, Qwen3", "", "Qwen3"),
    Row(PER_RELEASE, "adaptive speculation alone, Llama", "--speculative-adaptive"),
    Row(
        "flags",
        "rejection sampling, at temperature 0.7",
        f"{CHAIN_FLAGS} --speculative-use-rejection-sampling",
        temperature=0.7,
    ),
    Row("flags", "no radix cache (the other rows have it)", f"{CHAIN_FLAGS} --disable-radix-cache"),
    Row("flags", "mixed chunks", f"{CHAIN_FLAGS} --enable-mixed-chunk --chunked-prefill-size 32"),
    Row("flags", "one step, the rest left to SGLang", "--speculative-num-steps 1"),
    Row(
        "flags",
        "one step, spelled out",
        "--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2",
    ),
    *(Row("draft", name, form=name) for name in ("safetensors in shards", "pytorch_model.bin", HUB_ID)),
    *(
        Row("target", name, family=name)
        for name in (
            LLAMA_3, "Qwen2.5", "Qwen3", "Qwen3 MoE", "Mistral", "Gemma 3", "Phi-3 and Phi-4", "gpt-oss",
        )
    ),
    Row("pair", "Llama 3, SGLang's own tree", "", LLAMA_3),
    Row("pair", "Llama 3, two ranks", f"{CHAIN_FLAGS} --tp-size 2", LLAMA_3),
    Row(
        "pair",
        "Llama 3, a system prompt that is cached, prompts in chunks",
        f"{CHAIN_FLAGS} --chunked-prefill-size 32",
        LLAMA_3,
        has_system_prompt=True,
    ),
    Row("pair", "Llama 3, mixed chunks", f"{CHAIN_FLAGS} --enable-mixed-chunk --chunked-prefill-size 32", LLAMA_3),
    Row(
        "pair",
        "Llama 3, rejection sampling at temperature 0.7, a draft of half the vocabulary",
        f"{CHAIN_FLAGS} --speculative-use-rejection-sampling",
        LLAMA_3,
        head=HALF_VOCABULARY,
        temperature=0.7,
    ),
    Row("pair", "Qwen3, temperature 0.6", family="Qwen3", temperature=0.6),
    Row("pair", "Qwen3, adaptive speculation", "--speculative-adaptive", "Qwen3"),
    Row("pair", "Qwen3, an EAGLE-3.1 draft from the Hub", family="Qwen3", form=HUB_ID, head=EAGLE_3_1),
    Row("pair", "Qwen3 MoE, a draft of half the vocabulary", family="Qwen3 MoE", head=HALF_VOCABULARY),
    Row("pair", "Mistral, no radix cache", f"{CHAIN_FLAGS} --disable-radix-cache", "Mistral"),
)  # fmt: skip


def chosen(rows: Iterable[Row], parts: Sequence[str]) -> list[Row]:
    """The rows whose key contains one of `parts`, in their own order; all of them without any part."""
    return [row for row in rows if not parts or any(part in row.key for part in parts)]
