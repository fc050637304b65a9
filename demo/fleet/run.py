"""One run: target, services, traffic that shifts, a report."""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from ...rig.deployment import LocalDeployment
from ...rig.models.corpus import CERTAIN_DOMAINS, load_corpus
from ...rig.models.target import TargetModel, ensure_random_draft, ensure_target, load_tokenizer
from ...rig.models.training import TrainPlan
from ...rig.processes import ending_signals
from ...rig.progress import progress_bar
from ...rig.prompts import Prompt, domain_prompts
from ...rig.runs import run_folder
from ..lossless import lossless_check
from ..run import CHECKED_REQUESTS, MIN_NEW_TRACES, SETTLE_S
from ..stages import measured, settle, watched_traffic
from .picture import write_picture
from .report import FleetRun, as_json, fleet_run, print_closing
from .services import Fleet, fleet_services
from .watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The options of the command line."""

    requests: int
    concurrency: int
    max_tokens: int
    replicas: int
    data_dir: Path
    json: Path | None
    seed: int
    python_of_one: Path | None  # interpreter of the last server; None: as of the others


def run_fleet(options: FleetOptions) -> FleetRun:
    """Run it, print the results, and write the report with its picture beside it. Leaves nothing running.

    Ctrl-C, SIGTERM and SIGHUP end it early; call it in the main thread. PacelineError when a service does not start or
    ends early. Wrong or missing answers raise nothing: see report.faults.
    """
    console = Console()
    with ending_signals(), run_folder(options.data_dir / "runs") as folder:
        with progress_bar("training the target (once)", console) as report:
            target = ensure_target(options.data_dir, TrainPlan(), report=report)
        draft = ensure_random_draft(
            target.folder, options.data_dir / "drafts" / f"{target.key}-{options.seed}", options.seed
        )
        prompts = _prompts(options, target)
        local = LocalDeployment.on_free_ports(folder)
        began_s = time.monotonic()
        pythons = [sys.executable] * options.replicas
        pythons[-1] = str((options.python_of_one or Path(sys.executable)).absolute())
        with fleet_services(local, target, draft, pythons=pythons, console=console) as fleet:
            run = _serve(fleet, prompts, options, console, began_s=began_s, mlflow_uri=local.mlflow_uri)
        with progress_bar("decoding again without speculation", console) as report:
            checked = lossless_check(
                target.folder, run.whole.results, options.max_tokens, count=CHECKED_REQUESTS, report=report
            )
        run = replace(run, whole=replace(run.whole, lossless=checked))
        print_closing(console, run)
        _write(console, run, options.json or folder / "report.json")
    return run


def _prompts(options: FleetOptions, target: TargetModel) -> list[Prompt]:
    held_out = {name: domain.held_out for name, domain in load_corpus(CERTAIN_DOMAINS).domains.items()}
    return domain_prompts(held_out, load_tokenizer(target.folder), options.requests // len(held_out), options.seed)


def _serve(
    fleet: Fleet,
    prompts: Sequence[Prompt],
    options: FleetOptions,
    console: Console,
    *,
    began_s: float,
    mlflow_uri: str,
) -> FleetRun:
    seconds = {"start": time.monotonic() - began_s}
    began_s = time.monotonic()
    watch = Watch(fleet, console, len(prompts))
    results = asyncio.run(
        watched_traffic(
            fleet.url,
            prompts,
            concurrency=options.concurrency,
            max_tokens=options.max_tokens,
            look=watch.look,
        )
    )
    seconds["traffic"] = time.monotonic() - began_s
    began_s = time.monotonic()
    fail_over = watch.fail_over(results)
    for running in fleet.replicas.values():
        settle(running, MIN_NEW_TRACES, SETTLE_S)
    seconds["settle"] = time.monotonic() - began_s
    served_by = _served_by(fleet)
    parts = {
        name: measured(
            running,
            [result for result in results if served_by.get(result.prompt.request_id) == name],
            options.max_tokens,
            mlflow_uri=mlflow_uri,
            seconds=seconds,
        )
        for name, running in fleet.replicas.items()
    }
    untraced = [
        result.prompt.request_id
        for result in results
        if not result.failure and result.prompt.request_id not in served_by
    ]
    return fleet_run(
        parts,
        results,
        untraced=untraced,
        store=fleet.store,
        fail_over=fail_over,
        releases={name: running.reader.replica_status().process.sglang for name, running in fleet.replicas.items()},
    )


def _served_by(fleet: Fleet) -> Mapping[str, str]:
    """Request -> the replica that captured it; the router does not tell."""
    buffer = fleet.first.buffer
    return {entry.trace.request_id: entry.trace.replica for entry in buffer.replay(buffer.counts().delivered)}


def _write(console: Console, run: FleetRun, report: Path) -> None:
    """The report, the picture beside it, and where they are; the picture is named last."""
    found = as_json(run)
    picture = report.with_suffix(".png")
    report.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    write_picture(found, picture)
    console.out(f"report: {report.absolute()}", highlight=False)
    console.out(f"picture of the run, accept length of every replica: {picture.absolute()}", highlight=False)
