"""A real chat model on one GPU while its traffic shifts: plain, a draft that stays, and the whole loop, in turns.

    python -m paceline.benchmarks.gpu.shift                      # some six minutes on an H100 or H200
    python -m paceline.benchmarks.gpu.shift --device cpu --tiny  # the same code path on the CPU host
    python -m paceline.benchmarks.gpu.shift --prompts mine.jsonl # {"messages": ..., "domain": ...}, two domains or more

The target is SmolLM2-135M-Instruct, deepened with layers that change no output until a step costs about what one of an
8B does. Three servers of it are up at once: plain (never loaded a draft), static (three steps, without paceline) and
paceline (captured, paced, and a learner process on the same card). paceline begins with a draft of random weights and
learns the first domain; static gets what it learnt. Then traffic shifts to the second domain, of which nobody knows
anything. Speeds are taken on prompts that no draft has learnt from, server by server in an order drawn for the turn;
the learner stands still while another server than its own is asked. Answers are greedy and end where the model ends
them.

Every figure is a line of OUT/figures.jsonl as soon as it is there.
"""

import argparse
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from operator import eq
from pathlib import Path

import msgspec
import torch

from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.config import BufferConfig
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...learner.first_draft import make_first_draft
from ...policies.acceptance import Tally
from ...rig.chat.streams import chat_prompts
from ...rig.deployment import DRAFT_STEPS, LEARNER, REPLICA, SPECULATOR, LocalDeployment, paced_flags
from ...rig.models.deepened import slower
from ...rig.models.smollm2 import ensure_smollm2
from ...rig.models.target import TargetModel, chat_template, load_tokenizer
from ...rig.processes import ending_signals
from ...rig.progress import quiet
from ...rig.prompts import Prompt, read_prompts
from ...rig.ratio import Spread, ratio
from ...rig.reader import SpeculatorReader, drain_check
from ...rig.services import Service, learner_service, redis_service
from ..measure import stalls
from ..measure.answers import Answer, Answers, Ask, answer_all, flush_cache
from ..measure.command_line import benchmark_parser
from ..measure.measured_server import under_new_ids, wait_until
from ..measure.processes import suspended
from .cost_servers import LENGTHS, PLAIN, Figures, attempt
from .server import Serving, resolved_settings, server_service

STATIC = "static"
PACELINE = "paceline"
ARMS = (PLAIN, STATIC, PACELINE)
#: Tokens that a prompt may have.
PROMPT_TOKENS = 1024
EOS = 2
#: Streams of rig.chat, and how many prompts of each.
DOMAINS = ("explain", "tools")
EACH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is asked: requests that a domain is learnt from, a block at a time, and turns of each batch size."""

    layers: int
    learnt: int
    block: int
    batches: Mapping[int, int]  # batch size -> requests of a turn
    turns: int
    max_tokens: int


GPU = Size(layers=100, learnt=384, block=32, batches={1: 3, 8: 16, 32: 32}, turns=4, max_tokens=128)
TINY = Size(layers=30, learnt=4, block=2, batches={1: 1, 2: 2}, turns=1, max_tokens=12)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What runs, and the prompts that are left of each domain."""

    size: Size
    urls: Mapping[str, str]  # by arm
    learner: Service
    reader: SpeculatorReader
    prompts: Mapping[str, Iterator[Prompt]]
    figures: Figures


def main() -> int:
    """Start everything, then measure stage by stage."""
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    figures = Figures(options.out / "figures.jsonl")
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "none"
    figures.write("machine", torch=torch.__version__, gpu=gpu)
    with ending_signals(), ExitStack() as stack:
        bench = started(stack, options, figures)
        first, second = islice(bench.prompts, 2)
        learn(bench, first)
        attempt(figures, "static's draft", partial(hand_over, bench))
        attempt(figures, "first domain", partial(turns, bench, first, "learnt"))
        attempt(figures, "shift", partial(turns, bench, second, "shifted"))
        learn(bench, second)
        attempt(figures, "second domain", partial(turns, bench, second, "learnt"))
        figures.write("status", **msgspec.to_builtins(bench.reader.replica_status()))
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("gpu.shift", __doc__)
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="where servers and learner run (cuda)"
    )
    parser.add_argument("--tiny", action="store_true", help="a few requests and no more layers: a smoke test")
    parser.add_argument("--layers", type=int, help=f"of the deepened target ({GPU.layers})")
    parser.add_argument("--prompts", type=Path, help="a file of prompts instead")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of the model and its package")
    parser.add_argument("--out", type=Path, default=Path(".paceline/gpu-shift"), help="figures.jsonl and logs")
    parser.add_argument("sglang", nargs="*", help="after --: more flags for SGLang")
    options = parser.parse_args()
    options.size = TINY if options.tiny else GPU
    options.layers = options.layers or options.size.layers
    return options


