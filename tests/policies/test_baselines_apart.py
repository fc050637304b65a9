"""Baselines are research: nothing that production imports loads one, and production refuses to train on one."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from paceline.buffer.errors import ConfigError
from paceline.learner.training.plan import TrainingPlan
from paceline.policies.objectives.baselines.names import Baseline

HOUSE = Path(__file__).resolve().parents[2]
PRODUCTION = ("buffer", "policies", "drafts", "serving", "learner", "dashboards", "rig", "demo")
BASELINES = ("policies", "objectives", "baselines")


def reached(file: Path, root: Path) -> Iterator[tuple[str, ...]]:
    """Module names, from the root, that a file imports relatively, at its top or late."""
    package = file.relative_to(root).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + tuple((node.module or "").split("."))
            yield from ((*base, alias.name) for alias in node.names)


def importers_of_baselines(root: Path) -> list[str]:
    """Production files that import a baseline module, those of the baselines' own folder apart."""
    files = [file for room in PRODUCTION for file in sorted((root / room).rglob("*.py"))]
    own = root.joinpath(*BASELINES)
    return [
        file.relative_to(root).as_posix()
        for file in files
        if own not in file.parents and any(name[:3] == BASELINES for name in reached(file, root))
    ]


def test_no_production_file_imports_a_baseline() -> None:
    assert importers_of_baselines(HOUSE) == []


@pytest.mark.parametrize(
    "line",
    [
        "from ..objectives.baselines.group import group_losses",
        "from .baselines import group",
        "def f():\n    from .baselines.names import Baseline",
        "from ..objectives import baselines",
    ],
)
def test_an_import_of_a_baseline_would_be_seen(tmp_path: Path, line: str) -> None:
    planted = tmp_path / "policies" / "objectives" / "planted.py"
    planted.parent.mkdir(parents=True)
    planted.write_text(line)
    assert importers_of_baselines(tmp_path) == ["policies/objectives/planted.py"]


def test_a_learner_and_a_replica_run_without_loading_a_baseline() -> None:
    statement = "import paceline.learner.loop, paceline.serving.pacing.choice, sys"
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
