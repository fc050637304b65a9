"""The whole loop on one machine: target, Redis, MLflow, SGLang, a learner, traffic, and a report."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from ..buffer.board.redis_board import RedisVersionBoard
from ..buffer.config import BufferConfig
from ..buffer.errors import ConfigError
from ..buffer.redis_client import connect
from ..buffer.stream.redis_stream import RedisTraceBuffer
from ..rig.deployment import (
    CONTEXT_TOKENS,
    DRAFT_STEPS,
    LEARNER,
    REPLICA,
    SPECULATOR,
    LocalDeployment,
    context_tokens,
    paced_flags,
    server_flags,
)
from ..rig.models.corpus import CERTAIN_DOMAINS, load_corpus
from ..rig.models.small_draft import small_draft
from ..rig.models.target import TargetModel, chat_template, ensure_random_draft, ensure_target, load_tokenizer
from ..rig.models.training import TrainPlan
from ..rig.processes import ending_signals
from ..rig.progress import Report, progress_bar
from ..rig.prompts import PROMPT_TOKENS, Prompt, check_prompts, domain_prompts, read_prompts
from ..rig.reader import SpeculatorReader
from ..rig.readiness import free_port
from ..rig.runs import run_folder
from ..rig.services import learner_service, redis_service, sglang_service, window_service
from .lossless import lossless_check
from .opening import Plan, print_opening
from .own_target import (
    answer_line,
    compared_answers,
    device_flags,
    expected_tokens_per_s,
    find_target,
    own_prompts,
)
from .picture import write_picture
from .report import Run, as_json, print_closing
from .speed import print_speed
from .stages import Running, measured, serve_traffic, settle

#: Traces of a learning round: few, so that a short run produces many versions.
MIN_NEW_TRACES = 16
#: How long the demo waits for a reply of its own Redis; on a busy machine two seconds may be too short.
REDIS_PATIENCE_S = 30.0
#: How long delivering and learning the last traces may take once the traffic has ended.
SETTLE_S = 60.0
#: Tokens of the context that SGLang reserves for the drafts of a request's last verify round.
RESERVED_TOKENS = DRAFT_STEPS + 2
CHECKED_REQUESTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of the command line."""

    requests: int
    concurrency: int
    max_tokens: int
    prompts: Path | None
    data_dir: Path
    keep_running: bool
    json: Path | None
    seed: int = 0  # draws the initial draft, and the prompts where there is no file of them
    is_paced: bool = False  # paceline chooses the number of draft steps, plain steps among them
    skips_speed: bool = False  # tokens per second are not compared at the end
    target: str | None = None  # a folder, an id or CHAT_MODEL; None: one that is trained on local text
    draft: Path | None = None  # to begin with; None: one of random weights


def run_demo(options: DemoOptions) -> Run:
    """Run the demo, print the results, and write the report with its picture beside it. Leaves nothing running.

    The report is `options.json`, else `report.json` in the folder of the run; the picture has its name, as PNG.

    Ctrl-C, SIGTERM and SIGHUP end it early; call it in the main thread. Raises ConfigError for bad input before
    anything is started, and PacelineError when a service does not start or ends early. Wrong or missing answers raise
    nothing: see report.faults.
    """
    _refuse_unfit(options)
    with ending_signals():
        console = Console()
        if options.target is None:
            print_opening(console, _plan(options))
        seconds: dict[str, float] = {}
        doing = "training the target (once)" if options.target is None else "the target"
        with _timed("target", seconds), progress_bar(doing, console) as report:
            target = _target(options, report)
        if options.target is not None:
            rates = expected_tokens_per_s(target.folder, options.concurrency)
            print_opening(console, replace(_plan(options), target=options.target, tokens_per_s=rates))
        prompts = _prompts(options, target)
        with run_folder(options.data_dir / "runs") as folder:
            local = LocalDeployment.on_free_ports(folder)
            return _run(options, console, seconds=seconds, target=target, prompts=prompts, local=local)


def _plan(options: DemoOptions) -> Plan:
    return Plan(
        requests=options.requests,
        concurrency=options.concurrency,
        max_tokens=options.max_tokens,
        prompts=options.prompts,
        most_per_step=DRAFT_STEPS + 1,
        skips_speed=options.skips_speed,
        draft=options.draft,
    )


def _target(options: DemoOptions, report: Report) -> TargetModel:
    if options.target is None:
        return ensure_target(options.data_dir, TrainPlan(), report=report)
    return find_target(options.target, options.data_dir, report)


def _draft(options: DemoOptions, target: TargetModel) -> Path:
    if options.draft is not None:
        return options.draft
    if options.target is not None:
        return small_draft(target, options.data_dir)
    drafts = options.data_dir / "drafts"
    return ensure_random_draft(target.folder, drafts / f"{target.key}-{options.seed}", options.seed)


def _write(console: Console, run: Run, report: Path) -> None:
    """The report, the picture beside it, and where they are; the picture is named last."""
    found = as_json(run)
    picture = report.with_suffix(".png")
    report.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    write_picture(found, picture)
    console.out(f"report: {report.absolute()}", highlight=False)
    console.out(f"picture of the run, accept length with every swap and refusal: {picture.absolute()}", highlight=False)


