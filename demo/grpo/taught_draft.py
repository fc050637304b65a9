"""The draft that a run starts with: learnt once from rollouts of the target as it is before reinforcement learning."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...buffer.errors import PacelineError
from ...learner.delivery.version_folders import files_of
from ...learner.disk import write_folder
from ...rig.models.target import TargetModel
from ...rig.progress import progress_bar
from .services import GrpoServices, grpo_services
from .tasks import GrpoTask

_LIMIT_S = 240.0
_POLL_S = 0.2


def ensure_taught_draft(
    data_dir: Path,
    *,
    runs: Path,
    target: TargetModel,
    first: Path,
    task: GrpoTask,
    temperature: float,
    console: Console,
) -> Path:
    """The draft's folder; made of `first` at `temperature` if it is not there yet, which takes some minutes.

    PacelineError when a service fails, or no version went live.
    """
    folder = data_dir / "drafts" / f"{target.key}-rollouts-{temperature:g}"
    if not folder.exists():
        with grpo_services(runs / "teaching", target, first, console=console) as services:
            with progress_bar("teaching the first draft (once)", console) as report:
                for wave in range(task.waves):
                    _teach(services, task.prompts[wave :: task.waves], task.rollout.tokens, temperature)
                    length = services.rollouts.metrics()["rollout/accept_length"]
                    report((wave + 1) / task.waves, f"accept length {length:.2f}")
            _keep_live(services, folder)
    return folder


def _teach(services: GrpoServices, prompts: Sequence[Sequence[int]], tokens: int, temperature: float) -> None:
    """One wave of rollouts, and the learning round on them."""
    services.rollouts.generate(prompts, max_new_tokens=tokens, temperature=temperature)
    services.rollouts.learn()
    deadline_s = time.monotonic() + _LIMIT_S
    while services.reader.traces().pending or services.reader.is_learning(1):
        if time.monotonic() > deadline_s:
            raise PacelineError(
                f"teaching the draft: got {services.reader.traces()} after {_LIMIT_S:.0f} s, expected none pending"
            )
        time.sleep(_POLL_S)


def _keep_live(services: GrpoServices, folder: Path) -> None:
    board = services.board.read()
    if board.live is None:
        raise PacelineError("teaching the draft: got no live version, expected one")
    files = files_of(board.rows[board.live].version)
    write_folder(folder, lambda place: [shutil.copy(file, place) for file in files])