def started(stack: ExitStack, options: argparse.Namespace, figures: Figures) -> Bench:
    """Servers and learner, all at once on a GPU."""
    folder = options.out.absolute() / "run"
    shutil.rmtree(folder, ignore_errors=True)
    model = ensure_smollm2(options.data_dir.absolute())
    target = slower(model, options.layers)
    draft = folder / "draft"
    make_first_draft(model.folder, draft)
    local = LocalDeployment.on_free_ports(folder)
    stack.enter_context(redis_service(folder / "redis", local.redis_port))
    learner = learner_service(
        log=folder / "logs" / "learner.log", env=_learner_env(local, target, draft, options.size.block)
    )
    services: dict[str, Service] = {LEARNER: learner}
    urls = {}
    for arm in ARMS:
        place = local if arm == PACELINE else LocalDeployment.on_free_ports(folder / arm)
        services[arm] = server_service(
            _serving(arm, folder, options),
            place,
            target=target,
            draft=draft,
            log=folder / "logs" / f"{arm}.log",
            report=quiet,
            env={} if arm == PACELINE else {"PACELINE_REDIS_URL": ""},
        )
        urls[arm] = place.server_url

    up: set[str] = set()

    def start(name: str) -> None:
        began_s = time.monotonic()
        stack.callback(services[name].stop)
        services[name].start()
        up.add(name)
        figures.write("up", service=name, seconds=round(time.monotonic() - began_s, 1))

    threads = [threading.Thread(target=attempt, args=(figures, f"start {n}", partial(start, n))) for n in services]
    for thread in threads:
        thread.start()
        if options.device == "cpu":
            thread.join()
    for thread in threads:
        thread.join()
    if up != {*services}:
        raise SystemExit(f"got {sorted(up)} up, expected {sorted(services)}; the reasons stand above")
    client = connect(local.redis_url)
    config = BufferConfig(speculator=SPECULATOR)
    buffer = RedisTraceBuffer(client, config)
    reader = SpeculatorReader(buffer, RedisVersionBoard(client, config), REPLICA, LEARNER)
    wait_until(lambda: reader.live() is not None, "the learner to put its first draft on the board")
    figures.write("server", settings=resolved_settings(urls[PACELINE]))
    return Bench(
        size=options.size,
        urls=urls,
        learner=learner,
        reader=reader,
        prompts=_prompts(options, model),
        figures=figures,
    )


