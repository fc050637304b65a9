"""Builds a small target from local text, once, and the untrained draft to start with.

A folder that exists is complete: interrupted training leaves none.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from ...learner.disk import write_folder
from ...learner.model.draft_io import random_draft
from ..progress import Report, quiet
from ..prompts import Template
from .corpus import Corpus, load_corpus
from .training import TrainPlan, mean_loss, train

PAD = "<pad>"
BOS = "<bos>"
EOS = "<eos>"
VOCABULARY = 2048
#: Layers whose outputs an EAGLE-3 head of this target reads: SGLang's own choice collides on four layers.
DRAFT_LAYERS = (0, 1, 2)

_RECIPE = 2  # raise it when the same plan and text give another model
_CARD = "target.json"
_CHARS_PER_DOMAIN = 3_000_000  # more text than the time budget can read on two cores
#: The usual architecture, as arguments of LlamaConfig; larger targets have others.
ARCHITECTURE: Mapping[str, int | bool] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class TargetModel:
    """A target on disk, in Hugging Face layout with its tokenizer, and its loss on held-out text."""

    folder: Path
    key: str  # of text, architecture and training plan
    held_out_loss: Mapping[str, float]  # domain -> nats per token
    steps: int


def ensure_target(
    data_dir: Path,
    plan: TrainPlan,
    domains: Iterable[str] = ("py", "prose"),
    report: Report = quiet,
    *,
    architecture: Mapping[str, int | bool] = ARCHITECTURE,
    device: str = "cpu",
) -> TargetModel:
    """The target for this text and plan: read from `data_dir` if it exists, else trained for `plan.seconds`.

    Reads the corpus first (seconds), then trains on `device`, as torch names it; a wider vocabulary reads more of
    the corpus. Raises ConfigError when this machine lacks a domain.
    """
    corpus = load_corpus(domains)
    key = target_key(corpus, plan, architecture)
    folder = data_dir / "targets" / key
    if not folder.exists():
        model, tokenizer, notes = _build(corpus, plan, architecture, device=device, report=report)
        _write_once(folder, lambda place: _save(place, model, tokenizer, notes))
    card = json.loads((folder / _CARD).read_text(encoding="utf-8"))
    return TargetModel(folder, key, card["held_out_loss"], card["steps"])


def ensure_random_draft(
    target_folder: Path, out_folder: Path, seed: int, layer_ids: Sequence[int] = DRAFT_LAYERS
) -> Path:
    """An untrained EAGLE-3 head for the target, over its whole vocabulary; written once, then left as it is."""
    if not out_folder.exists():
        _write_once(out_folder, lambda place: random_draft(target_folder, place, seed, layer_ids=layer_ids))
    return out_folder


def load_tokenizer(target_folder: Path) -> Tokenizer:
    """The target's tokenizer; it adds no special tokens."""
    return Tokenizer.from_file(str(target_folder / "tokenizer.json"))


def chat_template(target_folder: Path) -> Template | None:
    """What turns messages into the ids of a prompt that asks for an answer; None for a tokenizer without a template."""
    tokenizer = AutoTokenizer.from_pretrained(target_folder, local_files_only=True)
    if tokenizer.chat_template is None:
        return None
    return lambda chat: list(tokenizer.apply_chat_template([*chat], add_generation_prompt=True, return_dict=False))


def train_tokenizer(texts: Iterable[str], words: int = VOCABULARY) -> Tokenizer:
    """Byte-level BPE with `words` entries: every text can be encoded, and decoding gives it back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def target_key(corpus: Corpus, plan: TrainPlan, architecture: Mapping[str, int | bool] = ARCHITECTURE) -> str:
    """Name of the target's folder below <data-dir>/targets; it differs by text, plan and architecture."""
    recipe = {"recipe": _RECIPE, "architecture": dict(architecture), "plan": asdict(plan), "text": corpus.fingerprint}
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def _build(
    corpus: Corpus, plan: TrainPlan, architecture: Mapping[str, int | bool], *, device: str, report: Report
) -> tuple[LlamaForCausalLM, Tokenizer, dict[str, object]]:
    report(0.0, "reading text")
    words = architecture["vocab_size"]
    chars = _CHARS_PER_DOMAIN * words // VOCABULARY
    training = {name: _sample(text.training, plan.seed, chars) for name, text in corpus.domains.items()}
    tokenizer = train_tokenizer((text for texts in training.values() for text in texts), words)
    streams = {name: _stream(tokenizer, texts) for name, texts in training.items()}
    torch.manual_seed(plan.seed)
    model = LlamaForCausalLM(LlamaConfig(**architecture, dtype="float32")).to(device)
    steps = train(model, streams, plan, report)
    model.eval()
    held_out = {name: _stream(tokenizer, text.held_out) for name, text in corpus.domains.items()}
    losses = {name: mean_loss(model, stream, plan.window_tokens) for name, stream in held_out.items()}
    return model, tokenizer, {"held_out_loss": losses, "steps": steps, "plan": asdict(plan)}


def _sample(texts: Sequence[str], seed: int, max_chars: int) -> list[str]:
    """Whole texts in a fixed random order, up to `max_chars` characters."""
    order = random.Random(seed).sample(range(len(texts)), len(texts))  # noqa: S311 - a sample, no secret
    chosen = []
    chars = 0
    for index in order:
        if chars < max_chars:
            chosen.append(texts[index])
            chars += len(texts[index])
    return chosen


def _stream(tokenizer: Tokenizer, texts: Iterable[str]) -> Tensor:
    """All texts as one row of token ids, int64[N], each followed by EOS."""
    end = tokenizer.token_to_id(EOS)
    return torch.tensor([token for text in texts for token in (*tokenizer.encode(text).ids, end)])


def _save(folder: Path, model: LlamaForCausalLM, tokenizer: Tokenizer, card: Mapping[str, object]) -> None:
    disable_progress_bar()  # it would be drawn across our own progress bar
    model.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD)
    wrapped.save_pretrained(folder)
    (folder / _CARD).write_text(json.dumps(card, indent=1), encoding="utf-8")


def _write_once(folder: Path, write: Callable[[Path], object]) -> None:
    try:
        write_folder(folder, write)
    except OSError:
        if not folder.exists():  # else another process finished the same model first
            raise


@torch.inference_mode()
def greedy(
    model: PreTrainedModel,
    input_ids: Sequence[int],
    max_tokens: int,
    edit: Callable[[Tensor, Sequence[int]], Tensor] = lambda logits, _: logits,
) -> tuple[int, ...]:
    """The `max_tokens` tokens that follow `input_ids`, each the most probable one; EOS ends nothing.

    `edit` makes other logits [V] of the target's, given the answer so far.
    """
    fed = torch.tensor([list(input_ids)])
    cache = None
    output = list[int]()
    for _ in range(max_tokens):
        step = model(fed, past_key_values=cache, use_cache=True)
        fed = edit(step.logits[0, -1], output).argmax(-1).view(1, 1)
        cache = step.past_key_values
        output.append(int(fed))
    return tuple(output)
