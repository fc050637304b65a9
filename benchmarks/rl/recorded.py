"""One recorded run of `python -m paceline.demo.grpo`, made by that program and kept; see demo/grpo/recording.py."""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...buffer.stream.trace import DraftTrace
from ...rig.processes import run_to_its_end
from ...rig.trace_file import read_traces

_RUN = "run.json"
_TRACES = "traces.bin"
_DRAFTS = "drafts"
_TARGETS = "targets"
_SHOWN_LINES = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What is asked of one run."""

    learning_rate: float
    seed: int
    steps: int
    temperature: float
    taught_at: float  # temperature of the answers that taught the first draft

    @property
    def name(self) -> str:
        """Of its folder."""
        run = f"rate-{self.learning_rate:g}-seed-{self.seed}-steps-{self.steps}-t-{self.temperature:g}"
        return run if self.taught_at == self.temperature else f"{run}-taught-at-{self.taught_at:g}"


@dataclass(frozen=True)
class RecordedRun:
    """A whole record."""

    folder: Path

    @cached_property
    def notes(self) -> Mapping[str, Any]:
        """Steps, versions, prompts, what the learner did."""
        found: Mapping[str, Any] = json.loads((self.folder / _RUN).read_text(encoding="utf-8"))
        return found

    @property
    def saved_targets(self) -> dict[int, Path]:
        """Step -> folder of the target's weights before it."""
        steps = sorted(int(place.name) for place in (self.folder / _TARGETS).iterdir())
        return {step: self.folder / _TARGETS / str(step) for step in steps}

    def traces(self) -> dict[int, list[DraftTrace]]:
        """Step -> its rollouts."""
        found: dict[int, list[DraftTrace]] = {step: [] for step in range(len(self.notes["steps"]))}
        for trace in read_traces(self.folder / _TRACES):
            found[int(trace.target_version)].append(trace)
        return found

    def draft(self, number: int) -> Path:
        """Folder of a version; 0 is the draft that the run began with."""
        return self.folder / _DRAFTS / str(number)

    def adapted_once(self, step: int) -> int:
        """The version that had learnt from the first step alone; before it was made, the first draft."""
        return min((number for number, made_at in self._made() if made_at < step), default=0)

    def newest(self, step: int) -> int:
        """The newest version that had learnt from earlier steps alone, whether or not it was let serve."""
        return max((number for number, made_at in self._made() if made_at < step), default=0)

    def _made(self) -> list[tuple[int, int]]:
        """Every later version and the step of the newest rollouts that it learnt from."""
        return [(row["number"], int(row["target"])) for row in self.notes["versions"]]


def ensure_run(plan: RunPlan, folder: Path, data_dir: Path) -> RecordedRun:
    """The run kept in `folder`, else a new one, minutes on both cores. SystemExit when the demo fails."""
    if not (folder / _RUN).exists():
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
        folder.parent.mkdir(parents=True, exist_ok=True)
        _make(plan, folder, data_dir)
    return RecordedRun(folder)


def _make(plan: RunPlan, folder: Path, data_dir: Path) -> None:
    options = {
        "--steps": plan.steps,
        "--temperature": plan.temperature,
        "--taught-at": plan.taught_at,
        "--learning-rate": plan.learning_rate,
        "--seed": plan.seed,
        "--data-dir": data_dir,
        "--record": folder,
    }
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "paceline.demo.grpo", *words]
    log = folder.with_suffix(".log")
    code = run_to_its_end(command, log)
    if code:
        end = "\n".join(log.read_text(encoding="utf-8").splitlines()[-_SHOWN_LINES:])
        raise SystemExit(f"{plan.name}: the run ended with exit code {code}; the end of {log}:\n{end}")
