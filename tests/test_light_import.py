"""Importing paceline stays cheap: no server, no queue and no tensor library comes with it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("redis", "torch", "celery", "mlflow", "sglang", "transformers")


def heavy_after(*modules: str) -> list[str]:
    """Return the heavy packages that a fresh interpreter has loaded after importing `modules`."""
    code = f"import sys, {', '.join(modules)}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_command_line_and_what_a_reader_of_traces_needs_load_nothing_heavy() -> None:
    light = (
        "cli",
        "buffer.stream.trace",
        "buffer.board.version",
        "policies.promotion",
        "serving.config",
        "learner.config",
    )
    assert heavy_after("paceline", *(f"paceline.{name}" for name in light)) == []


def test_the_courier_process_never_loads_torch() -> None:
    folders = [ROOT / "serving" / name for name in ("wire", "courier", "watch")]
    files = [path for folder in folders for path in folder.glob("[!_]*.py")]
    assert heavy_after(*(f"paceline.serving.{path.parent.name}.{path.stem}" for path in files)) == ["redis"]
