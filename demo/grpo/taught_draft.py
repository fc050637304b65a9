"""The draft that a run starts with: learnt once from rollouts of the target as it is before reinforcement learning."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...buffer.errors import PacelineError
from ...learner.delivery.version_folders import files_of
from ...learner.disk import write_folder
from ...rig.models.target import TargetModel, ensure_random_draft
from ...rig.progress import progress_bar
from .services import GrpoServices, grpo_services

#: Waves of rollouts that teach the draft, and the new tokens of each request.
WAVES = 8
TOKENS = 64
_LIMIT_S = 240.0
_POLL_S = 0.2


def ensure_taught_draft(
    data_dir: Path,
    *,
    runs: Path,
    target: TargetModel,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    console: Console,
) -> Path:
    """The draft's folder; taught at `temperature` if it is not there yet, which takes some minutes.

    PacelineError when a service fails, or no version went live.
    """
    folder = data_dir / "drafts" / f"{target.key}-rollouts-{temperature:g}"
    if not folder.exists():
        first = ensure_random_draft(target.folder, data_dir / "drafts" / target.key, seed=0)
        with grpo_services(runs / "teaching", target, first, console=console) as services:
            with progress_bar("teaching the first draft (once)", console) as report:
                for wave in range(WAVES):
                    _teach(services, prompts[wave::WAVES], temperature)
                    report(
                        (wave + 1) / WAVES, f"accept length {services.rollouts.metrics()['rollout/accept_length']:.2f}"
                    )
            _keep_live(services, folder)
    return folder


def _teach(services: GrpoServices, prompts: Sequence[Sequence[int]], temperature: float) -> None:
    """One wave of rollouts, and the learning round on them."""
    services.rollouts.generate(prompts, max_new_tokens=TOKENS, temperature=temperature)
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
        raise PacelineError(f"teaching the draft: got no live version after {WAVES} waves, expected one")
    files = files_of(board.rows[board.live].version)
    write_folder(folder, lambda place: [shutil.copy(file, place) for file in files])
