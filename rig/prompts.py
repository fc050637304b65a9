"""Prompts: windows of text that no model was trained on, or a user's own file."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from ..buffer.errors import ConfigError

PROMPT_TOKENS = 48
#: {"role": "system", "user" or "assistant", "content": text}
Message = dict[str, str]
Chat = tuple[Message, ...]
#: What puts a chat into a model's template and gives the ids of it; see rig.models.target.chat_template.
Template = Callable[[Chat], Sequence[int]]


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


def read_prompts(path: Path, tokenizer: Tokenizer, max_tokens: int, template: Template | None = None) -> list[Prompt]:
    """Prompts of a JSONL file with lines {"text": ..., "domain": ...}, in its order; `domain` may be left out.

    A line may have "messages" instead, for a model with a `template`. A longer prompt keeps its last `max_tokens`
    tokens. Raises ConfigError as check_prompts does, and for messages without a template.
    """
    prompts = []
    for number, said, domain in _lines(path):
        if isinstance(said, str):
            ids: Sequence[int] = tokenizer.encode(said).ids
        elif template is None:
            raise ConfigError(f'--prompts {path}, line {number}: got "messages", expected "text" for this model')
        else:
            ids = template(said)
        prompts.append(Prompt(f"{domain}-{number:04d}", domain, tuple(ids[-max_tokens:])))
    return prompts


def check_prompts(path: Path) -> None:
    """ConfigError, with the line number, for a line that is no such object, and for an unreadable or empty file."""
    _lines(path)


def _lines(path: Path) -> list[tuple[int, str | Chat, str]]:
    """Number, text or messages, and domain of every line that is not blank."""
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


def _parse(line: bytes, where: str) -> tuple[str | Chat, str]:
    try:
        entry = json.loads(line)
    except ValueError as error:  # JSON or UTF-8
        raise ConfigError(f"{where}: got {_shown(line)} ({error}), expected a JSON object") from error
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: got {_shown(line)}, expected a JSON object")
    domain = entry.get("domain", "own")
    if not isinstance(domain, str) or not domain:
        raise ConfigError(f'{where}: got "domain" of {domain!r}, expected a string that is not empty')
    if "messages" in entry:
        return _messages(entry["messages"], where), domain
    text = entry.get("text")
    if not isinstance(text, str) or not text:
        raise ConfigError(f'{where}: got "text" of {text!r}, expected a string that is not empty')
    return text, domain


def _messages(given: object, where: str) -> Chat:
    if isinstance(given, list) and given and all(map(_is_message, given)):
        return tuple(given)
    expected = '{"role": ..., "content": ...} with two strings, once or more'
    raise ConfigError(f'{where}: got "messages" of {str(given)[:100]}, expected {expected}')


def _is_message(given: object) -> bool:
    return isinstance(given, dict) and all(isinstance(given.get(key), str) for key in ("role", "content"))


def _shown(line: bytes) -> str:
    return repr(line[:60].decode("utf-8", errors="replace"))
