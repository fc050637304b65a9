"""TRL's own GRPOTrainer on a real server: the reward rises, and every log-probability served is the trainer's own.

Needs the extra `rl`; `make test-rollouts` runs it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paceline import Rollouts

pytestmark = [pytest.mark.e2e, pytest.mark.rollouts]

STEPS, TEMPERATURE, RATE = 6, 1.0, 3e-4
PROMPTS = 32
#: The largest difference of log-probabilities between two programs that compute the same in float32.
TOLERANCE = 1e-4
FIGURES = ("seconds", "tail_seconds", "sync_seconds", "accept_length", "rounds_per_token", "draft_version")


class Checked:
    """The rollout function under test; after every call, what it returned beside what the trainer computes."""

    def __init__(self, rollout: Any) -> None:
        self.rollout, self.errors, self.lengths, self.versions = rollout, [], [], []

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        made = self.rollout(prompts, trainer)
        assert len(prompts) == len(made["prompt_ids"]) == len(made["completion_ids"]) == len(made["logprobs"])
        rows = zip(made["prompt_ids"], made["completion_ids"], made["logprobs"], strict=True)
        self.errors.append(max(self.error(trainer, *row) for row in rows))
        self.lengths += [len(ids) for ids in made["completion_ids"]]
        return made

    @staticmethod
    def error(trainer: Any, prompt: list[int], ids: list[int], served: list[float]) -> float:
        """Against TRL's own recomputation, which is what it trains on."""
        import torch

        fed = torch.tensor([[*prompt, *ids]])
        with torch.no_grad():
            own, *_ = trainer._get_per_token_logps_and_entropies(trainer.model, fed, torch.ones_like(fed), len(ids))
        assert own.shape == (1, len(ids))
        return float((own[0] - torch.tensor(served)).abs().max())


@pytest.fixture(scope="module")
def server(start_rig: Any, models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    more = ["--max-total-tokens", "16384", "--max-running-requests", "16", "--random-seed", "5"]
    with start_rig(models, tmp_path_factory.mktemp("trl"), more, {}) as made:
        yield made


@pytest.fixture(scope="module")
def trained(server: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Checked, Any]:
    from paceline.demo.grpo.training import grpo_trainer

    texts = [text[:120] for text in server.texts[:PROMPTS]]
    with Rollouts(f"http://127.0.0.1:{server.port}", redis_url=server.redis_url, speculator="e2e") as rollouts:
        checked = Checked(rollouts.for_trl())
        out = tmp_path_factory.mktemp("out")
        trainer = grpo_trainer(
            server.target, texts, checked, steps=STEPS, temperature=TEMPERATURE, out=out, learning_rate=RATE
        )
        trainer.train()
    return checked, trainer


def test_every_log_probability_served_is_the_trainer_s_own(trained: tuple[Checked, Any]) -> None:
    checked, _ = trained
    assert len(checked.errors) == STEPS
    assert max(checked.errors) < TOLERANCE
    assert sum(checked.lengths) > STEPS * 64 * 32  # completions long enough for the figure to mean something


def test_the_reward_rises(trained: tuple[Checked, Any]) -> None:
    from paceline.demo.grpo.training import rewards

    found = rewards(trained[1])
    assert len(found) == STEPS
    assert sum(found[-2:]) > 2 * sum(found[:2]), found


def test_trl_s_log_has_the_figures_of_every_step(trained: tuple[Checked, Any]) -> None:
    log = [entry for entry in trained[1].state.log_history if "reward" in entry]
    assert [{f"rollout/{name}" for name in FIGURES} - entry.keys() for entry in log] == [set()] * STEPS
    assert all(entry["rollout/accept_length"] >= 1.0 for entry in log)
    assert all(0.0 < entry["rollout/rounds_per_token"] <= 1.0 for entry in log)


def test_the_server_has_the_weights_of_every_step_under_its_run_and_number(
    server: Any, trained: tuple[Checked, Any]
) -> None:
    server.drained()
    versions = list(dict.fromkeys(entry.trace.target_version for entry in server.buffer.replay(10_000)))
    run = versions[0]
    assert re.fullmatch("run-[0-9a-f]{6}", run)
    assert versions == [run, *(f"{run}+{step}" for step in range(1, STEPS))]
