"""A prediction's accept length and standard error, against numpy over prompts one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies.acceptance import Tally
from paceline.policies.prediction import Prediction, prediction

ROWS = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 3), st.integers(0, 40), st.integers(0, 20)), max_size=60)


@given(ROWS)
def test_prompts_are_what_is_drawn(rows) -> None:
    replayed = [(prompt, f"{prompt}-{answer}", Tally(a, r)) for prompt, answer, a, r in rows]
    counted = [(prompt, answer, a, r) for prompt, answer, a, r in rows if r]
    prompts = sorted({prompt for prompt, *_ in counted})
    accepted = np.array([sum(a for p, _, a, _ in counted if p == prompt) for prompt in prompts], float)
    rounds = np.array([sum(r for p, _, _, r in counted if p == prompt) for prompt in prompts], float)
    found = prediction(replayed)
    if len(prompts) < 8:
        assert found is None
        return
    ratio = accepted.sum() / rounds.sum()
    error = np.sqrt(len(prompts) * np.var(accepted - ratio * rounds, ddof=1)) / rounds.sum()
    assert found == Prediction(
        pytest.approx(1.0 + ratio), pytest.approx(error, abs=1e-6), len({(p, answer) for p, answer, *_ in counted})
    )


def test_its_figures_say_what_it_rests_on() -> None:
    expected = {"predicted": 2.5, "predicted_noise": 0.196, "predicted_requests": 30}
    assert Prediction(2.5, 0.1, 30).figures == pytest.approx(expected, abs=1e-4)
