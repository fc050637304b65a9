"""Notes on the rollouts of every step, beside what the trainer itself computes."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ...serving.rollouts.rollouts import Rollouts
from ...serving.rollouts.trl import RolloutFunc

_READ = 16  # completions of a step whose distributions are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNote:
    """The figures of the rollouts of one step."""

    version: str  # the target's
    figures: dict[str, float]  # rollout/...
    kl: float  # to the target before training, nats per token, on these rollouts
    entropy: float  # of the target's choice of a token, in nats
    logprob_error: float  # largest difference between the server's log-probabilities and this process's own


class NotedRollouts:
    """A rollout function that calls another one and takes notes of every step; `notes` grows by one per call.

    `keep(step, trainer)` is called before the rollouts of each step.
    """

    def __init__(
        self, rollout: RolloutFunc, rollouts: Rollouts, start: Any, keep: Callable[[int, Any], None] = lambda *_: None
    ) -> None:
        self._rollout = rollout
        self._rollouts = rollouts
        self._start = start
        self._keep = keep
        self.notes: list[StepNote] = []

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Fulfil the signature that TRL asks for."""
        self._keep(trainer.state.global_step, trainer)
        made = self._rollout(prompts, trainer)
        kl, entropy, error = compared(trainer.model, self._start, made, trainer.args.temperature)
        self.notes.append(
            StepNote(
                version=str(trainer.state.global_step),
                figures=self._rollouts.metrics(),
                kl=kl,
                entropy=entropy,
                logprob_error=error,
            )
        )
        return made


@torch.inference_mode()
def compared(policy: Any, start: Any, made: dict[str, Any], temperature: float) -> tuple[float, float, float]:
    """KL of `policy` to `start` and entropy of `policy`, nats per token; largest error of served log-probabilities."""
    kl = 0.0
    entropy = 0.0
    error = 0.0
    tokens = 0
    rows = zip(made["prompt_ids"], made["completion_ids"], made["logprobs"], strict=True)
    for prompt, ids, served in islice(rows, _READ):
        ours_TV, theirs_TV = (_log_probs(model, prompt, ids, temperature) for model in (policy, start))
        kl += float((ours_TV.exp() * (ours_TV - theirs_TV)).sum())
        entropy -= float((ours_TV.exp() * ours_TV).sum())
        own_T = ours_TV.gather(1, torch.tensor(ids)[:, None])[:, 0]
        error = max(error, float((own_T - torch.tensor(served)).abs().max()))
        tokens += len(ids)
    return kl / tokens, entropy / tokens, error


def _log_probs(model: Any, prompt: list[int], ids: list[int], temperature: float) -> Tensor:
    """Log-probabilities of every token at each position of a completion, float32 [T, V]."""
    logits_TV = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits_TV.float() / temperature, -1)
