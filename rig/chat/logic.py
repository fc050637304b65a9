"""Tasks of arithmetic and logic that reasoning-gym makes, each with its verifier."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from sys import modules
from types import ModuleType
from typing import Any

from ..prompts import Chat
from .messages import asked

#: Modules whose verifier takes any text and whose makers need no other package than PyYAML and NumPy.
TASKS = (
    "arithmetic.basic_arithmetic", "arithmetic.chain_sum", "arithmetic.gcd", "arithmetic.lcm", "arithmetic.products",
    "arithmetic.fraction_simplification", "arithmetic.leg_counting", "arithmetic.calendar_arithmetic",
    "arithmetic.dice", "logic.knights_knaves", "logic.syllogisms", "logic.aiw",
)  # fmt: skip
EACH = 100  # tasks of one kind
#: Kinds of which a target of 135 million parameters gets some right, with one digit and two terms.
EASY_TASKS = ("arithmetic.chain_sum", "arithmetic.products")
_ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
_SEED = 0  # the tasks are always the same ones; a stream's seed orders them


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One task and who made it; the gym's entry has its question, its answer and what it was made of."""

    entry: Mapping[str, Any]
    maker: Any

    def score(self, answer: str) -> float:
        """Return the gym's reward: 1 for the right answer and nothing else; for one that contains it less, or 0."""
        return float(self.maker.score_answer(answer, self.entry))


def logic(wheel: Path) -> list[Chat]:
    """Every question of `logic_tasks`."""
    return [asked(question) for question in logic_tasks(wheel)]


@cache
def logic_tasks(wheel: Path) -> Mapping[str, Task]:
    """Tasks by question, some EACH of every kind of TASKS; imports the gym from its wheel."""
    return _made(wheel, TASKS)


@cache
def easy_tasks(wheel: Path) -> Mapping[str, Task]:
    """The same of EASY_TASKS, each question once."""
    return _made(wheel, EASY_TASKS, **_ONE_DIGIT)


def _made(wheel: Path, tasks: Sequence[str], **how: int) -> dict[str, Task]:
    kinds = [_from_gym(wheel, task).DATASET_NAME for task in tasks]
    create = _from_gym(wheel, "factory").create_dataset  # after the tasks: it cannot be imported first
    makers = [create(kind, size=EACH, seed=_SEED, **how) for kind in kinds]
    return {entry["question"]: Task(entry, maker) for maker in makers for entry in maker}


def _from_gym(wheel: Path, name: str) -> ModuleType:
    """A module of the gym alone.

    Its packages would import all tasks, with eleven libraries, one of which needs a C compiler: bare ones stand in.
    """
    for package in ("reasoning_gym", "reasoning_gym.arithmetic", "reasoning_gym.logic"):
        if package not in modules:
            modules[package] = ModuleType(package)
            modules[package].__path__ = [str(wheel / package.replace(".", "/"))]
    return import_module(f"reasoning_gym.{name}")
