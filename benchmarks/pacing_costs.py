"""What a decode step costs on a real server, by batch size and draft steps: the table that pacing.py simulates with.

The server chooses every length in turn (PACELINE_PACING=sweep) and measures itself, as it does for its own policy: the
median time from one verified step to the next. A draft step costs a fifth of the demo's small target, so that target
is deepened with layers that do not change its output until a draft step costs a twentieth to a thirtieth of it, as
EAGLE-3's does with a target of 8B parameters. At 0 steps the draft still runs over what was committed, to keep its
cache warm; a second server, without speculation, shows what decoding costs without a draft.

    python -m paceline.benchmarks.pacing_costs [--layers 40] [--batches 1,4,8] [--max-steps 8] [--out FILE]
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from ..rig.deployment import LocalDeployment, plain_flags
from ..rig.models.deepened import LAYERS, slower
from ..rig.models.target import VOCABULARY, TargetModel, ensure_random_draft, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.processes import ending_signals
from ..rig.progress import progress_bar
from ..rig.prompts import Prompt
from ..rig.services import sglang_service
from ..rig.traffic import Served, send
from .measure.command_line import benchmark_parser
from .measure.measured_server import MeasuredServer, wait_until
from .measure.services import cpu_server, running
from .measure.step_costs import Costs

SEED = 0
PROMPT_TOKENS = 64
#: Decode steps per length that a row of the table is measured from, roughly.
STEPS_PER_LENGTH = 40
#: Decode steps of the server without speculation.
PLAIN_STEPS = 120


def main() -> None:
    """Measure, print and write."""
    options, console = parse(), Console()
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    draft = ensure_random_draft(target.folder, options.data_dir / "drafts" / target.key, SEED)
    slow = slower(target, options.layers)
    with speculating(slow, draft, options.max_steps) as server:
        costs = swept(server, options.batches, options.max_steps)
    with plain(slow) as url:
        alone = {batch: plain_ms(url, batch) for batch in options.batches}
    measured = Costs(f"measured, CPU host, {options.layers} layers", costs, alone)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(measured.text(), encoding="utf-8")
    print_costs(costs, alone)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("pacing_costs", __doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of targets and draft")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"layers of the deepened target ({LAYERS})")
    parser.add_argument(
        "--batches",
        type=lambda text: tuple(map(int, text.split(","))),
        default=(1, 4, 8),
        help="batch sizes, comma-separated (1,4,8)",
    )
    parser.add_argument("--max-steps", type=int, default=8, help="longest draft (8)")
    parser.add_argument("--out", type=Path, default=Path(".paceline/pacing-costs.json"), help="the table")
    return parser.parse_args()


@contextmanager
def speculating(target: TargetModel, draft: Path, max_steps: int) -> Iterator[MeasuredServer]:
    """A server that tries every length from 0 to `max_steps` in turn and captures no traces."""
    with tempfile.TemporaryDirectory() as folder:
        local = LocalDeployment.on_free_ports(Path(folder))
        lengths = local.folder / "lengths.json"
        lengths.write_text(json.dumps({"1": {"candidate_steps": list(range(max_steps + 1))}}), encoding="utf-8")
        adaptive = ["--speculative-adaptive", "--speculative-adaptive-config", str(lengths), "--disable-radix-cache"]
        env = {"PACELINE_PACING": "sweep", "PACELINE_SAMPLE_RATE": "0"}
        with running(local, cpu_server(local, target, draft, flags=adaptive, env=env), [draft]) as services:
            wait_until(lambda: pacing_of(services.server).get("policy") == "sweep", "the replica to sweep")
            yield services.server


@contextmanager
def plain(target: TargetModel) -> Iterator[str]:
    """URL of the same server without speculation."""
    with tempfile.TemporaryDirectory() as folder:
        local = LocalDeployment.on_free_ports(Path(folder))
        kept = [*plain_flags(target.folder), "--disable-radix-cache"]
        env = local.shared_env(target) | {"PACELINE_REDIS_URL": ""}
        with sglang_service(kept, local.server_port, log=local.folder / "sglang.log", env=env):
            yield local.server_url


def swept(server: MeasuredServer, batches: Sequence[int], max_steps: int) -> dict[int, list[float]]:
    """Milliseconds of one step, batch size -> steps; whole batches of equal requests, so that they end together."""
    for batch in batches:
        stream(server.url, batch, STEPS_PER_LENGTH * (max_steps + 1), "sweep")
    lengths = [str(k) for k in range(max_steps + 1)]
    heartbeat_at = time.time() + 2.0  # later than any heartbeat that was already on its way
    wait_until(
        lambda: float(str(server.reader.replica_status().get("at", 0.0))) > heartbeat_at, "the replica's next heartbeat"
    )
    found: dict[str, dict[str, float]] = pacing_of(server)["cost_ms"]
    return {batch: [found[str(batch)][k] for k in lengths] for batch in batches}


def plain_ms(url: str, batch: int) -> float:
    """Median wait between two tokens of one request, as the client sees it, milliseconds."""
    served = stream(url, batch, PLAIN_STEPS, "plain")
    return median(1e3 * (after.at - before.at) for one in served for before, after in pairwise(one.arrivals[8:]))


def stream(url: str, batch: int, tokens: int, label: str) -> list[Served]:
    """Send `batch` requests of random tokens at once and wait for all; exits when one failed."""
    ids = np.random.default_rng((SEED, batch)).integers(3, VOCABULARY, (batch, PROMPT_TOKENS)).tolist()
    prompts = [Prompt(f"{label}-{batch}-{i}", "random", tuple(row)) for i, row in enumerate(ids)]
    served = asyncio.run(send(url, prompts, concurrency=batch, max_tokens=tokens))
    if failures := [one.failure for one in served if one.failure]:
        raise SystemExit(f"a request failed: {failures[0]}")
    return served


def pacing_of(server: MeasuredServer) -> dict[str, Any]:
    """What the replica reports of its pacing; empty while there is nothing."""
    pacing: Any = server.reader.replica_status().get("pacing") or {}
    return dict(pacing)


def print_costs(costs: dict[int, list[float]], alone: dict[int, float]) -> None:
    """Print the table and, by batch size, what a draft step costs.

    The first draft of a round comes from the draft's pass over what was committed, so one step costs a verified token
    more than none, and each further step also a forward of the draft.
    """
    for batch, row in costs.items():
        print(f"batch {batch}: " + ", ".join(f"{k}: {ms:.1f}" for k, ms in enumerate(row)) + " ms")
        verified, further = (row[1] - row[0]) / row[0], (row[-1] - row[1]) / (len(row) - 2) / row[0]
        print(
            f"batch {batch}: a step with 0 drafts takes {row[0] / alone[batch]:.3f} of one without speculation; "
            f"relative to it, a verified token costs {verified:.3f}, a draft step {further - verified:.3f}, "
            f"both {further:.3f}"
        )


if __name__ == "__main__":
    with ending_signals():
        main()
