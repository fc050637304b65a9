"""Longest wait for a token around a draft swap: paceline's swap against SGLang's stock HTTP path, in one run.

Three requests stream; then nothing happens ("none"), or the board makes another version live ("paceline"), or the
stock endpoints are called: pause in place, begin, update from tensors, end, continue ("stock HTTP"). The order of
the three is drawn anew in every repeat. Requests in flight, radix cache on, nothing flushed.

    python benchmarks/swap.py [--repeats 10] [--data-dir .paceline]
"""

import argparse
import asyncio
import base64
import pickle
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_board import RedisVersionBoard
from paceline.buffer.redis_client import connect
from paceline.buffer.redis_stream import RedisTraceBuffer
from paceline.buffer.version import DraftVersion, VersionState
from paceline.demo.corpus import CERTAIN_DOMAINS, load_corpus
from paceline.demo.progress import progress_bar
from paceline.demo.prompts import Prompt, domain_prompts
from paceline.demo.report import machine
from paceline.demo.run import LEARNER, REPLICA, SPECULATOR, Place, server_flags, shared_env
from paceline.demo.services import free_port, redis_service, sglang_service
from paceline.demo.target import ensure_random_draft, ensure_target, load_tokenizer
from paceline.demo.traffic import Served, longest_gap_ms, send
from paceline.demo.training import TrainPlan
from paceline.demo.watch import Watch
from paceline.serving.staging import WEIGHTS_FILE, sha256_of
from rich.console import Console
from safetensors.torch import load_file

DRAFTS = 3  # more than a replica keeps, so that every swap reads and checks a file
STREAMS = 3
MAX_TOKENS = 320
ACT_AFTER_S = 0.8
SEED = 0
Window = tuple[float, float]


@dataclass(frozen=True)
class Rig:
    """One server with three drafts on its board."""

    url: str
    board: RedisVersionBoard
    watch: Watch
    drafts: list[Path]
    payload: str


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"))
    options = parser.parse_args()
    console = Console()
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    folder = options.data_dir / "drafts"
    drafts = [ensure_random_draft(target.folder, folder / f"{target.key}-{seed}", seed) for seed in range(DRAFTS)]
    held_out = {name: domain.held_out for name, domain in load_corpus(CERTAIN_DOMAINS).domains.items()}
    prompts = domain_prompts(held_out, load_tokenizer(target.folder), STREAMS, SEED)[:STREAMS]
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(Path(scratch), free_port(), free_port())
        log = place.folder / "sglang.log"
        server = sglang_service(
            server_flags(target.folder, drafts[0]), place.server_port, log=log, env=shared_env(place, target)
        )
        with redis_service(place.folder / "redis", place.redis_port), server:
            measure(console, make_rig(place, drafts), prompts, options.repeats)


def make_rig(place: Place, drafts: list[Path]) -> Rig:
    """Put the drafts on the board; version 0 is the one the server has."""
    client, config = connect(place.redis_url), BufferConfig(speculator=SPECULATOR)
    board = RedisVersionBoard(client, config)
    for draft in drafts:
        number, digest = board.next_number(), sha256_of(draft / WEIGHTS_FILE)
        uri = draft.absolute().as_uri()
        board.register(DraftVersion(number, None, "t", "0", "eagle3", uri, digest, "none", ("", "")), "bench", "random")
    board.move(0, VersionState.LIVE, "bench", "served from the start")
    watch = Watch(RedisTraceBuffer(client, config), board, REPLICA, LEARNER)
    weights = [(k, v) for k, v in load_file(drafts[0] / WEIGHTS_FILE).items() if k not in {"d2t", "t2d"}]
    payload = base64.b64encode(pickle.dumps(weights)).decode()  # what the stock endpoint takes
    return Rig(f"http://127.0.0.1:{place.server_port}", board, watch, drafts, payload)


def measure(console: Console, rig: Rig, prompts: list[Prompt], repeats: int) -> None:
    """Alternate the three ways and print longest waits."""
    console.print(f"machine: {machine()}; {repeats} repeats, seed {SEED}, {STREAMS} streams of {MAX_TOKENS} tokens")
    ways: dict[str, Callable[[Rig], Window]] = {"none": nothing, "paceline": paceline_swap, "stock HTTP": stock_swap}
    waits: dict[str, list[float]] = {way: [] for way in ways}
    asyncio.run(stream(rig, prompts, nothing))  # warm-up
    for repeat in range(repeats):
        for way in random.Random(f"{SEED} {repeat}").sample(list(ways), len(ways)):
            results, window = asyncio.run(stream(rig, prompts, ways[way]))
            waits[way].append(longest_gap_ms(results, window))
    for way, values in waits.items():
        console.print(
            f"{way}: longest wait for a token, median {statistics.median(values):.1f} ms "
            f"[{min(values):.1f} .. {max(values):.1f}]"
        )
    commits = [swap.commit_ms for swap in rig.watch.swaps()]
    console.print(
        f"paceline's commit in the scheduler: median {statistics.median(commits):.2f} ms, max {max(commits):.2f} ms"
    )
    pairs = [a / b for a, b in zip(waits["paceline"], waits["stock HTTP"], strict=True)]
    console.print(
        f"paceline / stock HTTP, paired: median {statistics.median(pairs):.2f} [{min(pairs):.2f} .. {max(pairs):.2f}]"
    )


async def stream(rig: Rig, prompts: list[Prompt], way: Callable[[Rig], Window]) -> tuple[list[Served], Window]:
    """Stream the prompts and act once while they run."""
    sending = asyncio.create_task(send(rig.url, prompts, concurrency=STREAMS, max_tokens=MAX_TOKENS))
    await asyncio.sleep(ACT_AFTER_S)
    window = await asyncio.to_thread(way, rig)
    results = await sending
    broken = [r.failure or r.finish for r in results if r.failure or r.finish != "length" or r.retractions]
    if broken:
        raise SystemExit(f"a request was touched: {broken[0]}")
    return results, window


def nothing(_rig: Rig) -> Window:
    """A stretch as long as a swap, without one."""
    began = time.time()
    time.sleep(0.15)
    return began, time.time()


def paceline_swap(rig: Rig) -> Window:
    """Make the next draft live on the board and wait until the replica says it is."""
    live = rig.board.read().live or 0
    number = (live + 1) % len(rig.drafts)
    rig.board.move(number, VersionState.LIVE, "bench", "next one")
    while not any(swap.number == number and swap.at > time.time() - 3 for swap in rig.watch.swaps()):
        time.sleep(0.05)
    swap = rig.watch.swaps()[-1]
    stage_ms = float(rig.watch.replica()["swaps"][-1]["stage_ms"])  # type: ignore[index]
    return swap.at - (swap.commit_ms + stage_ms) / 1000.0, swap.at


def stock_swap(rig: Rig) -> Window:
    """The fastest stock path that keeps requests: paused in place, nothing flushed."""
    began = time.time()
    update = {"serialized_named_tensors": [rig.payload], "selector": "draft", "flush_cache": False}
    with httpx.Client(base_url=rig.url, timeout=60.0, trust_env=False) as client:
        client.post("/pause_generation", json={"mode": "in_place"}).raise_for_status()
        client.post("/begin_weight_update", json={"selector": "draft"}).raise_for_status()
        client.post("/update_weights_from_tensor", json=update).raise_for_status()
        client.post("/end_weight_update", json={}).raise_for_status()
        client.post("/continue_generation", json={"torch_empty_cache": False}).raise_for_status()
    return began, time.time()


if __name__ == "__main__":
    main()
