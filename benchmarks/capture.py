"""Tokens per second with capture on against capture off, in paired alternating runs.

Two SGLang servers with the same flags and the same draft, one with the plugin at work and one without it; while
one is measured the other is stopped with SIGSTOP, because an idle SGLang scheduler spins. The draft is random, so
nearly every token costs a verify round: the worst case for capture. Prints the ratio on / off per concurrency.

    python benchmarks/capture.py [--pairs 9] [--data-dir .paceline]
"""

import argparse
import asyncio
import os
import random
import signal
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from paceline.demo.corpus import CERTAIN_DOMAINS, load_corpus
from paceline.demo.progress import progress_bar
from paceline.demo.prompts import Prompt, domain_prompts
from paceline.demo.report import machine
from paceline.demo.run import Place, server_flags, shared_env
from paceline.demo.services import Service, free_port, redis_service, sglang_service
from paceline.demo.target import TargetModel, ensure_random_draft, ensure_target, load_tokenizer
from paceline.demo.traffic import send, tokens_per_second
from paceline.demo.training import TrainPlan
from rich.console import Console

MAX_TOKENS = 96
REQUESTS = {1: 4, 8: 24}  # concurrency -> requests of one run
SEED = 0


def main() -> None:
    """Measure and print."""
    options = parse()
    console = Console()
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    draft = ensure_random_draft(target.folder, options.data_dir / "drafts" / target.key, SEED)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), free_port(), free_port())
        ports = {"on": place.server_port, "off": free_port()}
        with redis_service(place.folder / "redis", place.redis_port):
            on = server(place, target, draft, ports["on"], capture=True)
            off = server(place, target, draft, ports["off"], capture=False)
            with on, stopped(on), off, stopped(off):
                measure(console, {"on": on, "off": off}, ports, target, options.pairs)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"))
    return parser.parse_args()


def server(place: Place, target: TargetModel, draft: Path, port: int, *, capture: bool) -> Service:
    """One server; without PACELINE_REDIS_URL the plugin installs no hook."""
    env = shared_env(place, target)
    if not capture:
        env["PACELINE_REDIS_URL"] = ""
    flags = [*server_flags(target.folder, draft), "--disable-radix-cache"]  # every run prefills the same tokens
    return sglang_service(flags, port, log=place.folder / f"{port}.log", env=env)


@contextmanager
def stopped(service: Service) -> Iterator[None]:
    """Keep a service's processes stopped; they go on when the body ends, so that they can be ended."""
    server_groups(service, signal.SIGSTOP)
    try:
        yield
    finally:
        server_groups(service, signal.SIGCONT)


def server_groups(service: Service, sign: signal.Signals) -> None:
    """Signal every process below `service`: the launcher keeps SGLang in a process group of its own."""
    leader = psutil.Process(service.pid)
    for process in [leader, *leader.children(recursive=True)]:
        os.kill(process.pid, sign)


def measure(
    console: Console, servers: dict[str, Service], ports: dict[str, int], target: TargetModel, pairs: int
) -> None:
    """Alternate the two servers and print the paired ratios."""
    prompts = prompts_of(target)
    console.print(f"machine: {machine()}; {pairs} pairs, seed {SEED}, {MAX_TOKENS} tokens per request")
    for concurrency, requests in REQUESTS.items():
        for name, service in servers.items():
            rate(service, ports[name], prompts[:requests], concurrency)  # warm-up
        ratios, rates = [], {"on": [], "off": []}
        for pair in range(pairs):
            order = random.Random(f"{SEED} {pair}").sample(list(servers), 2)
            for name in order:
                rates[name].append(rate(servers[name], ports[name], prompts[:requests], concurrency))
            ratios.append(rates["on"][-1] / rates["off"][-1])
        ratios.sort()
        console.print(
            f"concurrency {concurrency}: capture on / off {statistics.median(ratios):.3f} "
            f"[{ratios[0]:.3f} .. {ratios[-1]:.3f}] of tokens per second over {pairs} pairs"
        )


def rate(service: Service, port: int, prompts: list[Prompt], concurrency: int) -> float:
    """Tokens per second of one run, the other server stopped."""
    server_groups(service, signal.SIGCONT)
    try:
        results = asyncio.run(send(f"http://127.0.0.1:{port}", prompts, concurrency=concurrency, max_tokens=MAX_TOKENS))
    finally:
        server_groups(service, signal.SIGSTOP)
    failures = [result.failure for result in results if result.failure]
    if failures:
        raise SystemExit(f"a request failed: {failures[0]}")
    return tokens_per_second(results)


def prompts_of(target: TargetModel) -> list[Prompt]:
    """The same prompts for every run."""
    held_out = {name: domain.held_out for name, domain in load_corpus(CERTAIN_DOMAINS).domains.items()}
    return domain_prompts(held_out, load_tokenizer(target.folder), max(REQUESTS.values()), SEED)


if __name__ == "__main__":
    main()
