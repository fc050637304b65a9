"""What one round calls of CUDA and launches, by torch's profiler in the server, through SGLang's /start_profile."""

import gzip
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from ..measure.measured_server import wait_until

#: Trace categories that are added up by name.
_KINDS = ("cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset")
_LISTED = 14


def profiled(url: str, folder: Path, steps: int, *, has_gpu: bool, serve: Callable[[], object]) -> dict[str, Any]:
    """Profile `steps` forwards while `serve` runs: calls and microseconds per forward. Blocks until it is written."""
    folder.mkdir(parents=True)
    activities = ["CPU", "GPU"] if has_gpu else ["CPU"]
    asked = {"output_dir": str(folder), "num_steps": steps, "activities": activities, "record_shapes": False}
    with httpx.Client(base_url=url, timeout=120.0, trust_env=False) as client:
        client.post("/start_profile", json=asked).raise_for_status()
    serve()
    wait_until(lambda: [*folder.rglob("*.json.gz")], "the profile to be written")
    file = next(folder.rglob("*.json.gz"))
    wait_until(lambda: _is_whole(file), "the profile to be whole")
    return per_step(_events(file), steps)


def per_step(events: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """By kind: [name, calls, microseconds] of one forward, the dearest first; and the CPU's operations in all."""
    sums: dict[str, dict[str, list[float]]] = {kind: defaultdict(lambda: [0.0, 0.0]) for kind in (*_KINDS, "cpu_op")}
    for event in events:
        kind = event.get("cat")
        if kind in sums and "dur" in event:
            cell = sums[kind][str(event["name"])[:60]]
            cell[0] += 1
            cell[1] += event["dur"]
    found: dict[str, Any] = {}
    for kind, by_name in sums.items():
        rows = [(name, round(calls / steps, 2), round(us / steps, 1)) for name, (calls, us) in by_name.items()]
        if rows:
            found[kind] = {
                "calls": round(sum(row[1] for row in rows), 1),
                "us": round(sum(row[2] for row in rows)),
                "dearest": sorted(rows, key=lambda row: -row[2])[:_LISTED],
            }
    return found


def _events(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        events: list[dict[str, Any]] = json.load(stream)["traceEvents"]
    return events


def _is_whole(file: Path) -> bool:
    size = file.stat().st_size
    time.sleep(1.0)
    return size == file.stat().st_size
