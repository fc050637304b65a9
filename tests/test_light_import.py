"""Importing paceline stays cheap: no server, no queue and no tensor library comes with it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("redis", "torch", "celery", "mlflow", "sglang", "transformers")
LIGHT = (
    "paceline",
    "paceline.cli",
    "paceline.buffer.trace",
    "paceline.buffer.version",
    "paceline.buffer.errors",
    "paceline.policies.acceptance",
    "paceline.policies.promotion",
    "paceline.serving.config",
    "paceline.learner.config",
)


def heavy_after(statement: str) -> list[str]:
    """Heavy packages a fresh interpreter has loaded after `statement`."""
    report = f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{statement}\nimport sys\n{report}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_module_loads_nothing_heavy(module: str) -> None:
    assert heavy_after(f"import {module}") == []


@pytest.mark.parametrize("folder", ["wire", "courier", "watch"])
def test_the_courier_process_never_loads_torch(folder: str) -> None:
    modules = sorted(path.stem for path in (ROOT / "serving" / folder).glob("*.py") if path.stem != "__init__")
    statement = "; ".join(f"import paceline.serving.{folder}.{module}" for module in modules)
    assert set(heavy_after(statement)) <= {"redis"}


def test_a_heavy_package_would_be_seen() -> None:
    assert heavy_after("import redis") == ["redis"]
