"""TRL's GRPOTrainer on the small target."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ...serving.rollouts.trl import RolloutFunc

#: Completions of a step, and of a prompt; new tokens of a completion.
BATCH = 64
GROUP = 8
TOKENS = 64
#: Steep, so that a dozen steps move the target far enough for a frozen draft to feel it.
LEARNING_RATE = 1e-4


def grpo_trainer(
    target: Path,
    texts: Sequence[str],
    rollout: RolloutFunc,
    *,
    steps: int,
    temperature: float,
    out: Path,
    learning_rate: float = LEARNING_RATE,
    seed: int = 0,
) -> Any:
    """A trainer of `steps` steps whose reward is the share of digits in a completion; TRL's log is its only output.

    Needs the extra `rl`; the rest of the demo runs without it.
    """
    from datasets import Dataset  # noqa: PLC0415 - an extra that the rest of the demo runs without
    from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415 - as above

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
        seed=seed,
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
