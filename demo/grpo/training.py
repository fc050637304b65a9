"""TRL's GRPOTrainer on the small target, and what is read of every step."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from ...serving.rollouts.rollouts import Rollouts
from ...serving.rollouts.trl import RolloutFunc

#: Completions of a step, and of a prompt; new tokens of a completion.
BATCH, GROUP, TOKENS = 64, 8, 64
#: Steep, so that a dozen steps move the target far enough for a frozen draft to feel it.
LEARNING_RATE = 1e-4
_READ = 16  # completions of a step whose distributions are compared


@dataclass(frozen=True, slots=True)
class StepNote:
    """What was seen of the rollouts of one step."""

    version: str  # the target's
    figures: dict[str, float]  # rollout/...
    kl: float  # to the target before training, nats per token, on these rollouts
    logprob_error: float  # largest difference between the server's log-probabilities and this process's own


class NotedRollouts:
    """A rollout function that calls another one and takes notes of every step; `notes` grows by one per call."""

    def __init__(self, rollout: RolloutFunc, rollouts: Rollouts, start: Any) -> None:
        self._rollout, self._rollouts, self._start = rollout, rollouts, start
        self.notes: list[StepNote] = []

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """As TRL wants it."""
        made = self._rollout(prompts, trainer)
        kl, error = compared(trainer.model, self._start, made, trainer.args.temperature)
        self.notes.append(StepNote(str(trainer.state.global_step), self._rollouts.metrics(), kl, error))
        return made


def grpo_trainer(
    target: Path,
    texts: Sequence[str],
    rollout: RolloutFunc,
    steps: int,
    temperature: float,
    out: Path,
    learning_rate: float = LEARNING_RATE,
) -> Any:
    """A trainer of `steps` steps whose reward is the share of digits in a completion; TRL's log is its only output."""
    args = GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=BATCH,
        num_generations=GROUP,
        max_completion_length=TOKENS,
        temperature=temperature,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        max_steps=steps,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        seed=0,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using 'rollout_func'", UserWarning)  # docs/rl.md says so too
        return GRPOTrainer(
            model=load_model(target),
            reward_funcs=digit_share,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": list(texts)}),
            processing_class=AutoTokenizer.from_pretrained(target),
            rollout_func=rollout,
        )


def load_model(target: Path) -> Any:
    """The target in float32, as the CPU server computes."""
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)


def digit_share(completions: list[str], **_: Any) -> list[float]:
    """The verifiable reward: which share of its characters are digits."""
    return [sum(map(str.isdigit, text)) / max(len(text), 1) for text in completions]


def rewards(trainer: Any) -> list[float]:
    """Mean reward of each step, as TRL logged it."""
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


@torch.inference_mode()
def compared(policy: Any, start: Any, made: dict[str, Any], temperature: float) -> tuple[float, float]:
    """KL of `policy` to `start` per token, in nats, and the largest error of the log-probabilities that were served."""
    kl, error, tokens = 0.0, 0.0, 0
    rows = zip(made["prompt_ids"], made["completion_ids"], made["logprobs"], strict=True)
    for prompt, ids, served in islice(rows, _READ):
        ours_TV, theirs_TV = (_log_probs(model, prompt, ids, temperature) for model in (policy, start))
        kl += float((ours_TV.exp() * (ours_TV - theirs_TV)).sum())
        own_T = ours_TV.gather(1, torch.tensor(ids)[:, None])[:, 0]
        error = max(error, float((own_T - torch.tensor(served)).abs().max()))
        tokens += len(ids)
    return kl / tokens, error


def _log_probs(model: Any, prompt: list[int], ids: list[int], temperature: float) -> Tensor:
    """Log-probabilities of every token at each position of a completion, float32 [T, V]."""
    logits_TV = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits_TV.float() / temperature, -1)
