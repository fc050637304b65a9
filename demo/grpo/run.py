"""One run: target, first draft, services, trainer, table."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from ...buffer.errors import ConfigError, PacelineError
from ...rig.models.small_draft import small_draft
from ...rig.models.smollm2 import ensure_smollm2
from ...rig.models.target import TargetModel, ensure_random_draft, ensure_target
from ...rig.models.training import TrainPlan
from ...rig.processes import ending_signals
from ...rig.progress import progress_bar
from ...rig.runs import machine, run_folder
from .notes import NotedRollouts
from .recording import KeptTargets, record_run
from .services import GrpoServices, grpo_services
from .steps import StepRow, accept_lengths, step_rows, steps_table
from .tasks import GrpoTask, arithmetic_task, digits_task
from .taught_draft import ensure_taught_draft
from .training import grpo_trainer, load_model, rewards

_SETTLE_S = 30.0
_POLL_S = 0.2
_TABLE_WIDTH = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoOptions:
    """The options of the command line."""

    is_chat: bool  # the chat model, rewarded for right answers; else the small target, rewarded for digits
    steps: int
    temperature: float
    rejection: bool
    learning_rate: float
    taught_at: float | None  # temperature of the answers that taught the first draft; None: that of the rollouts
    seed: int
    data_dir: Path
    json: Path | None
    record: Path | None  # folder to keep the run in; must not exist


def run_grpo(options: GrpoOptions) -> list[StepRow]:
    """Train, print the table and, if `options.json` is set, write it there. Call it in the main thread.

    Ctrl-C, SIGTERM and SIGHUP end it early. Raises ConfigError for bad input before anything is started, and
    PacelineError when a service fails. Training the target and teaching the first draft is done once.
    """
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise ConfigError(f"--json {options.json}: got a folder that does not exist, expected an existing one")
    if options.record is not None and options.record.exists():
        raise ConfigError(f"--record {options.record}: got a folder that exists, expected a new one")
    disable_progress_bar()  # of models being read, across our own
    console = Console()
    with ending_signals():
        target, first, task = _asked(options, console)
        with run_folder(options.data_dir / "runs") as folder:
            draft = ensure_taught_draft(
                options.data_dir,
                runs=folder,
                target=target,
                first=first,
                task=task,
                temperature=options.temperature if options.taught_at is None else options.taught_at,
                console=console,
            )
            rows = _train(options, folder=folder, target=target, draft=draft, task=task, console=console)
    wide = console if console.width >= _TABLE_WIDTH else Console(width=_TABLE_WIDTH)
    wide.print(steps_table(rows))  # whole, in a file too
    if options.json is not None:
        report_json = {"steps": [asdict(row) for row in rows], "options": _shown(options), "machine": machine()}
        options.json.write_text(json.dumps(report_json, indent=2) + "\n", encoding="utf-8")
    return rows


def _asked(options: GrpoOptions, console: Console) -> tuple[TargetModel, Path, GrpoTask]:
    """The target, its untrained draft, and what is asked of it; minutes the first time."""
    with progress_bar("the target (once)", console) as report:
        if options.is_chat:
            chat = ensure_smollm2(options.data_dir, report)
            task = arithmetic_task(chat.folder, options.data_dir, options.seed)
            return chat, small_draft(chat, options.data_dir), task
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    draft = ensure_random_draft(target.folder, options.data_dir / "drafts" / target.key, seed=0)
    return target, draft, digits_task(target.folder, options.seed)


def _train(
    options: GrpoOptions, *, folder: Path, target: TargetModel, draft: Path, task: GrpoTask, console: Console
) -> list[StepRow]:
    flags = ["--speculative-use-rejection-sampling"] if options.rejection else []
    flags += ["--random-seed", str(options.seed)]
    kept = KeptTargets(options.record, options.steps)
    with grpo_services(folder / "training", target, draft, console=console, more_flags=flags) as services:
        # A run of services of its own; weights as a file, since those of a chat model take minutes as text in requests.
        rollout = services.rollouts.for_trl(folder=folder / "policy", learn=True, run="")
        noted = NotedRollouts(rollout, services.rollouts, load_model(target.folder), kept)
        trainer = grpo_trainer(
            target.folder,
            task.texts,
            noted,
            reward=task.reward,
            rollout=task.rollout,
            steps=options.steps,
            temperature=options.temperature,
            out=folder / "trl",
            learning_rate=options.learning_rate,
            seed=options.seed,
        )
        trainer.train()
        _settle(services)
        traces = [entry.trace for entry in services.buffer.replay(100_000)]
        lengths = accept_lengths(traces, draft, target.folder)
        rows = step_rows(noted.notes, rewards(trainer), lengths)
        if options.record is not None:
            notes = {"options": _shown(options), "steps": [*map(asdict, rows)], "prompts": _first(task)}
            record_run(options.record, services, first=draft, traces=traces, notes=notes)
    return rows


def _first(task: GrpoTask) -> list[list[int]]:
    """Return as many as one step has; a record keeps these."""
    return [list(prompt) for prompt in task.prompts[: task.rollout.batch // task.rollout.group]]


def _settle(services: GrpoServices) -> None:
    """Wait until the last traces have left the server."""
    deadline_s = time.monotonic() + _SETTLE_S
    while (said := services.reader.replica_status()).open or said.queued:
        if time.monotonic() > deadline_s:
            raise PacelineError(f"traces: got some that wait in the server after {_SETTLE_S:.0f} s, expected none")
        time.sleep(_POLL_S)


def _shown(options: GrpoOptions) -> dict[str, object]:
    names = ("is_chat", "steps", "temperature", "rejection", "learning_rate", "taught_at", "seed")
    return {name: getattr(options, name) for name in names}
