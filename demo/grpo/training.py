"""TRL's GRPOTrainer on a target, on a CPU."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ...serving.rollouts.trl import RolloutFunc
from .tasks import SMALL, Reward, Rollout, digit_share

#: Steep, so that a dozen steps move the target far enough for a frozen draft to feel it.
LEARNING_RATE = 1e-4


def grpo_trainer(
    target: Path,
    texts: Sequence[str],
    rollouts: RolloutFunc,
    *,
    reward: Reward = digit_share,
    rollout: Rollout = SMALL,
    steps: int,
    temperature: float,
    out: Path,
    learning_rate: float = LEARNING_RATE,
    seed: int = 0,
) -> Any:
    """A trainer of `steps` steps that asks `texts` and learns by `reward`; TRL's log is its only output.

    Needs the extra `rl`; the rest of the demo runs without it.
    """
    from datasets import Dataset  # noqa: PLC0415 - an extra that the rest of the demo runs without
    from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415 - as above

    args = GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=rollout.batch,
        num_generations=rollout.group,
        max_completion_length=rollout.tokens,
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
        seed=seed,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using 'rollout_func'", UserWarning)  # docs/rl.md says so too
        return GRPOTrainer(
            model=load_model(target),
            reward_funcs=reward,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": list(texts)}),
            processing_class=AutoTokenizer.from_pretrained(target),
            rollout_func=rollouts,
        )


def load_model(target: Path) -> Any:
    """The target in float32, as the CPU server computes."""
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)


def rewards(trainer: Any) -> list[float]:
    """Mean reward of each step, as TRL logged it."""
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
