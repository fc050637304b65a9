"""The record of a run: its rollouts, every draft it made, and its target at three steps.

<folder>/traces.bin               rollouts, in the order of the stream
<folder>/drafts/0, 1, 2, ...      0 is the first draft; the others are versions of the board
<folder>/targets/<step>           weights file of the target before that step
<folder>/run.json                 steps, versions, what the learner did; written last: with it the folder is whole
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...buffer.board.member_status import LifeSaid
from ...buffer.board.version import BoardState
from ...buffer.stream.trace import DraftTrace
from ...learner.delivery.version_folders import files_of
from ...policies.verdict_words import sentence
from ...rig.runs import machine
from ...rig.trace_file import write_traces
from ...serving.rollouts.weights import write_folder
from .services import GrpoServices

TRACES = "traces.bin"
DRAFTS = "drafts"
TARGETS = "targets"
RUN = "run.json"


class KeptTargets:
    """Writes the target's weights before the first, the middle and the last step; nothing without a folder."""

    def __init__(self, folder: Path | None, steps: int) -> None:
        self._folder = folder
        self._steps = {0, steps // 2, steps - 1}

    def __call__(self, step: int, trainer: Any) -> None:
        """Called before the rollouts of every step."""
        if self._folder is not None and step in self._steps:
            write_folder(trainer.model.state_dict().items(), self._folder / TARGETS / str(step))


def record_run(
    folder: Path, services: GrpoServices, *, first: Path, traces: Sequence[DraftTrace], notes: Mapping[str, object]
) -> None:
    """Write the record of a run that has just ended, while its services still run; `first` is its first draft."""
    folder.mkdir(parents=True, exist_ok=True)
    board = services.board.read()
    life = services.reader.learner_status().life or LifeSaid()
    write_traces(folder / TRACES, {}, traces)
    shutil.copytree(first, folder / DRAFTS / "0")
    for number, row in board.rows.items():
        if number:
            place = folder / DRAFTS / str(number)
            place.mkdir()
            for file in files_of(row.version):
                shutil.copy(file, place)
    kept = {"rounds": life.rounds, "rests": life.rests, "optimiser_steps": life.optimiser_steps, **life.traces}
    written = {**notes, "versions": _versions(board), "learner": kept, "machine": machine()}
    (folder / RUN).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def _versions(board: BoardState) -> list[dict[str, object]]:
    """Every version but the first: the newest target it was trained on, what became of it, and why."""
    return [
        {"number": number, "target": row.version.target_version, "state": row.state.value, "why": sentence(row.why)}
        for number, row in board.rows.items()
        if number
    ]
