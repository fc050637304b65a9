"""The figures of a step, against their definitions."""

import random

import pytest
from paceline.serving.rollouts.completion import Completion
from paceline.serving.rollouts.step_figures import draft_lag, rollout_figures, tail_seconds


def completion(tokens: int, accepted: int | None, rounds: int | None, seconds: float) -> Completion:
    return Completion(
        token_ids=(1,) * tokens,
        logprobs=(0.0,) * tokens,
        target_versions=(),
        accepted=accepted,
        rounds=rounds,
        seconds=seconds,
        finish="stop",
    )


def test_the_accept_length_is_pooled_over_rounds_with_the_bonus_token() -> None:
    done = [completion(10, 6, 3, 1.0), completion(4, 0, 4, 2.0), completion(1, 0, 0, 0.5)]
    figures = rollout_figures(done, 2.5)
    assert figures["rollout/accept_length"] == pytest.approx(1 + 6 / 7)
    assert figures["rollout/rounds_per_token"] == pytest.approx(7 / 15)
    assert figures["rollout/seconds"] == 2.5


def test_a_server_that_does_not_speculate_has_no_accept_length() -> None:
    assert sorted(rollout_figures([completion(3, None, None, 1.0)], 1.0)) == ["rollout/seconds", "rollout/tail_seconds"]


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 20, 64])
def test_the_tail_begins_when_nine_tenths_have_ended(count: int) -> None:
    rng = random.Random(count)
    ends = [rng.uniform(1.0, 9.0) for _ in range(count)]
    begins = min(at for at in ends if sum(end <= at for end in ends) >= 0.9 * count)
    assert tail_seconds(ends) == pytest.approx(max(ends) - begins)


@pytest.mark.parametrize(
    ("draft_target", "served", "lag"),
    [
        ("3", ["3"], 0),
        ("3", ["3", "4", "5"], 2),
        ("a", ["a", "b", "a", "c"], 1),  # the last time that it was in force
        ("1", ["3", "4"], 3),  # learnt before this trainer began, at whole numbers
        ("old", ["3", "4"], None),
        ("9", ["3", "4"], None),
        ("3", [], None),
    ],
)
def test_lag_counts_the_target_versions_since_the_draft_s_own(
    draft_target: str, served: list[str], lag: int | None
) -> None:
    assert draft_lag(draft_target, served) == lag
