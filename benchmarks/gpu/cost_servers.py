"""The servers of one shape that costs.py compares, and where figures go."""

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
from typing import Any

from ...rig.deployment import LocalDeployment
from ...rig.models.target import TargetModel
from ...rig.progress import quiet
from ...rig.services import Service, redis_service
from ..measure.measured_server import MeasuredServer, measured_server
from .hook_times import probe_folder
from .server import Serving, require_capture, resolved_settings, server_service
from .shapes import random_draft, shaped_target

PLAIN = "plain"  # without a draft and without paceline
WITHOUT = "without paceline"
OPTED_OUT = "opted out"
CAPTURED = "captured"
PACED = "paced"  # captured too
#: Draft steps that the paced server chooses from.
LENGTHS = (0, 1, 2, 3)
#: A server that takes longer to start is left out.
WAIT_S = 330.0
#: More than a replica keeps, so that every swap reads a file.
DRAFTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured of one shape: batch sizes with the tokens of a request, turns, and forwards in a profile."""

    shape: str
    tokens: Mapping[int, int]
    turns: int
    profiled: tuple[int, ...]
    swaps: int
    swap_s: float = 12.0  # that requests stream around a swap
    steps: int = 60
    others: tuple[str, ...] = (PLAIN, WITHOUT, PACED)  # servers beside the one with paceline


class Figures:
    """Appends figures to a file and prints them, with the seconds since the start. Those of a run before stay there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._before: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self._began_s = time.monotonic()
        self._writing = threading.Lock()

    def has(self, name: str, **which: object) -> bool:
        """Whether a run before wrote this figure."""
        return any(line.items() >= {"figure": name, **which}.items() for line in self._before)

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


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The servers of one shape. `server` is the one with paceline and a fixed number of draft steps."""

    plan: Plan
    folder: Path
    server: MeasuredServer
    paced: MeasuredServer | None
    service: Service
    others: Mapping[str, str]  # URL by way
    drafts: list[Path]
    times: Path
    has_gpu: bool
    figures: Figures

    @property
    def ways(self) -> Mapping[str, tuple[str, bool]]:
        """URL, and whether requests are captured, by way."""
        own = {OPTED_OUT: (self.server.url, False), CAPTURED: (self.server.url, True)}
        return own | {way: (url, True) for way, url in self.others.items()}


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
    times = folder / "hook-times.jsonl"
    probe = {"PYTHONPATH": f"{probe_folder(folder / 'probe', times)}:{_python_path()}"}
    locals_ = {way: LocalDeployment.on_free_ports(folder / way.split()[0]) for way in (CAPTURED, *plan.others)}
    services = {}
    for way, local in locals_.items():
        env = {CAPTURED: probe, PACED: {}}.get(way, {"PACELINE_REDIS_URL": ""})
        if way in {CAPTURED, PACED}:
            stack.enter_context(redis_service(local.folder / "redis", local.redis_port))
        services[way] = _service(_serving(way, plan, options), local, target=target, draft=drafts[0], env=env)

    up: set[str] = set()

    def start(way: str) -> None:
        began_s = time.monotonic()
        stack.callback(services[way].stop)
        services[way].start()
        up.add(way)
        figures.write("server up", shape=plan.shape, server=way, seconds=round(time.monotonic() - began_s, 1))

    threads = [
        threading.Thread(target=attempt, args=(figures, f"start {n}", partial(start, n)), daemon=True) for n in services
    ]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
        if options.device == "cpu":
            thread.join()
    drafts += [random_draft(folder / f"draft-{seed}", plan.shape, seed) for seed in range(1, DRAFTS)]
    for thread in threads:
        thread.join(max(began_s + WAIT_S - time.monotonic(), 0.0))
    server = measured_server(locals_[CAPTURED], drafts)
    require_capture(server)
    figures.write("server", shape=plan.shape, settings=resolved_settings(server.url))
    return Bench(
        plan=plan,
        folder=folder,
        server=server,
        paced=measured_server(locals_[PACED], drafts[:1]) if PACED in up else None,
        service=services[CAPTURED],
        others={way: locals_[way].server_url for way in plan.others if way in up},
        drafts=drafts,
        times=times,
        has_gpu=options.device == "cuda",
        figures=figures,
    )


def _python_path() -> str:
    return ":".join(path for path in sys.path if path)


def _serving(way: str, plan: Plan, options: argparse.Namespace) -> Serving:
    batches = [str(batch) for batch in sorted(plan.tokens)]
    graphs = ("--disable-prefill-cuda-graph", "--cuda-graph-bs-decode", *batches)
    # All servers share the card: SGLang takes of it what these tokens need, of what the others have left.
    room = ("--context-length", "8192", "--mem-fraction-static", "0.9", "--max-total-tokens", "20480", *graphs)
    extra = (*(room if options.device == "cuda" else ("--context-length", "2048")), *options.sglang)
    if way == PACED:
        lengths = options.out / "lengths.json"
        lengths.write_text(json.dumps({"1": {"candidate_steps": LENGTHS}}), encoding="utf-8")
        extra = ("--speculative-adaptive", "--speculative-adaptive-config", str(lengths), *extra)
    if way != PLAIN:
        extra = ("--speculative-draft-load-format", "auto", *extra)
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    dummy = ("--load-format", "dummy", "--skip-tokenizer-init", *extra)
    return Serving(
        device=options.device,
        dtype=dtype,
        max_running=max(plan.tokens),
        attention_backend="triton",
        sampling_backend="pytorch",
        extra=dummy,
        speculates=way != PLAIN,
    )


def _service(
    serving: Serving, local: LocalDeployment, *, target: TargetModel, draft: Path, env: Mapping[str, str]
) -> Service:
    local.folder.mkdir(parents=True, exist_ok=True)
    return server_service(
        serving, local, target=target, draft=draft, log=local.folder / "sglang.log", report=quiet, env=env
    )
