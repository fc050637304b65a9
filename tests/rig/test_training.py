"""Training within a time budget, on a model small enough to learn in a second."""

import pytest
import torch
from paceline.rig.models.training import TrainPlan, mean_loss, train
from transformers import LlamaConfig, LlamaForCausalLM

COUNTING = torch.arange(4000) % 16


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2))


def test_a_model_learns_to_count(model: LlamaForCausalLM) -> None:
    said: list[tuple[float, str]] = []
    before = mean_loss(model, COUNTING, 16)
    plan = TrainPlan(steps=400, seconds=20.0, batch_windows=8, window_tokens=16)
    steps = train(model, {"up": COUNTING, "down": -COUNTING % 16}, plan, lambda *words: said.append(words))
    assert before > 3.0
    assert mean_loss(model, COUNTING, 16) < 1.0
    assert mean_loss(model, -COUNTING % 16, 16) < 1.0
    assert len(said) in {steps // 10, steps // 10 + 1}  # every tenth step, and the last
    assert said[-1][0] == 1.0
    assert [done for done, _ in said] == sorted(done for done, _ in said)


def test_steps_end_the_training_too(model: LlamaForCausalLM) -> None:
    plan = TrainPlan(steps=3, seconds=1e9, window_tokens=16)
    assert train(model, {"up": COUNTING}, plan, lambda *_: None) == 3


def test_training_leaves_the_number_of_threads_as_it_was(model: LlamaForCausalLM) -> None:
    before = torch.get_num_threads()
    train(model, {"up": COUNTING}, TrainPlan(steps=1, window_tokens=16), lambda *_: None)
    assert torch.get_num_threads() == before


def test_the_smallest_budget_still_makes_a_step_and_weights_stay_float32(model: LlamaForCausalLM) -> None:
    assert train(model, {"up": COUNTING}, TrainPlan(seconds=1e-9, window_tokens=16), lambda *_: None) == 1
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_mean_loss_is_the_mean_over_windows_from_first_to_last(model: LlamaForCausalLM) -> None:
    stream = COUNTING[: 47 + 16]  # 48 windows of 16: one at every position
    windows = [stream[start : start + 16] for start in range(48)]
    with torch.no_grad():
        logprobs = [model(window[None]).logits[0, :-1].log_softmax(-1) for window in windows]
    losses = [-rows[range(15), window[1:]].mean() for rows, window in zip(logprobs, windows, strict=True)]
    assert mean_loss(model, stream, 16) == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)
