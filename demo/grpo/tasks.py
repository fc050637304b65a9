"""What a run's target is asked and rewarded for."""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...buffer.errors import ConfigError
from ...rig.chat.logic import Task, easy_tasks
from ...rig.chat.messages import asked
from ...rig.models.corpus import CERTAIN_DOMAINS, load_corpus
from ...rig.models.target import chat_template, load_tokenizer
from ...rig.prompts import domain_prompts
from ...rig.wheels import REASONING_GYM, fetch

#: As TRL calls it: with `prompts` and `completions`, texts both.
Reward = Callable[..., list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How many completions a step has, and how long they are."""

    batch: int = 64
    group: int = 8  # completions of one prompt
    tokens: int = 64  # new ones of a completion, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoTask:
    """Prompts, as token ids and as the texts that TRL makes the same ids of, and the reward of their completions."""

    prompts: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    reward: Reward
    rollout: Rollout
    waves: int  # of rollouts that teach the first draft; the prompts are spread over them


SMALL = Rollout()
#: A chat model on two cores: a step of 16 completions takes minutes.
_CHAT_ROLLOUT = Rollout(batch=16, group=4, tokens=48)
_NUMBER = re.compile(r"-?\d+")
_WAVES = 8
_CHAT_WAVES = 4


def digits_task(target: Path, seed: int) -> GrpoTask:
    """Continue text of this machine, rewarded for digits: a small target learns that within a dozen steps."""
    held_out = {name: domain.held_out for name, domain in load_corpus(CERTAIN_DOMAINS).domains.items()}
    tokenizer = load_tokenizer(target)
    made = domain_prompts(held_out, tokenizer, SMALL.batch * _WAVES // len(held_out), seed)
    halves = (made[: len(made) // 2], made[len(made) // 2 :])
    prompts = tuple(prompt.input_ids for pair in zip(*halves, strict=True) for prompt in pair)
    texts = tuple(tokenizer.decode(ids) for ids in prompts)
    return GrpoTask(prompts=prompts, texts=texts, reward=digit_share, rollout=SMALL, waves=_WAVES)


def arithmetic_task(target: Path, data_dir: Path, seed: int) -> GrpoTask:
    """Add and multiply digits, rewarded by the verifiers of reasoning-gym, for a chat model.

    Raises ConfigError for a target without a chat template, and when the gym's package cannot be had.
    """
    template = chat_template(target)
    if template is None:
        raise ConfigError(f"{target}: got a tokenizer without a chat template, expected a chat model's")
    known = list(easy_tasks(fetch(REASONING_GYM, data_dir)).items())
    drawn = random.Random(seed).sample(known, _CHAT_ROLLOUT.batch * _CHAT_WAVES)  # noqa: S311 - an order, no secret
    prompts = tuple(tuple(template(asked(question))) for question, _ in drawn)
    tokenizer = load_tokenizer(target)
    texts = tuple(tokenizer.decode(ids, skip_special_tokens=False) for ids in prompts)
    tasks = {text: task for text, (_, task) in zip(texts, drawn, strict=True)}
    return GrpoTask(
        prompts=prompts, texts=texts, reward=verified(tasks), rollout=_CHAT_ROLLOUT, waves=_CHAT_WAVES
    )  # fmt: skip


def digit_share(completions: list[str], **_: Any) -> list[float]:
    """Return which share of its characters are digits."""
    return [sum(map(str.isdigit, text)) / max(len(text), 1) for text in completions]


def verified(tasks: Mapping[str, Task]) -> Reward:
    """The verifier's score of the last number in each completion, 0 without one; `tasks` has every prompt's task."""

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        numbers = [_NUMBER.findall(text) for text in completions]
        pairs = zip(prompts, numbers, strict=True)
        return [tasks[prompt].score(found[-1]) if found else 0.0 for prompt, found in pairs]

    reward.__name__ = "verified"  # TRL's log names rewards by it
    return reward
