"""What the benchmark of the readings acts is a decode step to the clock, and what it makes is a whole heartbeat."""

from paceline.benchmarks.readings_cost import ACCEPTED, STEPS, ActedStep, beats
from paceline.serving.clock.step_clock import StepClock
from paceline.serving.courier.heartbeat import MAX_BEAT_BYTES


def test_an_acted_step_is_one_that_the_clock_counts():
    clock = StepClock()
    step = ActedStep(8, clock, step_ms=0.0)
    for _ in range(5):
        step.run()
    (cell,) = clock.counters().steps
    assert (cell.bucket, cell.draft_steps, cell.steps, cell.requests) == (8, STEPS, 5, 40)
    assert cell.tokens == 5 * 8 * (ACCEPTED + 1)
    assert 0.0 < step.hooks_s < 1.0


def test_a_heartbeat_is_made_of_full_tables():
    made_ms, size = beats()
    assert len(made_ms) > 100
    assert 1500 < size < MAX_BEAT_BYTES
