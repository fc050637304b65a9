"""Speculation off, on and paced, by batch size: tokens per second of three servers with one trained draft.

    python -m paceline.benchmarks.gpu.pacing                          # batch 1, 4, 16, 64 on the GPU
    python -m paceline.benchmarks.gpu.pacing --device cpu --tiny      # the same code path on the CPU host: a smoke test

First a draft is trained on a server of its own, because for a random draft pacing would choose 0 steps throughout. Then
the servers are started one after another, so the ratios include drift over time. One warm-up per batch size comes
before the measured runs: pacing explores, and kernels compile. Writes OUT/pacing.json.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from rich.console import Console

from ...rig.deployment import LocalDeployment
from ...rig.models.target import TargetModel
from ...rig.progress import progress_bar
from ...rig.prompts import Prompt
from ...rig.ratio import Spread
from ...rig.runs import machine
from ...rig.services import redis_service
from ..measure.answers import answer_all, asks, flush_cache
from ..measure.command_line import benchmark_parser
from ..measure.measured_server import MeasuredServer, held_out_prompts, measured_server
from .learning import LearningPlan, learn_and_serve, training_plan
from .models import build_models, train_plan
from .server import Serving, require_capture, resolved_settings, server_service

SEED = 0
#: Lengths that pacing chooses from.
LENGTHS = (0, 1, 2, 3, 4, 5)
OFF = "off"
ON = "on"
PACED = "paced"


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second by batch size, the server's resolved settings, and the status of its pacing."""

    by_batch: Mapping[int, Spread]
    server: Mapping[str, object]
    pacing: object = None


def main() -> None:
    """Learn, measure, print and write."""
    options = parse()
    console = Console()
    options.out.mkdir(parents=True, exist_ok=True)
    with progress_bar("training the target (once)", console) as bar:
        plan = train_plan(options.size, options.train_seconds)
        target, draft = build_models(options.data_dir, options.size, plan=plan, device=options.device, report=bar)
    prompts = held_out_prompts(target, 64 + options.requests, SEED)
    serving = Serving(
        device=options.device,
        dtype=options.dtype,
        max_running=max(options.batches),
        attention_backend=options.attention_backend,
        sampling_backend=options.sampling_backend,
    )
    trained = options.out / "trained"
    with served(serving, options, target=target, draft=draft) as server:
        learn_and_serve(
            server, target.folder, draft=draft, prompts=prompts, plan=learning_plan(options), folder=trained
        )
    found = {
        way: rates(way, serving, options=options, target=target, draft=trained, prompts=prompts)
        for way in (OFF, ON, PACED)
    }
    ways = {
        way: {
            "rates": {b: vars_of(s) for b, s in one.by_batch.items()},
            "server": dict(one.server),
            "pacing": one.pacing,
        }
        for way, one in found.items()
    }
    (options.out / "pacing.json").write_text(json.dumps({"machine": machine(), "ways": ways}, indent=2, default=str))
    print_rates(found)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("gpu.pacing", __doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where the server runs (cuda)")
    parser.add_argument("--tiny", action="store_true", help="the demo's target and a few requests: a smoke test")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of targets and drafts")
    parser.add_argument("--out", type=Path, default=Path(".paceline/gpu-pacing"), help="pacing.json and logs")
    parser.add_argument("--attention-backend", default="triton", help="SGLang's flag (triton)")
    parser.add_argument("--sampling-backend", default="pytorch", help="SGLang's flag (pytorch)")
    options = parser.parse_args()
    small = {"size": "tiny", "train_seconds": 15.0, "requests": 8, "batches": (1, 4), "runs": 1, "max_tokens": 24}
    usual = {
        "size": "287m",
        "train_seconds": 180.0,
        "requests": 384,
        "batches": (1, 4, 16, 64),
        "runs": 5,
        "max_tokens": 256,
    }
    for name, value in (small if options.tiny else usual).items():
        setattr(options, name, value)
    options.dtype = "bfloat16" if options.device == "cuda" else "float32"
    return options


def learning_plan(options: argparse.Namespace) -> LearningPlan:
    """How the draft is trained."""
    training = training_plan(options.device, tiny=options.tiny)
    return LearningPlan(
        requests=options.requests,
        measured_requests=min(8, options.requests),
        max_tokens=24 if options.tiny else 96,
        concurrency=max(options.batches),
        training=training,
        device=options.device,
    )


@contextmanager
def served(
    serving: Serving,
    options: argparse.Namespace,
    *,
    target: TargetModel,
    draft: Path,
    env: Mapping[str, str] | None = None,
) -> Iterator[MeasuredServer]:
    """A server with a Redis and a board of its own; `draft` is version 0."""
    local = LocalDeployment.on_free_ports(options.out)
    log = options.out / f"sglang-{local.server_port}.log"
    with redis_service(options.out / f"redis-{local.redis_port}", local.redis_port):
        with progress_bar("starting SGLang", Console()) as bar:
            service = server_service(serving, local, target=target, draft=draft, log=log, report=bar, env=env or {})
        with service:
            server = measured_server(local, [draft])
            if serving.speculates:
                require_capture(server)
            yield server


def rates(
    way: str, serving: Serving, *, options: argparse.Namespace, target: TargetModel, draft: Path, prompts: list[Prompt]
) -> Rates:
    """Tokens per second of one way: `options.runs` runs per batch size, after one that is not counted."""
    lengths = options.out / "lengths.json"
    lengths.write_text(json.dumps({"1": {"candidate_steps": LENGTHS}}), encoding="utf-8")
    adaptive = ("--speculative-adaptive", "--speculative-adaptive-config", str(lengths))
    chosen = replace(serving, speculates=way != OFF, extra=adaptive if way == PACED else ())
    env = {"PACELINE_REDIS_URL": ""} if way == OFF else {}
    with served(chosen, options, target=target, draft=draft, env=env) as server:
        by_batch = {batch: rate(server, options, prompts, batch) for batch in options.batches}
        pacing = None if way == OFF else msgspec.to_builtins(server.reader.replica_status().pacing)
        return Rates(by_batch, resolved_settings(server.url), pacing)


def rate(server: MeasuredServer, options: argparse.Namespace, prompts: list[Prompt], batch: int) -> Spread:
    """Tokens per second of whole batches of equal requests that opt out; prefill and the client's time included."""
    figures = []
    for _ in range(1 + options.runs):
        flush_cache(server.url)
        asked = asks(prompts[:batch], f"paced-{batch}", options.max_tokens, capture=False)
        figures.append(answer_all(server.url, asked, batch).tokens_per_second)
    return Spread.of(figures[1:])


def vars_of(spread: Spread) -> dict[str, float]:
    """As JSON values."""
    return {"median": spread.median, "low": spread.low, "high": spread.high}


def print_rates(found: Mapping[str, Rates]) -> None:
    """Print tokens per second by batch size, and the ratios to plain decoding."""
    print(
        "| batch | " + " | ".join(found) + " | on / off | paced / off | paced / best of the two |\n" + "|---" * 7 + "|"
    )
    for batch in found[OFF].by_batch:
        off, on, paced = (found[way].by_batch[batch] for way in (OFF, ON, PACED))
        ratios = on.median / off.median, paced.median / off.median, paced.median / max(on.median, off.median)
        cells = [spread.text(0) for spread in (off, on, paced)] + [f"{one:.3f}" for one in ratios]
        print(f"| {batch} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
