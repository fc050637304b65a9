"""Tokens per second with capture on against capture off, in paired alternating runs.

Two SGLang servers with the same flags and the same draft, one with the plugin at work and one without it; while
one is measured the other is stopped with SIGSTOP, because an idle SGLang scheduler spins. The draft is random, so
nearly every token costs a verify round: the worst case for capture. Prints the ratio on / off per concurrency.

    python benchmarks/capture.py [--pairs 9] [--data-dir .paceline]
"""

import argparse
import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from measure.paired import paired
from measure.rig import held_out_prompts, under_new_ids
from paceline.demo.progress import progress_bar
from paceline.demo.prompts import Prompt
from paceline.demo.report import machine
from paceline.demo.run import Place, server_flags, shared_env
from paceline.demo.services import Service, free_port, redis_service, sglang_service
from paceline.demo.target import TargetModel, ensure_random_draft, ensure_target
from paceline.demo.traffic import send, tokens_per_second
from paceline.demo.training import TrainPlan
from rich.console import Console

MAX_TOKENS = 96
REQUESTS = {1: 4, 8: 24}  # concurrency -> requests of one run
SEED = 0


@dataclass(frozen=True, slots=True)
class Server:
    """One of the two servers."""

    service: Service
    port: int


def main() -> None:
    """Measure and print."""
    options = parse()
    console = Console()
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    draft = ensure_random_draft(target.folder, options.data_dir / "drafts" / target.key, SEED)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), free_port(), free_port())
        with redis_service(place.folder / "redis", place.redis_port):
            on = server(place, target, draft, place.server_port, capture=True)
            off = server(place, target, draft, free_port(), capture=False)
            with on.service, stopped(on), off.service, stopped(off):
                measure(
                    console, {"on": on, "off": off}, held_out_prompts(target, max(REQUESTS.values()), SEED), options
                )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"))
    return parser.parse_args()


def server(place: Place, target: TargetModel, draft: Path, port: int, *, capture: bool) -> Server:
    """One server; without PACELINE_REDIS_URL the plugin installs no hook."""
    env = shared_env(place, target)
    if not capture:
        env["PACELINE_REDIS_URL"] = ""
    flags = [*server_flags(target.folder, draft), "--disable-radix-cache"]  # every run prefills the same tokens
    return Server(sglang_service(flags, port, log=place.folder / f"{port}.log", env=env), port)


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Keep a server's processes stopped; they go on when the body ends, so that they can be ended."""
    signal_all(server, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(server, signal.SIGCONT)


def signal_all(server: Server, sign: signal.Signals) -> None:
    """Signal every process below the launcher, which keeps SGLang in a process group of its own."""
    leader = psutil.Process(server.service.pid)
    for process in [leader, *leader.children(recursive=True)]:
        os.kill(process.pid, sign)


def measure(
    console: Console, servers: Mapping[str, Server], prompts: Sequence[Prompt], options: argparse.Namespace
) -> None:
    """Alternate the two servers and print the paired ratios."""
    console.print(f"machine: {machine()}; {options.pairs} pairs, seed {SEED}, {MAX_TOKENS} tokens per request")
    for concurrency, requests in REQUESTS.items():
        ways = {name: partial(rate, server, prompts[:requests], concurrency) for name, server in servers.items()}
        for warm_up in ways.values():
            warm_up()
        rates = paired(ways, options.pairs, SEED)
        console.print(
            f"concurrency {concurrency}: capture on / off {rates.ratio.text(3)} "
            f"of tokens per second over {rates.pairs} pairs"
        )


def rate(server: Server, prompts: Sequence[Prompt], concurrency: int) -> float:
    """Tokens per second of one run, the other server stopped."""
    signal_all(server, signal.SIGCONT)
    try:
        url = f"http://127.0.0.1:{server.port}"
        asked = under_new_ids(prompts)
        results = asyncio.run(send(url, asked, concurrency=concurrency, max_tokens=MAX_TOKENS))
    finally:
        signal_all(server, signal.SIGSTOP)
    failures = [result.failure or result.finish for result in results if result.failure or result.finish != "length"]
    if failures:
        raise SystemExit(f"a request failed: {failures[0]}")
    return tokens_per_second(results)


if __name__ == "__main__":
    main()
