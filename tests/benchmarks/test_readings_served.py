"""The hooks of a clock, timed as the bench on a real server times them, and the table of what they took."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from paceline.benchmarks.measure.timed_clock import TimedStep, read_steps, timing_path
from paceline.benchmarks.readings_served import table

SCHEDULER = """
from types import SimpleNamespace
from paceline.serving.clock.step_clock import StepClock

clock, worker = StepClock(), SimpleNamespace(speculative_num_steps=3)
clock.start()
request = SimpleNamespace(output_ids=[], finished_reason=None, finished_output=False, is_retracted=False)
batch = SimpleNamespace(reqs=[request, request], forward_mode=SimpleNamespace(is_extend=lambda: False))
for _ in range(100):
    clock.before_forward(worker, batch)
    clock.after_activate(None, worker, 2)
    clock.before_resolve(None, None, batch)
    request.output_ids.extend([7, 7])
    clock.before_stream(None, batch.reqs, False)
cells = clock.counters().steps
assert [(cell.bucket, cell.draft_steps) for cell in cells] == [(2, 3)], cells
"""


def test_every_step_of_another_process_is_timed_and_counted_as_ever(tmp_path: Path) -> None:
    place = timing_path(tmp_path / "path", tmp_path / "steps.txt")
    subprocess.run([sys.executable, "-c", SCHEDULER], env={"PYTHONPATH": str(place)}, check=True)
    steps = read_steps(tmp_path / "steps.txt")
    assert [step.batch for step in steps] == [2] * 100
    assert all(0.0 < now.hooks_s <= now.at_s - last.at_s for last, now in pairwise(steps))


def test_the_share_is_of_steps_between_two_of_the_same_batch_and_within_the_span() -> None:
    steps = [
        TimedStep(1, 0.5, 9.0),  # before the span
        TimedStep(1, 1.00, 1e-5),
        TimedStep(1, 1.01, 2e-5),  # 10 ms, 20 us
        TimedStep(0, 1.50, 5e-5),  # no decode step
        TimedStep(1, 1.60, 8e-5),  # after something else
        TimedStep(1, 1.63, 4e-5),  # 30 ms, 40 us
        TimedStep(1, 9.0, 9.0),  # after the span
    ]
    *_, row = table([1], [(1.0, 2.0)], steps)
    assert row == "| 1 | 2 | 20.0 | 30.0 | 0.15% |"
