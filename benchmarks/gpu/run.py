"""Checks and measures the plugin on SGLang with CUDA, overlap scheduling and CUDA graphs; docs/gpu.md is the manual.

    python -m paceline.benchmarks.gpu.run                               # everything, on the GPU
    python -m paceline.benchmarks.gpu.run --only checks,learning        # some stages
    python -m paceline.benchmarks.gpu.run --device cpu --tiny           # the same code path on the CPU host, in minutes
    python -m paceline.benchmarks.gpu.run -- --attention-backend fa3    # any SGLang flag; the last one wins

Writes OUT/report.json after every stage, and the server's log next to it. Exits with 1 when a check failed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from ...rig.deployment import DRAFT_STEPS, LocalDeployment
from ...rig.models.target import TargetModel
from ...rig.progress import progress_bar
from ...rig.prompts import Prompt
from ...rig.services import redis_service
from ..measure.command_line import benchmark_parser
from ..measure.measured_server import MeasuredServer, held_out_prompts, measured_server
from .checks import exact_findings, served_mix, served_sampled
from .learning import LearningPlan, learn_and_serve, training_plan
from .models import SIZES, build_models, train_plan
from .reference import Reference, feature_finding, teacher_finding
from .replayed import replay_findings, served_draft
from .report import Report, print_report
from .server import Serving, require_capture, resolved_settings, server_service

STAGES = ("checks", "learning", "sampling")
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Everything the stages work with."""

    options: argparse.Namespace
    serving: Serving
    server: MeasuredServer
    target: TargetModel
    draft: Path
    prompts: list[Prompt]
    dtype: str
    report: Report


def main() -> int:
    """Run the chosen stages."""
    options = parse()
    console = Console()
    dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    settings = {name: value for name, value in vars(options).items() if name not in {"out", "data_dir", "sglang"}}
    report = Report(settings=settings | {"dtype": dtype, "sglang": options.sglang, "seed": SEED})
    options.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with timed("models and server", report):
            bench = start(stack, console, options=options, dtype=dtype, report=report)
        for stage in STAGES:
            if stage in options.only:
                console.print(f"stage: {stage}")
                with timed(stage, report):
                    RUN[stage](bench)
                report.write(options.out / "report.json")
    print_report(console, report)
    console.print(f"written: {options.out / 'report.json'}")
    return 0 if report.is_right else 1


