"""The whole loop on one machine: target, Redis, MLflow, SGLang, a learner, traffic, and the truth at the end."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from ..buffer.base import TraceBuffer
from ..buffer.config import BufferConfig
from ..buffer.redis_board import RedisVersionBoard
from ..buffer.redis_client import connect
from ..buffer.redis_stream import RedisTraceBuffer
from ..dashboards.readings import as_int
from .corpus import CERTAIN_DOMAINS, load_corpus
from .lossless import Lossless, lossless_check
from .progress import progress_bar
from .prompts import Prompt, domain_prompts, read_prompts
from .report import Run, as_json, print_closing, served_by_version
from .services import free_port, learner_service, redis_service, sglang_service
from .target import TargetModel, ensure_random_draft, ensure_target, load_tokenizer
from .traffic import Served, send
from .training import TrainPlan
from .view import LiveView
from .watch import Watch

SPECULATOR, REPLICA, LEARNER = "demo", "demo-0", "demo-learner"
DRAFT_STEPS = 3
#: Traces that make a round: small, so that a short run sees many versions.
MIN_NEW_TRACES = 32
SEED = 0
CONTEXT_TOKENS = 2048
#: How long the last traces may take to be delivered and learnt once the traffic has ended.
SETTLE_S = 60.0
REFRESH_S = 0.5
CHECKED_REQUESTS = 40


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line may choose."""

    requests: int
    concurrency: int
    max_tokens: int
    prompts: Path | None
    data_dir: Path
    keep_running: bool
    json: Path | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where this run keeps what it makes."""

    folder: Path
    redis_port: int
    server_port: int

    @property
    def redis_url(self) -> str:
        """The private Redis."""
        return f"redis://127.0.0.1:{self.redis_port}/0"

    @property
    def mlflow_uri(self) -> str:
        """The MLflow store of this run."""
        return f"sqlite:///{(self.folder / 'mlflow.db').absolute()}"


def run_demo(options: DemoOptions) -> Run:
    """Run the demo and print what was seen; writes options.json when asked to. Leaves nothing running.

    Raises ConfigError for bad input before anything is started, PacelineError when a service does not start.
    """
    console = Console()
    seconds: dict[str, float] = {}
    with _timed("target", seconds), progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    prompts = _prompts(options, target)
    draft = ensure_random_draft(target.folder, options.data_dir / "drafts" / target.key, SEED)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    place = Place(options.data_dir / "runs" / stamp, free_port(), free_port())
    with ExitStack() as stack:
        watch, buffer = _start(stack, console, seconds, place, target, draft)
        with _timed("traffic", seconds):
            results = asyncio.run(_traffic(console, watch, place, prompts, options))
        with _timed("settle", seconds):
            _settle(watch)
        run = _measured(watch, buffer, results, place, seconds)
        if options.keep_running:
            _wait_for_ctrl_c(console, place)
    with _timed("lossless", seconds), progress_bar("decoding again without speculation", console) as report:
        lossless = lossless_check(target.folder, results, count=CHECKED_REQUESTS, report=report)
    run = _with(run, lossless, seconds)
    print_closing(console, run)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(run), indent=2) + "\n", encoding="utf-8")
    return run


def server_flags(target: Path, draft: Path) -> list[str]:
    """SGLang's flags of the demo's server: greedy, EAGLE-3, a chain of DRAFT_STEPS drafts, on the CPU."""
    flags = {
        "--model-path": target,
        "--device": "cpu",
        "--max-total-tokens": 16384,
        "--max-running-requests": 8,
        "--context-length": CONTEXT_TOKENS,
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": draft,
        "--speculative-num-steps": DRAFT_STEPS,
        "--speculative-eagle-topk": 1,
        "--speculative-num-draft-tokens": DRAFT_STEPS + 1,
        "--log-level": "warning",
    }
    return [str(word) for flag in flags.items() for word in flag]


def shared_env(place: Place, target: TargetModel) -> dict[str, str]:
    """Settings the server and the learner must agree on; one thread each, for two cores have to do."""
    return {
        "PACELINE_REDIS_URL": place.redis_url,
        "PACELINE_SPECULATOR": SPECULATOR,
        "PACELINE_TARGET": "demo-target",
        "PACELINE_TARGET_VERSION": target.key,
        "PACELINE_REPLICA": REPLICA,
        "OMP_NUM_THREADS": "1",
    }


def learner_env(place: Place, target: TargetModel, draft: Path) -> dict[str, str]:
    """Settings of the demo's learner alone."""
    return {
        "PACELINE_LEARNER": LEARNER,
        "PACELINE_TARGET_PATH": str(target.folder),
        "PACELINE_DRAFT": str(draft),
        "PACELINE_DATA_DIR": str(place.folder),
        "PACELINE_MLFLOW_URI": place.mlflow_uri,
        "PACELINE_MIN_NEW_TRACES": str(MIN_NEW_TRACES),
        "PACELINE_DRAFT_STEPS": str(DRAFT_STEPS),
        "PACELINE_ROUND_INTERVAL_S": "1.0",
    }


