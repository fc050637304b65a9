"""Baselines are research: nothing that production imports loads one, and production refuses to train on one."""

import subprocess
import sys

import pytest
from paceline.buffer.errors import ConfigError
from paceline.learner.training.plan import TrainingPlan
from paceline.policies.objectives.baselines.names import Baseline


def test_a_learner_and_a_replica_run_without_loading_a_baseline() -> None:
    statement = "import paceline.learner.round.loop, paceline.serving.pacing.choice, sys"
    report = "print(*[name for name in sys.modules if 'objectives' in name or 'benchmarks' in name])"
    done = subprocess.run([sys.executable, "-c", f"{statement}\n{report}"], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix("paceline.policies.objectives") for name in done.stdout.split()}
    assert loaded == {"", ".acceptance", ".losses", ".names", ".spec", ".table"}


def test_names_of_objectives_are_read_without_torch() -> None:
    report = "import paceline.policies.objectives.names, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("name", list(Baseline))
def test_production_refuses_to_train_on_a_baseline(name: Baseline) -> None:
    with pytest.raises(ConfigError, match=f"objective: got .*{name}.*expected one of .*committed.*matched"):
        TrainingPlan(objective=name)
