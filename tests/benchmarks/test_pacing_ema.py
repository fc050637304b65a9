"""SGLang's rule restated: the same choices as the installed SGLang's own class, batch by batch."""

import numpy as np
import pytest
from paceline.benchmarks.pacing_baselines.ema import SGLANG_SLOTS, EmaPacing, EmaSlot


def served(rng: np.random.Generator, steps: int, batch: int, level: float) -> list[int]:
    return np.minimum(rng.poisson(level, batch), steps).tolist()


@pytest.fixture(scope="module")
def theirs():
    """SGLang's module; not in every environment that runs these tests."""
    return pytest.importorskip("sglang.srt.speculative.adaptive_spec_params")


@pytest.mark.parametrize("initial", [0, 1, 3, 6])
@pytest.mark.parametrize(
    "config",
    [
        {"candidate_steps": [1, 3, 5, 7]},
        {"candidate_steps": [0, 1, 3], "down_hysteresis": 0.0, "ema_alpha": 0.5},
        {"candidate_steps": [0, 2, 4], "down_hysteresis": 0.3, "up_hysteresis": -0.6, "update_interval": 1},
        {"candidate_steps": [1, 2, 3, 4, 5], "ceiling_coeff": 1.1, "warmup_batches": 0, "up_hysteresis": -0.4},
        {"candidate_steps": [0, 3], "update_interval": 3, "warmup_batches": 2},
        {"candidate_steps": [0]},
    ],
)
def test_every_choice_is_that_of_sglang(theirs, config: dict, initial: int) -> None:
    rng = np.random.default_rng(0)
    slot = theirs.AdaptiveStepSlot(initial, config)
    renamed = {"candidate_steps": "candidates", "ema_alpha": "alpha"}
    ours = EmaPacing(initial, {1: EmaSlot(**{renamed.get(k, k): v for k, v in config.items()})})
    chosen = set()
    for batch_number in range(600):
        assert ours.steps(4) == slot.current_steps
        accepted = served(rng, slot.current_steps, 4, 1.5 + 1.5 * np.sin(batch_number / 40))
        slot.update(accepted)
        ours.observe(4, slot.current_steps, accepted, 1.0)
        chosen.add(slot.current_steps)
    assert len(chosen) > 1 or len(config["candidate_steps"]) == 1


def test_the_default_table_is_sglangs(theirs) -> None:
    defaults = theirs.AdaptiveStepSlot(1, {"candidate_steps": [1]})
    for begin, slot in SGLANG_SLOTS.items():
        config = theirs.DEFAULT_ADAPTIVE_CONFIG[str(begin)]
        assert list(slot.candidates) == config["candidate_steps"]
        assert (slot.up_hysteresis, slot.down_hysteresis) == (config["up_hysteresis"], config["down_hysteresis"])
        assert slot.ceiling_coeff == config["ceiling_coeff"]
        assert (slot.alpha, slot.update_interval) == (defaults.ema_alpha, defaults.update_interval)
        assert slot.warmup_batches == defaults.warmup_batches
    assert len(SGLANG_SLOTS) == len(theirs.DEFAULT_ADAPTIVE_CONFIG)


def test_slots_learn_apart_and_take_the_batches_from_their_beginning_on() -> None:
    policy = EmaPacing(3)
    for _ in range(100):
        policy.observe(8, 3, [0] * 8, 1.0)
    assert (policy.steps(7), policy.steps(31), policy.steps(32), policy.steps(64)) == (3, policy.steps(8), 1, 0)
    assert policy.steps(8) < 3


def test_a_batch_without_requests_counts_for_nothing() -> None:
    policy = EmaPacing(3, {1: EmaSlot((1, 3), warmup_batches=0, update_interval=1)})
    policy.observe(1, 3, [], 1.0)
    assert policy.steps(1) == 3
    for _ in range(10):
        policy.observe(1, 3, [0], 1.0)
    assert policy.steps(1) == 1