def learn(bench: Bench, domain: str) -> None:
    """Ask paceline's server block by block, then wait until it drafts with what was learnt of them."""
    size = bench.size
    began_s = time.monotonic()
    for number in range(size.learnt // size.block):
        block = _next(bench, domain, size.block)
        answers = _ask(bench.urls[PACELINE], block, size.block, size.max_tokens)
        bench.figures.write(
            "learning",
            domain=domain,
            requests=(number + 1) * size.block,
            accept_length=_accept_length(answers.answers),
            tokens_per_second=round(answers.tokens_per_second),
            live=bench.reader.live(),
        )
    served_s = time.monotonic() - began_s
    reader = bench.reader
    wait_until(drain_check(reader.replica_status), "traces to be delivered")
    wait_until(lambda: not reader.is_learning(size.block), "the learner to end its round", 600.0)
    wait_until(lambda: reader.replica_status().draft_version == reader.live(), "the newest draft to be swapped in")
    bench.figures.write(
        "learnt",
        domain=domain,
        served_s=round(served_s, 1),
        seconds=round(time.monotonic() - began_s, 1),
        live=reader.live(),
        traces=msgspec.to_builtins(reader.traces()),
        stage_ms=[round(swap.stage_ms, 1) for swap in reader.replica_status().swaps],
        commit_ms=[round(swap.commit_ms, 1) for swap in reader.replica_status().swaps],
    )


def hand_over(bench: Bench) -> None:
    """Give the static server the draft that is live now, by SGLang's own endpoints."""
    learnt = bench.reader.learnt_weights()
    if learnt is None:
        raise SystemExit("nothing was learnt: the first draft is still live")
    stalls.stock_swap(bench.urls[STATIC], stalls.stock_payload(learnt))


def turns(bench: Bench, domain: str, stage: str) -> None:
    """Tokens per second of all servers on the same new prompts, and their ratios turn by turn."""
    size = bench.size
    for batch, requests in size.batches.items():
        made: dict[str, list[Answers]] = {arm: [] for arm in ARMS}
        for turn in range(-1, size.turns):  # the first warms up
            block = _next(bench, domain, requests)
            for arm in random.Random(f"{stage} {batch} {turn}").sample(ARMS, len(ARMS)):
                with nullcontext() if arm == PACELINE else suspended(bench.learner.pid):
                    answers = _ask(bench.urls[arm], block, batch, size.max_tokens)
                made[arm] += [answers] if turn >= 0 else []
        _write_turns(bench, made, domain=domain, stage=stage, batch=batch)


def _write_turns(bench: Bench, made: Mapping[str, Sequence[Answers]], *, domain: str, stage: str, batch: int) -> None:
    rates = {arm: [each.tokens_per_second for each in runs] for arm, runs in made.items()}
    said = {arm: [answer.output_ids for each in runs for answer in each.answers] for arm, runs in made.items()}
    pacing = bench.reader.replica_status().pacing
    bench.figures.write(
        "turns",
        domain=domain,
        stage=stage,
        batch=batch,
        tokens_per_second={arm: Spread.of(found).text(0) for arm, found in rates.items()},
        accept_length={
            arm: _accept_length([answer for each in made[arm] for answer in each.answers]) for arm in (STATIC, PACELINE)
        },
        ratios={
            f"{one} over {other}": ratio(rates[one], rates[other]).text()
            for one, other in ((PACELINE, STATIC), (PACELINE, PLAIN), (STATIC, PLAIN))
        },
        same_answers={
            f"{arm} as {PLAIN}": f"{sum(map(eq, said[arm], said[PLAIN]))} of {len(said[arm])}"
            for arm in (STATIC, PACELINE)
        },
        live=bench.reader.live(),
        pacing=None if pacing is None else msgspec.to_builtins(pacing),
    )


def _serving(arm: str, folder: Path, options: argparse.Namespace) -> Serving:
    has_gpu = options.device == "cuda"
    batches = [str(batch) for batch in sorted(options.size.batches)]
    graphs = ("--disable-prefill-cuda-graph", "--cuda-graph-bs-decode", *batches)
    # All servers share the card: SGLang takes of it what these tokens need, of what the others have left.
    room = ("--mem-fraction-static", "0.9", "--max-total-tokens", "65536", *graphs) if has_gpu else ()
    extra = (*room, *options.sglang)
    if arm == PACELINE:
        folder.mkdir(parents=True, exist_ok=True)
        extra = (*paced_flags(folder, LENGTHS), *extra)
    return Serving(
        device=options.device,
        dtype="bfloat16" if has_gpu else "float32",
        max_running=max(options.size.batches),
        attention_backend="triton",
        sampling_backend="pytorch",
        extra=extra,
        speculates=arm != PLAIN,
    )


def _learner_env(local: LocalDeployment, target: TargetModel, draft: Path, block: int) -> dict[str, str]:
    own = {
        "PACELINE_LEARNER": LEARNER,
        "PACELINE_TARGET_PATH": str(target.folder),
        "PACELINE_DRAFT": str(draft),
        "PACELINE_DATA_DIR": str(local.folder / "learner"),
        "PACELINE_DRAFT_STEPS": str(DRAFT_STEPS),
        "PACELINE_MIN_NEW_TRACES": str(block),
        "PACELINE_ROUND_INTERVAL_S": "1.0",
        "PACELINE_COOL_DOWN_S": "5.0",
    }
    return local.shared_env(target) | own


def _prompts(options: argparse.Namespace, model: TargetModel) -> dict[str, Iterator[Prompt]]:
    """Prompts by domain, in the order in which they come."""
    template = chat_template(model.folder)
    if options.prompts is not None:
        asked = read_prompts(options.prompts, load_tokenizer(model.folder), PROMPT_TOKENS, template)
    elif template is not None:
        streams = (chat_prompts(name, options.data_dir, EACH, 0, template=template) for name in DOMAINS)
        asked = [*chain.from_iterable(streams)]
    by_domain: dict[str, list[Prompt]] = {}
    for prompt in asked:
        by_domain.setdefault(prompt.domain, []).append(prompt)
    return {domain: iter(prompts) for domain, prompts in by_domain.items()}


def _next(bench: Bench, domain: str, count: int) -> list[Prompt]:
    block = list(islice(bench.prompts[domain], count))
    if len(block) < count:
        raise SystemExit(f"prompts of {domain!r}: got {len(block)} more, expected {count}; bring more with --prompts")
    return block


def _ask(url: str, prompts: Sequence[Prompt], batch: int, max_tokens: int) -> Answers:
    """The answers, from an empty cache: what a cached prefix holds of the draft's state is of older weights."""
    flush_cache(url)
    asked = [
        Ask(prompt=prompt, max_tokens=max_tokens, stop_tokens=(EOS,)) for prompt in under_new_ids(prompts, "shift")
    ]
    return answer_all(url, asked, batch)


def _accept_length(answers: Sequence[Answer]) -> float:
    tally = sum((answer.tally for answer in answers), Tally())
    return round(tally.accept_length, 3)


if __name__ == "__main__":
    sys.exit(main())
