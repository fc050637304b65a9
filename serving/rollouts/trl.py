"""TRL's shape of a rollout function, for its GRPOTrainer from 1.16 on. Imports no trainer: it is given one."""

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...buffer.errors import BufferUnavailable, ConfigError
from .completion import Completion

_log = logging.getLogger(__name__)

RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]

#: SGLang's name -> GRPOConfig's, of what the trainer decides: its own log-probabilities are at that temperature.
_BY_TRAINER: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_completion_length",
}


class Door(Protocol):
    """What is needed of Rollouts."""

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, temperature: float = 1.0, **sampling: Any
    ) -> list[Completion]:
        """As Rollouts.generate."""
        ...

    def sync_weights(self, named: Iterable[tuple[str, Any]], version: int | str, *, folder: Path | None) -> float:
        """As Rollouts.sync_weights."""
        ...

    def metrics(self) -> dict[str, float]:
        """As Rollouts.metrics."""
        ...

    def learn(self) -> None:
        """As Rollouts.learn."""
        ...


class TrlRollouts:
    """Called by TRL with the prompts of one process and the trainer, once per generation batch.

    Pushes the trainer's weights when its step has moved, under `version_of` its run and step; generates one
    completion per prompt, which TRL has already repeated; adds the figures of the step to TRL's log.
    """

    def __init__(
        self,
        rollouts: Door,
        *,
        folder: Path | None,
        weights: Callable[[Any], Iterable[tuple[str, Any]]] | None,
        learn: bool,
        run: str | None,
        sampling: Mapping[str, Any],
    ) -> None:
        taken = sorted(sampling.keys() & _BY_TRAINER.keys())
        if taken:
            raise ConfigError(f"for_trl: got {', '.join(taken)}, expected GRPOConfig to say {_names(taken)}")
        self._rollouts = rollouts
        self._folder = folder
        self._weights = weights or _named_weights
        self._learn = learn
        self._sampling = dict(sampling)
        self._run = f"run-{secrets.token_hex(3)}" if run is None else run
        self._pushed: int | None = None  # the trainer's step whose weights the servers have

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's three columns: prompt_ids, completion_ids, logprobs; each a list of lists, one per prompt."""
        self._push(trainer)
        prompt_ids = _token_ids(prompts, trainer)
        done = self._rollouts.generate(prompt_ids, **self._sampling, **sampling_of(trainer.args))
        mode = "train" if trainer.model.training else "eval"
        for name, figure in self._rollouts.metrics().items():
            trainer._metrics[mode][name].append(figure)  # noqa: SLF001 - TRL offers rollout functions no other way
        if self._learn and trainer.accelerator.is_main_process:
            self._ask_for_round()
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": [list(each.token_ids) for each in done],
            "logprobs": [list(each.logprobs) for each in done],
        }

    def _push(self, trainer: Any) -> None:
        step = trainer.state.global_step
        if step == self._pushed:
            return
        named = self._weights(trainer)  # by every process: what gathers split weights needs all of them
        if trainer.accelerator.is_main_process:
            self._rollouts.sync_weights(named, version_of(self._run, step), folder=self._folder)
        trainer.accelerator.wait_for_everyone()
        self._pushed = step

    def _ask_for_round(self) -> None:
        try:
            self._rollouts.learn()
        except BufferUnavailable as fault:  # the draft then stays as it is, which costs time and no result
            _log.warning("no learning round was asked for: %s", fault)


def version_of(run: str, step: int) -> str:
    """The target's version before a step: `run` before the first, "run+7" before step 7; without a run the step alone.

    Traces name it, and what a learner kept of a run must not count as another's: so every start of a trainer is a run.
    The learner orders a run's versions by their step (policies/target_history.py).
    """
    if not run:
        return str(step)
    return f"{run}+{step}" if step else run


def sampling_of(args: Any) -> dict[str, Any]:
    """SGLang's sampling parameters that say what a GRPOConfig says."""
    found = {name: getattr(args, theirs) for name, theirs in _BY_TRAINER.items()}
    found["top_k"] = found["top_k"] or -1  # TRL's 0 and SGLang's -1 both mean all tokens
    if args.generation_kwargs:
        raise ConfigError(
            f"GRPOConfig.generation_kwargs: got {args.generation_kwargs}, expected none; they are transformers' own, "
            "and for_trl() takes SGLang's"
        )
    return {name: value for name, value in found.items() if value is not None}


def _names(taken: Sequence[str]) -> str:
    return ", ".join(_BY_TRAINER[name] for name in taken)


def _named_weights(trainer: Any) -> Iterable[tuple[str, Any]]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "peft_config"):
        raise ConfigError(
            "for_trl: got a model with adapters, expected one whose weights have the names of its checkpoint; merge "
            "them in a function and pass it as for_trl(weights=...)"
        )
    named: Iterable[tuple[str, Any]] = model.state_dict().items()
    return named


def _token_ids(prompts: list[Any], trainer: Any) -> list[list[int]]:
    """As TRL tokenises: texts as they stand, conversations through the chat template."""
    tokenizer = trainer.processing_class
    if isinstance(prompts[0], str):
        return _rows(tokenizer(text=prompts))
    rendered = tokenizer.apply_chat_template(
        conversation=prompts,
        chat_template=trainer.chat_template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **trainer.chat_template_kwargs,
    )
    return _rows(rendered)


def _rows(encoded: Mapping[str, Any]) -> list[list[int]]:
    return [list(ids) for ids in encoded["input_ids"]]