def _run(
    options: DemoOptions,
    console: Console,
    *,
    seconds: dict[str, float],
    target: TargetModel,
    prompts: list[Prompt],
    local: LocalDeployment,
) -> Run:
    draft = _draft(options, target)
    is_own = options.target is not None
    with ExitStack() as stack:
        flags = device_flags() if is_own else []
        flags += paced_flags(local.folder, range(DRAFT_STEPS + 1)) if options.is_paced else []
        running = _start(stack, console, seconds=seconds, local=local, target=target, draft=draft, flags=flags)
        with _timed("traffic", seconds):
            results = asyncio.run(
                serve_traffic(
                    running,
                    console,
                    local.server_url,
                    prompts,
                    concurrency=options.concurrency,
                    max_tokens=options.max_tokens,
                    read_answer=partial(answer_line, load_tokenizer(target.folder)) if is_own else None,
                )
            )
        with _timed("settle", seconds):
            settle(running, MIN_NEW_TRACES, SETTLE_S)
        learnt = running.reader.learnt_weights()
        run = measured(running, results, options.max_tokens, mlflow_uri=local.mlflow_uri, seconds=seconds)
        if not options.keep_running:
            stack.close()  # the rest needs no service
        with _timed("lossless", seconds), progress_bar("decoding again without speculation", console) as report:
            count = compared_answers() if is_own else CHECKED_REQUESTS
            lossless = lossless_check(target.folder, results, options.max_tokens, count=count, report=report)
        if learnt is not None and not options.skips_speed:
            print_speed(
                console,
                target,
                (draft, learnt),
                prompts=prompts,
                max_tokens=options.max_tokens,
                local=local,
                is_deepened=not is_own,
            )
        run = replace(run, lossless=lossless, seconds=dict(seconds))
        print_closing(console, run)
        _write(console, run, options.json or local.folder / "report.json")
        if options.keep_running:
            _wait_for_ctrl_c(console, local, running)
    return run


def learner_env(local: LocalDeployment, target: TargetModel, draft: Path) -> dict[str, str]:
    """Settings of the learner, beside those it shares with the server."""
    return {
        "PACELINE_LEARNER": LEARNER,
        "PACELINE_TARGET_PATH": str(target.folder),
        "PACELINE_DRAFT": str(draft),
        "PACELINE_DATA_DIR": str(local.folder),
        "PACELINE_MLFLOW_URI": local.mlflow_uri,
        "PACELINE_MIN_NEW_TRACES": str(MIN_NEW_TRACES),
        "PACELINE_DRAFT_STEPS": str(DRAFT_STEPS),
        "PACELINE_ROUND_INTERVAL_S": "1.0",
        "PACELINE_COOL_DOWN_S": "5.0",  # a rest of a minute would outlast half of a domain
    }


def _refuse_unfit(options: DemoOptions) -> None:
    _refuse_too_long(options.max_tokens, CONTEXT_TOKENS)
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise ConfigError(f"--json {options.json}: got a folder that does not exist, expected an existing one")
    if options.json is not None and options.json.suffix == ".png":
        raise ConfigError(f"--json {options.json}: got the name of a picture, which is written beside the report")
    if options.prompts is not None:
        check_prompts(options.prompts)


def _refuse_too_long(max_tokens: int, context: int) -> None:
    longest = context - RESERVED_TOKENS - PROMPT_TOKENS
    if max_tokens > longest:
        raise ConfigError(
            f"--max-tokens: got {max_tokens}, expected at most {longest}, so that a prompt fits in as well"
        )


def _prompts(options: DemoOptions, target: TargetModel) -> list[Prompt]:
    tokenizer = load_tokenizer(target.folder)
    context = context_tokens(target.folder)
    _refuse_too_long(options.max_tokens, context)
    if options.prompts is not None:
        longest = context - options.max_tokens - RESERVED_TOKENS
        return read_prompts(options.prompts, tokenizer, longest, chat_template(target.folder))[: options.requests]
    if options.target is not None:
        return own_prompts(target, options.data_dir, options.requests, options.seed)
    held_out = {name: domain.held_out for name, domain in load_corpus(CERTAIN_DOMAINS).domains.items()}
    return domain_prompts(held_out, tokenizer, options.requests // len(held_out), options.seed)


def _start(
    stack: ExitStack,
    console: Console,
    *,
    seconds: dict[str, float],
    local: LocalDeployment,
    target: TargetModel,
    draft: Path,
    flags: Sequence[str],
) -> Running:
    shared = local.shared_env(target)
    is_durable = not BufferConfig.from_env().keeps_nothing
    with _timed("start", seconds):
        redis = stack.enter_context(redis_service(local.folder / "redis", local.redis_port, is_durable=is_durable))
        client = connect(local.redis_url, timeout_s=REDIS_PATIENCE_S)
        stack.callback(client.close)
        logs = local.folder / "logs"
        flags = [*server_flags(target.folder, draft), *flags]
        page_port = free_port()
        stack.enter_context(window_service(page_port, log=logs / "window.log", env=shared))
        console.print(f"live page, from now on: http://127.0.0.1:{page_port}/", highlight=False)
        with progress_bar("starting SGLang", console) as report:
            log = logs / "sglang.log"
            server = sglang_service(flags, local.server_port, log=log, env=shared, report=report)
            stack.enter_context(server)
        with progress_bar("starting the learner", console) as report:
            env = shared | learner_env(local, target, draft)
            learner = stack.enter_context(learner_service(log=logs / "learner.log", env=env, report=report))
    config = BufferConfig(speculator=SPECULATOR)
    buffer = RedisTraceBuffer(client, config)
    reader = SpeculatorReader(buffer, RedisVersionBoard(client, config), REPLICA, LEARNER)
    return Running((redis, server, learner), reader, buffer)


def _wait_for_ctrl_c(console: Console, local: LocalDeployment, running: Running) -> None:
    console.print(
        f"still running: SGLang on port {local.server_port}, Redis at {local.redis_url}; end them with Ctrl-C"
    )
    try:
        while True:
            running.ensure_running()
            time.sleep(1.0)
    except KeyboardInterrupt:
        console.print("stopping")


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[stage] = time.monotonic() - began
