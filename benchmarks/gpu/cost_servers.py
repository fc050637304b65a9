"""The two servers of one shape that costs.py compares, one with paceline and one without, and where figures go."""

import argparse
import json
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...rig.deployment import LocalDeployment
from ...rig.models.target import TargetModel
from ...rig.progress import quiet
from ...rig.services import Service, redis_service
from ..measure.measured_server import MeasuredServer, measured_server
from .hook_times import probe_folder
from .server import Serving, require_capture, resolved_settings, server_service
from .shapes import random_draft, shaped_target

WITHOUT = "without paceline"
OPTED_OUT = "opted out"
CAPTURED = "captured"
#: More than a replica keeps, so that every swap reads a file.
DRAFTS = 3
DUMMY = ("--load-format", "dummy", "--speculative-draft-load-format", "auto", "--skip-tokenizer-init")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured of one shape: batch sizes with the tokens of a request, turns, and forwards in a profile."""

    shape: str
    tokens: Mapping[int, int]
    turns: int
    profiled: tuple[int, ...]
    swaps: int
    swap_s: float = 12.0  # that requests stream around a swap
    steps: int = 60


class Figures:
    """Appends figures to a file and prints them, with the seconds since the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_s = time.monotonic()
        self._writing = threading.Lock()

    def write(self, name: str, **values: object) -> None:
        """One line; any thread."""
        line = json.dumps({"s": round(time.monotonic() - self._began_s, 1), "figure": name, **values}, default=str)
        with self._writing, self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            print(line, flush=True)


def attempt(figures: Figures, name: str, step: Callable[[], object]) -> None:
    """Run a step; a fault costs its own figures alone."""
    try:
        step()
    except (Exception, SystemExit) as fault:  # noqa: BLE001 - the steps after it are still worth their time
        figures.write("failed", step=name, fault=repr(fault)[:600], where=traceback.format_exc()[-1500:])


@dataclass(frozen=True)
class Bench:
    """The two servers of one shape."""

    plan: Plan
    folder: Path
    server: MeasuredServer
    service: Service
    stock_url: str
    drafts: list[Path]
    times: Path
    has_gpu: bool
    figures: Figures

    @property
    def ways(self) -> Mapping[str, tuple[str, bool]]:
        """URL, and whether requests are captured, by way."""
        return {
            WITHOUT: (self.stock_url, True),
            OPTED_OUT: (self.server.url, False),
            CAPTURED: (self.server.url, True),
        }


def started(stack: ExitStack, plans: Sequence[Plan], options: argparse.Namespace, figures: Figures) -> list[Bench]:
    """All servers at once on a GPU, where most of a start is one thread's work; one after the other on a CPU."""
    found: dict[str, Bench] = {}

    def start(plan: Plan) -> None:
        found[plan.shape] = _started(stack, plan, options, figures)

    threads = [
        threading.Thread(target=attempt, args=(figures, f"start {plan.shape}", partial(start, plan))) for plan in plans
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[plan.shape] for plan in plans if plan.shape in found]


def _started(stack: ExitStack, plan: Plan, options: argparse.Namespace, figures: Figures) -> Bench:
    folder = options.out / plan.shape
    shutil.rmtree(folder, ignore_errors=True)
    target = shaped_target(folder / "target", plan.shape)
    drafts = [random_draft(folder / "draft-0", plan.shape, 0)]
    serving = _serving(plan, options)
    with_it, without = (LocalDeployment.on_free_ports(folder / name) for name in ("with", "without"))
    stack.enter_context(redis_service(with_it.folder / "redis", with_it.redis_port))
    times = folder / "hook-times.jsonl"
    probe = {"PYTHONPATH": f"{probe_folder(folder / 'probe', times)}:{_python_path()}"}
    environments = {"with": (with_it, probe), "without": (without, {"PACELINE_REDIS_URL": ""})}
    services = {name: _service(serving, local, target, drafts[0], env) for name, (local, env) in environments.items()}

    def start(name: str) -> None:
        began_s = time.monotonic()
        stack.callback(services[name].stop)
        services[name].start()
        figures.write("server up", shape=plan.shape, server=name, seconds=round(time.monotonic() - began_s, 1))

    threads = [threading.Thread(target=attempt, args=(figures, f"start {n}", partial(start, n))) for n in services]
    for thread in threads:
        thread.start()
        if options.device == "cpu":
            thread.join()
    drafts += [random_draft(folder / f"draft-{seed}", plan.shape, seed) for seed in range(1, DRAFTS)]
    for thread in threads:
        thread.join()
    server = measured_server(with_it, drafts)
    require_capture(server)
    figures.write("server", shape=plan.shape, settings=resolved_settings(server.url))
    return Bench(
        plan, folder, server, services["with"], without.server_url, drafts, times, options.device == "cuda", figures
    )


def _python_path() -> str:
    return ":".join(path for path in sys.path if path)


def _serving(plan: Plan, options: argparse.Namespace) -> Serving:
    batches = [str(batch) for batch in sorted(plan.tokens)]
    graphs = ("--disable-prefill-cuda-graph", "--cuda-graph-bs-decode", *batches)
    # Four servers share the card: SGLang takes of it what these tokens need.
    room = ("--context-length", "8192", "--mem-fraction-static", "0.5", "--max-total-tokens", "65536", *graphs)
    extra = (*DUMMY, *(room if options.device == "cuda" else ("--context-length", "2048")), *options.sglang)
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    return Serving(options.device, dtype, max(plan.tokens), "triton", "pytorch", extra)


def _service(
    serving: Serving, local: LocalDeployment, target: TargetModel, draft: Path, env: Mapping[str, str]
) -> Service:
    local.folder.mkdir(parents=True, exist_ok=True)
    return server_service(serving, local, target, draft, local.folder / "sglang.log", quiet, env)
