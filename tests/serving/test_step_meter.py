"""Costs of decode steps: from one verified step to the next, if nothing else ran in between."""

import pytest
from paceline.serving.clock.step_meter import MAX_IN_FLIGHT, StepMeter, Verified


class Clock:
    """Shows the seconds it was set to."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def run(meter, clock, script):
    """Of `script`, l<batch>x<steps> launches, v<batch>@<ms> verifies at that time, p is a prefill."""
    found = []
    for action in script.split():
        if action == "p":
            meter.interrupt()
        elif action[0] == "l":
            meter.launch(*map(int, action[1:].split("x")))
        else:
            batch, at_ms = action[1:].split("@")
            clock.now_s = 100.0 + float(at_ms) / 1e3
            found.append(meter.verify(int(batch)))
    return found


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # One at a time: the first has nothing before it, the others what passed since the one before.
        ("p l2x3 v2@10 l2x0 v2@14 l2x5 v2@30", [(3, None), (0, 4.0), (5, 16.0)]),
        # A prefill in between, and whatever was waited for with it, is the cost of no step.
        ("l1x3 v1@10 p l1x3 v1@90 l1x3 v1@99", [(3, None), (3, None), (3, 9.0)]),
        # Overlap: the next step is launched before the last is read, and costs belong to the step read.
        ("l4x1 l4x2 v4@10 l4x0 v4@17 v4@19", [(1, None), (2, 7.0), (0, 2.0)]),
        ("l4x1 p v4@10 l4x2 v4@30 l4x2 v4@33", [(1, None), (2, None), (2, 3.0)]),
    ],
)
def test_a_step_costs_what_passed_since_the_step_before_unless_something_came_between(clock, script, expected):
    found = run(StepMeter(clock), clock, script)
    assert [(one.steps, one.cost_ms and pytest.approx(one.cost_ms)) for one in found] == expected


def test_a_verification_without_a_launch_is_counted_and_starts_again(clock):
    meter = StepMeter(clock)
    assert run(meter, clock, "v1@1") == [None]
    assert run(meter, clock, "l2x3 l2x4 v3@2 v2@3") == [None, None]
    assert meter.unmatched == 3
    assert run(meter, clock, "l2x1 v2@9") == [Verified(1, pytest.approx(6.0))]


def test_launches_that_are_never_verified_are_forgotten(clock):
    meter = StepMeter(clock)
    for steps in range(MAX_IN_FLIGHT + 2):
        meter.launch(1, steps)
    assert run(meter, clock, "v1@1")[0].steps == 2