def _prompts(options: DemoOptions, target: TargetModel) -> list[Prompt]:
    tokenizer = load_tokenizer(target.folder)
    if options.prompts is not None:
        longest = CONTEXT_TOKENS - options.max_tokens - DRAFT_STEPS - 2
        return read_prompts(options.prompts, tokenizer, longest)[: options.requests]
    held_out = {name: domain.held_out for name, domain in load_corpus(CERTAIN_DOMAINS).domains.items()}
    return domain_prompts(held_out, tokenizer, options.requests // len(held_out), SEED)


def _start(
    stack: ExitStack, console: Console, seconds: dict[str, float], place: Place, target: TargetModel, draft: Path
) -> tuple[Watch, TraceBuffer]:
    shared = shared_env(place, target)
    with _timed("start", seconds):
        stack.enter_context(redis_service(place.folder / "redis", place.redis_port))
        client = connect(place.redis_url)
        stack.callback(client.close)
        logs = place.folder / "logs"
        with progress_bar("starting SGLang", console) as report:
            server = sglang_service(
                server_flags(target.folder, draft),
                place.server_port,
                log=logs / "sglang.log",
                env=shared,
                report=report,
            )
            stack.enter_context(server)
        with progress_bar("starting the learner", console) as report:
            env = shared | learner_env(place, target, draft)
            stack.enter_context(learner_service(log=logs / "learner.log", env=env, report=report))
    config = BufferConfig(speculator=SPECULATOR)
    buffer = RedisTraceBuffer(client, config)
    return Watch(buffer, RedisVersionBoard(client, config), REPLICA, LEARNER), buffer


async def _traffic(
    console: Console, watch: Watch, place: Place, prompts: Sequence[Prompt], options: DemoOptions
) -> list[Served]:
    done: list[Served] = []
    url = f"http://127.0.0.1:{place.server_port}"
    sending = asyncio.create_task(
        send(url, prompts, concurrency=options.concurrency, max_tokens=options.max_tokens, on_served=done.append)
    )
    with LiveView(console) as view:
        while not sending.done():
            await asyncio.wait({sending}, timeout=REFRESH_S)
            phase = done[-1].prompt.domain if done else "first requests"
            view.show(await asyncio.to_thread(watch.state, phase, tuple(done), len(prompts)))
    return await sending


def _settle(watch: Watch) -> None:
    """Wait until every trace is delivered and no further round is due, at most SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    time.sleep(2 * REFRESH_S)  # one heartbeat, which is what the waiting below looks at
    while time.monotonic() < deadline and not (watch.is_drained() and not watch.is_learning(MIN_NEW_TRACES)):
        time.sleep(REFRESH_S)


def _measured(
    watch: Watch, buffer: TraceBuffer, results: Sequence[Served], place: Place, seconds: dict[str, float]
) -> Run:
    learner, traces = watch.learner(), watch.traces()
    served = served_by_version(entry.trace for entry in buffer.replay(max_traces=traces.delivered))
    in_flight = [swap for swap in watch.swaps() if swap.running]
    return Run(
        results=results,
        versions=watch.versions(served),
        traces=traces,
        replay=(as_int(learner, "identity_equal"), as_int(learner, "identity_compared")),
        lossless=Lossless(0, ()),
        swaps=len(in_flight),
        stalls_ms=[swap.stall_ms(results) for swap in in_flight],
        seconds=seconds,
        mlflow_uri=place.mlflow_uri,
    )


def _with(run: Run, lossless: Lossless, seconds: dict[str, float]) -> Run:
    return replace(run, lossless=lossless, seconds=dict(seconds))


def _wait_for_ctrl_c(console: Console, place: Place) -> None:
    console.print(f"running: SGLang on port {place.server_port}, Redis at {place.redis_url}; Ctrl-C ends both")
    try:
        while True:
            time.sleep(1.0)
    except KeyboardInterrupt:
        console.print("ending")


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[stage] = time.monotonic() - began
