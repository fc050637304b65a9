"""The rollout function for TRL, with a trainer of its shape; the real trainer: tests/e2e/test_trl.py."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paceline.buffer.errors import BufferUnavailable, ConfigError
from paceline.policies.target_history import TargetHistory
from paceline.serving.rollouts.completion import Completion, VersionSpan
from paceline.serving.rollouts.trl import TrlRollouts, sampling_of, version_of

ARGS = {
    "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0,
    "max_completion_length": 5, "generation_kwargs": None,
}  # fmt: skip


class Door:
    """Answers every prompt with its length and counts what it was asked for."""

    def __init__(self) -> None:
        self.pushed: list[tuple[list[str], str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.learned = 0
        self.fault: Exception | None = None

    def generate(self, prompts, **sampling):
        self.asked.append(sampling)
        return [
            Completion(
                token_ids=(len(p), 9),
                logprobs=(-0.5, -0.25),
                target_versions=(VersionSpan("0", 0, 2),),
                accepted=1,
                rounds=1,
                seconds=1.0,
                finish="stop",
            )
            for p in prompts
        ]

    def sync_weights(self, named, version, *, folder):
        self.pushed.append(([name for name, _ in named], version, folder))
        return 0.1

    def metrics(self):
        return {"rollout/seconds": float(len(self.asked))}

    def learn(self):
        if self.fault:
            raise self.fault
        self.learned += 1


def trainer(step: int = 0, *, is_main: bool = True, model: Any = None, **args: Any) -> Any:
    calls = []
    accelerator = SimpleNamespace(
        unwrap_model=lambda model: model, is_main_process=is_main, wait_for_everyone=lambda: calls.append("wait")
    )
    return SimpleNamespace(
        state=SimpleNamespace(global_step=step),
        args=SimpleNamespace(**ARGS | args),
        model=model or torch.nn.Linear(2, 3),
        accelerator=accelerator,
        processing_class=lambda text: {"input_ids": [list(range(len(each))) for each in text]},
        chat_template=None,
        chat_template_kwargs={},
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        waits=calls,
    )


def test_trl_gets_its_three_columns_and_its_log_the_figures() -> None:
    door, with_model = Door(), trainer()
    made = TrlRollouts(door, folder=None, weights=None, learn=False, run="", sampling={"ignore_eos": True})(
        ["abc", "abc", "de"], with_model
    )
    assert made == {
        "prompt_ids": [[0, 1, 2], [0, 1, 2], [0, 1]],
        "completion_ids": [[3, 9], [3, 9], [2, 9]],
        "logprobs": [[-0.5, -0.25]] * 3,
    }
    expected = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "max_new_tokens": 5}
    assert door.asked == [{"ignore_eos": True, **expected}]
    assert dict(with_model._metrics["train"]) == {"rollout/seconds": [1.0]}


def test_weights_are_pushed_once_per_step_under_its_number() -> None:
    door, with_model = Door(), trainer(step=4)
    rollout = TrlRollouts(door, folder=None, weights=None, learn=False, run="", sampling={})
    for step in (4, 4, 5):
        with_model.state.global_step = step
        rollout(["a"], with_model)
    assert door.pushed == [(["weight", "bias"], "4", None), (["weight", "bias"], "5", None)]
    assert with_model.waits == ["wait", "wait"]


def test_no_two_starts_of_a_trainer_name_a_version_alike() -> None:
    door = Door()
    for _ in range(2):
        rollout = TrlRollouts(door, folder=None, weights=None, learn=False, run=None, sampling={})
        for step in (0, 1, 12):
            rollout(["a"], trainer(step))
    versions = [version for _, version, _ in door.pushed]
    assert len(set(versions)) == 6
    assert versions[1:3] == [f"{versions[0]}+1", f"{versions[0]}+12"]


def test_the_learner_follows_a_run_by_its_steps_and_the_next_run_after_it() -> None:
    steps = [version_of(run, step) for run in ("run-b", "run-a") for step in (0, 2, 11)]
    history = TargetHistory("target", max_age=2)
    history.observe(((place, 0), version) for place, version in enumerate([*steps, steps[4]]))
    assert history.trained == ("run-a", "run-a+2", "run-a+11")
    history = TargetHistory("target", max_age=5)
    history.observe(((place, 0), version) for place, version in enumerate(steps))
    assert history.trained == tuple(steps)


def test_only_the_main_process_pushes_and_asks_to_learn_and_all_wait_for_it() -> None:
    door, other = Door(), trainer(is_main=False)
    TrlRollouts(door, folder=None, weights=None, learn=True, run="", sampling={})(["a"], other)
    assert (door.pushed, door.learned, other.waits, len(door.asked)) == ([], 0, ["wait"], 1)


def test_evaluation_is_logged_as_evaluation() -> None:
    door, evaluated = Door(), trainer()
    evaluated.model.eval()
    TrlRollouts(door, folder=None, weights=None, learn=False, run="", sampling={})(["a"], evaluated)
    assert (list(evaluated._metrics["train"]), list(evaluated._metrics["eval"])) == ([], ["rollout/seconds"])


def test_a_learning_round_is_asked_for_at_every_step_and_a_lost_redis_costs_no_rollout(caplog) -> None:
    door = Door()
    rollout = TrlRollouts(door, folder=None, weights=None, learn=True, run="", sampling={})
    rollout(["a"], trainer())
    door.fault = BufferUnavailable("gone")
    assert rollout(["a"], trainer(1))["completion_ids"] == [[1, 9]]
    assert door.learned == 1
    assert "no learning round was asked for: gone" in caplog.text


def test_other_weights_than_the_state_dict_can_be_pushed(tmp_path) -> None:
    door = Door()
    TrlRollouts(door, folder=tmp_path, weights=lambda _: [("merged", torch.ones(1))], learn=False, run="", sampling={})(
        ["a"], trainer()
    )
    assert door.pushed == [(["merged"], "0", tmp_path)]


def test_conversations_go_through_the_chat_template() -> None:
    door, chatting = Door(), trainer()
    asked = {}

    class Tokenizer:
        def apply_chat_template(self, **given):
            asked.update(given)
            return {"input_ids": [[1, 2]]}

    chatting.processing_class, chatting.chat_template_kwargs = Tokenizer(), {"enable_thinking": False}
    said = [{"role": "user", "content": "hi"}]
    assert TrlRollouts(door, folder=None, weights=None, learn=False, run="", sampling={})([said], chatting)[
        "prompt_ids"
    ] == [[1, 2]]
    assert (asked["conversation"], asked["add_generation_prompt"], asked["enable_thinking"]) == ([said], True, False)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (
            lambda: TrlRollouts(Door(), folder=None, weights=None, learn=False, run="", sampling={"temperature": 1.0}),
            "expected GRPOConfig to say temperature",
        ),
        (
            lambda: TrlRollouts(Door(), folder=None, weights=None, learn=False, run="", sampling={"max_new_tokens": 1}),
            "got max_new_tokens, expected GRPOConfig to say max_completion_length",
        ),
        (lambda: sampling_of(SimpleNamespace(**ARGS | {"generation_kwargs": {"a": 1}})), "got {'a': 1}, expected none"),
        (
            lambda: TrlRollouts(Door(), folder=None, weights=None, learn=False, run="", sampling={})(
                ["a"], trainer(model=SimpleNamespace(peft_config={}))
            ),
            "got a model with adapters, expected one whose weights have the names of its checkpoint",
        ),
    ],
)
def test_what_would_train_on_wrong_rollouts_is_refused(act: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        act()
    assert says in str(caught.value)
