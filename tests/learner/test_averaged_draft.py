"""The moving average of a draft's weights: what it is, when it starts, and that a restart does not lose it."""

import numpy as np
import pytest
import torch
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan

DECAY = 0.7


def weights_of(draft) -> dict[str, np.ndarray]:
    return {name: tensor.double().numpy().copy() for name, tensor in draft.state_dict().items()}


@pytest.fixture
def make_traces(make_trace):
    return lambda seeds: [make_trace(seed, feature_dim=48, rounds=3, context_len=3) for seed in seeds]


@pytest.fixture
def plan() -> TrainingPlan:
    return TrainingPlan(passes=1, batch_traces=2, ema_decay=DECAY)


def test_the_average_moves_a_little_behind_every_applied_step(make_traces, make_draft, plan):
    trainer = DraftTrainer(make_draft(1), plan)
    average = weights_of(trainer.draft)
    for trace in make_traces(range(4)):
        assert trainer.fit([trace], []).steps == 1
        now = weights_of(trainer.draft)
        average = {name: DECAY * average[name] + (1 - DECAY) * now[name] for name in average}
    for name, served in weights_of(trainer.served).items():
        np.testing.assert_allclose(served, average[name], rtol=1e-5, atol=1e-7)
        assert np.abs(served - now[name]).max() > 1e-5
    assert trainer.served.embedding_WH is trainer.draft.embedding_WH
    assert not any(parameter.requires_grad for parameter in trainer.served.parameters())


def test_a_step_that_is_not_applied_does_not_move_the_average(make_trace, make_draft, plan):
    trainer = DraftTrainer(make_draft(1), plan)
    before = weights_of(trainer.served)
    spoilt = make_trace(1, feature_dim=48, context_len=3)
    features = np.full_like(spoilt.features, np.nan)
    assert trainer.fit([make_trace(1, feature_dim=48, context_len=3, features=features)], []).skipped_steps == 1
    assert all(np.array_equal(before[name], now) for name, now in weights_of(trainer.served).items())


def test_without_an_average_the_draft_itself_is_served(make_draft):
    trainer = DraftTrainer(make_draft(1), TrainingPlan())
    assert trainer.served is trainer.draft


def test_a_restart_goes_on_with_the_average_it_saved(tmp_path, make_traces, make_draft, plan):
    trainer, resumed = (DraftTrainer(make_draft(1), plan) for _ in range(2))
    trainer.fit(make_traces(range(5)), [])
    trainer.save(tmp_path / "state.pt")
    resumed.load(tmp_path / "state.pt")
    for one in (trainer, resumed):
        one.fit(make_traces(range(5, 9)), [])
    expected = weights_of(trainer.served)
    assert all(np.array_equal(expected[name], now) for name, now in weights_of(resumed.served).items())


def test_a_state_saved_without_an_average_starts_one_from_its_draft(tmp_path, make_traces, make_draft, plan):
    trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=1))
    trainer.fit(make_traces(range(3)), [])
    trainer.save(tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    assert set(saved) == {"draft", "optimiser", "random", "applied_steps", "is_cold"}
    resumed = DraftTrainer(make_draft(1), plan)
    resumed.load(tmp_path / "state.pt")
    expected = weights_of(trainer.draft)
    assert all(np.array_equal(expected[name], now) for name, now in weights_of(resumed.served).items())


def test_a_state_saved_with_an_average_loads_where_none_is_kept(tmp_path, make_traces, make_draft, plan):
    trainer = DraftTrainer(make_draft(1), plan)
    trainer.fit(make_traces(range(3)), [])
    trainer.save(tmp_path / "state.pt")
    plain = DraftTrainer(make_draft(1), TrainingPlan())
    plain.load(tmp_path / "state.pt")
    expected = weights_of(trainer.draft)
    assert all(np.array_equal(expected[name], now) for name, now in weights_of(plain.served).items())