def parse() -> argparse.Namespace:
    """The command line; --tiny shrinks every figure that was not given."""
    parser = benchmark_parser("gpu.run", __doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where the server runs (cuda)")
    parser.add_argument("--tiny", action="store_true", help="the demo's target and a few requests: a smoke test")
    parser.add_argument("--size", choices=tuple(SIZES), help="target by millions of parameters (152m)")
    parser.add_argument("--train-seconds", type=float, help="budget of the target's training (180)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="default: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--attention-backend", default="triton", help="SGLang's flag (triton)")
    parser.add_argument("--sampling-backend", default="pytorch", help="SGLang's flag (pytorch)")
    parser.add_argument("--only", type=stages, default=STAGES, help=f"comma-separated stages of {', '.join(STAGES)}")
    parser.add_argument("--prompts", type=int, help="prompts of the checks, each served four times (32)")
    parser.add_argument("--requests", type=int, help="requests to learn from (384)")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of targets and drafts")
    parser.add_argument("--out", type=Path, default=Path(".paceline/gpu"), help="report.json and sglang.log")
    parser.add_argument("sglang", nargs="*", help="after --: more flags for SGLang")
    options = parser.parse_args()
    small = {"size": "tiny", "train_seconds": 15.0, "prompts": 2, "requests": 8}
    usual = {"size": "152m", "train_seconds": 180.0, "prompts": 32, "requests": 384}
    for name, value in (small if options.tiny else usual).items():
        setattr(options, name, value if getattr(options, name) is None else getattr(options, name))
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU; --device cpu --tiny runs the same code on a CPU")
    return options


def stages(text: str) -> tuple[str, ...]:
    """The stages named in `text`, separated by commas."""
    names = tuple(text.split(","))
    unknown = sorted(set(names) - set(STAGES))
    if unknown:
        raise argparse.ArgumentTypeError(f"got {unknown}, expected some of {list(STAGES)}")
    return names


@contextmanager
def timed(stage: str, report: Report) -> Iterator[None]:
    """Record how long a stage took, once it has succeeded."""
    began_s = time.monotonic()
    yield
    report.seconds[stage] = time.monotonic() - began_s


def start(stack: ExitStack, console: Console, *, options: argparse.Namespace, dtype: str, report: Report) -> Bench:
    """Build the models, start Redis and SGLang, and wait until capture is on."""
    plan = train_plan(options.size, options.train_seconds)
    with progress_bar("training the target (once)", console) as bar:
        target, draft = build_models(options.data_dir, options.size, plan=plan, device=options.device, report=bar)
    local = LocalDeployment.on_free_ports(options.out)
    running = 8 if options.tiny else 64
    serving = Serving(
        device=options.device,
        dtype=dtype,
        max_running=running,
        attention_backend=options.attention_backend,
        sampling_backend=options.sampling_backend,
        extra=tuple(options.sglang),
    )
    stack.enter_context(redis_service(local.folder / f"redis-{local.redis_port}", local.redis_port))
    with progress_bar("starting SGLang", console) as bar:
        service = server_service(
            serving, local, target=target, draft=draft, log=local.folder / "sglang.log", report=bar
        )
        stack.enter_context(service)
    server = measured_server(local, [draft])
    require_capture(server)
    report.server = resolved_settings(server.url)
    parameters = SIZES[options.size].parameters
    report.target = {"parameters": parameters, "steps": target.steps, "held_out_loss": dict(target.held_out_loss)}
    prompts = held_out_prompts(target, max(options.requests + 64, 256), SEED)
    return Bench(
        options=options,
        serving=serving,
        server=server,
        target=target,
        draft=draft,
        prompts=prompts,
        dtype=dtype,
        report=report,
    )


def checks(bench: Bench) -> None:
    """Traces of the random draft against the answers, transformers, and the draft's own replay."""
    options = bench.options
    folder = bench.target.folder
    pairs = served_mix(bench.server, bench.prompts[: options.prompts], 4 if options.tiny else 32, "check")
    report = bench.report
    report.findings += exact_findings(pairs, "random draft")
    reference = Reference.load(folder, bench.draft, bench.dtype, options.device)
    report.findings.append(feature_finding(pairs, reference))
    report.findings.append(teacher_finding(pairs[: 2 * options.prompts], reference, "random draft"))
    draft = served_draft(bench.draft, folder, bench.dtype, options.device)
    report.findings += replay_findings(
        draft, [p.trace for p in pairs], steps=DRAFT_STEPS, dtype=bench.dtype, label="random draft"
    )


def learning(bench: Bench) -> None:
    """A draft trained on this run's traces, served, and replayed on its own traces."""
    options = bench.options
    folder = bench.target.folder
    plan = LearningPlan(
        requests=options.requests,
        measured_requests=4 if options.tiny else 64,
        max_tokens=24 if options.tiny else 96,
        concurrency=4 if options.tiny else 32,
        training=training_plan(options.device, tiny=options.tiny),
        device=options.device,
    )
    learned_draft = options.out / "learned"
    learned = learn_and_serve(
        bench.server, folder, draft=bench.draft, prompts=bench.prompts, plan=plan, folder=learned_draft
    )
    bench.report.learned = learned
    gain = learned.finding()
    bench.report.findings += [gain, *exact_findings(learned.pairs, "learned draft")]
    draft = served_draft(learned_draft, folder, bench.dtype, options.device)
    traces = [pair.trace for pair in learned.pairs]
    bench.report.findings += replay_findings(draft, traces, steps=DRAFT_STEPS, dtype=bench.dtype, label="learned draft")


def sampling(bench: Bench) -> None:
    """Traces of requests at temperature 1 against the answers and transformers."""
    options = bench.options
    pairs = served_sampled(bench.server, bench.prompts[: options.prompts], 4 if options.tiny else 32, "sampled")
    reference = Reference.load(bench.target.folder, bench.draft, bench.dtype, options.device)
    bench.report.findings += exact_findings(pairs, "temperature 1")
    bench.report.findings.append(teacher_finding(pairs, reference, "temperature 1"))


RUN: dict[str, Callable[[Bench], None]] = {
    "checks": checks,
    "learning": learning,
    "sampling": sampling,
}

if __name__ == "__main__":
    sys.exit(main())
