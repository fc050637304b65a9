"""Prompts: windows of text that no model was trained on, or a user's own file."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from ..buffer.errors import ConfigError

PROMPT_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to be sent, in token ids."""

    request_id: str
    domain: str
    input_ids: tuple[int, ...]


def domain_prompts(
    held_out: Mapping[str, Sequence[str]], tokenizer: Tokenizer, per_domain: int, seed: int
) -> list[Prompt]:
    """`per_domain` prompts of PROMPT_TOKENS tokens for each domain, in the order of `held_out`.

    Windows of one domain do not overlap and never cross from one text into the next. Raises ConfigError when
    a domain has fewer windows than asked for.
    """
    prompts = []
    for domain, texts in held_out.items():
        windows = [window for text in texts for window in _windows(tokenizer.encode(text).ids)]
        if len(windows) < per_domain:
            raise ConfigError(
                f"prompts of domain {domain!r}: got text for {len(windows)}, expected {per_domain}; "
                "ask for fewer requests or bring your own with --prompts FILE.jsonl"
            )
        drawn = random.Random(f"{seed} {domain}").sample(windows, per_domain)  # noqa: S311 - a sample, no secret
        prompts += [Prompt(f"{domain}-{number:04d}", domain, window) for number, window in enumerate(drawn)]
    return prompts


def read_prompts(path: Path, tokenizer: Tokenizer, max_tokens: int) -> list[Prompt]:
    """Prompts of a JSONL file with lines {"text": ..., "domain": ...}, in its order; `domain` may be left out.

    A longer text keeps its last `max_tokens` tokens. Raises ConfigError as check_prompts does.
    """
    return [
        Prompt(f"{domain}-{number:04d}", domain, tuple(tokenizer.encode(text).ids[-max_tokens:]))
        for number, text, domain in _texts(path)
    ]


def check_prompts(path: Path) -> None:
    """ConfigError, with the line number, for a line that is no such object, and for an unreadable or empty file."""
    _texts(path)


def _texts(path: Path) -> list[tuple[int, str, str]]:
    """Number, text and domain of every line that is not blank."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--prompts {path}: {error.strerror}; expected a readable JSONL file") from error
    found = [
        (number, *_parse(line, f"--prompts {path}, line {number}"))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not found:
        raise ConfigError(f"--prompts {path}: got no prompt, expected one JSON object per line")
    return found


def _windows(ids: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(ids[at : at + PROMPT_TOKENS]) for at in range(0, len(ids) - PROMPT_TOKENS + 1, PROMPT_TOKENS)]


def _parse(line: bytes, where: str) -> tuple[str, str]:
    try:
        entry = json.loads(line)
    except ValueError as error:  # JSON or UTF-8
        raise ConfigError(f"{where}: got {_shown(line)} ({error}), expected a JSON object") from error
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: got {_shown(line)}, expected a JSON object")
    text = entry.get("text")
    domain = entry.get("domain", "own")
    if not isinstance(text, str) or not text:
        raise ConfigError(f'{where}: got "text" of {text!r}, expected a string that is not empty')
    if not isinstance(domain, str) or not domain:
        raise ConfigError(f'{where}: got "domain" of {domain!r}, expected a string that is not empty')
    return text, domain


def _shown(line: bytes) -> str:
    return repr(line[:60].decode("utf-8", errors="replace"))
