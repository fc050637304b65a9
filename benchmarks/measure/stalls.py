"""Longest wait for a token around a draft swap: none, paceline's own, and SGLang's stock HTTP path.

Requests stream; then nothing happens ("none"), or another version goes live on the board ("paceline"), or the stock
endpoints are called: pause in place, begin, update from tensors, end, continue ("stock HTTP"). The last on another
server with the same flags and without paceline, which lets nobody else update a draft of its board. Each repeat has the
three in a random order. Requests stay in flight, nothing is flushed.
"""

import asyncio
import base64
import pickle
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import torch
from safetensors.torch import load_file

from ...buffer.board.member_status import SwapSaid
from ...buffer.board.version import VersionState
from ...buffer.board.weights_file import WEIGHTS_FILE
from ...rig.prompts import Prompt
from ...rig.ratio import Spread
from ...rig.traffic import Served, longest_gap_ms, send
from .measured_server import MeasuredServer, under_new_ids, wait_until

NOTHING_S = 0.15
Window = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StallPlan:
    """How long requests stream, how many, and when the swap comes."""

    repeats: int
    streams: int = 3
    max_tokens: int = 320
    act_after_s: float = 0.8  # after the start of the streams
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Way:
    """A server's URL, and what is done to it while requests stream; blocks and returns from when to when."""

    url: str
    act: Callable[[], Window]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Longest waits, milliseconds, by way; `void` counts repeats in which no request streamed through the swap."""

    waits_ms: Mapping[str, Spread]
    commit_ms: Spread
    stage_ms: Spread
    ratio: Spread  # paceline / stock HTTP of the same repeat
    void: int
    plan: StallPlan


def measure_stalls(
    server: MeasuredServer,
    *,
    stock_url: str,
    drafts: Sequence[Path],
    prompts: Sequence[Prompt],
    plan: StallPlan,
    payload_dtype: torch.dtype | None = None,
) -> Stalls:
    """Alternate the three ways. `drafts` are the versions 0, 1, ... of the board, more than a replica keeps.

    The server at `stock_url` drafts with the first of them. `payload_dtype` is that of its payload, by default that of
    the file.
    """
    payload = stock_payload(drafts[0], payload_dtype)
    began = time.time()
    ways: dict[str, Way] = {
        "none": Way(server.url, nothing),
        "paceline": Way(server.url, partial(paceline_swap, server, len(drafts))),
        "stock HTTP": Way(stock_url, partial(stock_swap, stock_url, payload)),
    }
    for url in (server.url, stock_url):  # warm-up
        asyncio.run(stream(Way(url, nothing), prompts, plan))
    repeats = []
    void = 0
    for repeat in range(plan.repeats):
        waits: dict[str, float] = {}
        for way in random.Random(f"{plan.seed} {repeat}").sample(list(ways), len(ways)):
            results, window = asyncio.run(stream(ways[way], prompts, plan))
            wait_ms = longest_gap_ms(results, window)
            if wait_ms is not None:
                waits[way] = wait_ms
        void += len(waits) < len(ways)
        repeats += [waits] if len(waits) == len(ways) else []
    if not repeats:
        raise SystemExit(f"no request streamed through a swap in {plan.repeats} repeats; ask for more tokens")
    made = swaps_since(server, began)
    return Stalls(
        waits_ms={way: Spread.of([waits[way] for waits in repeats]) for way in ways},
        commit_ms=Spread.of([swap.commit_ms for swap in made]),
        stage_ms=Spread.of([swap.stage_ms for swap in made]),
        ratio=Spread.of([waits["paceline"] / waits["stock HTTP"] for waits in repeats]),
        void=void,
        plan=plan,
    )


async def stream(way: Way, prompts: Sequence[Prompt], plan: StallPlan) -> tuple[list[Served], Window]:
    """Stream the prompts and act once while they run; exits when a request was aborted or retracted."""
    streams = under_new_ids(prompts[: plan.streams])
    sending = asyncio.create_task(send(way.url, streams, concurrency=plan.streams, max_tokens=plan.max_tokens))
    await asyncio.sleep(plan.act_after_s)
    window = await asyncio.to_thread(way.act)
    results = await sending
    for result in results:
        if result.failure or result.finish != "length" or result.retractions:
            raise SystemExit(
                f"request {result.prompt.request_id}: got {len(result.output_ids)} tokens, finish {result.finish!r}, "
                f"{result.retractions} retractions {result.failure}; expected {plan.max_tokens} tokens, "
                "finish 'length' and no retraction"
            )
    return results, window


def nothing() -> Window:
    """A window about as long as a swap, without one."""
    began = time.time()
    time.sleep(NOTHING_S)
    return began, time.time()


def paceline_swap(server: MeasuredServer, versions: int) -> Window:
    """Make the next of the first `versions` versions live and wait until the replica reports the swap."""
    number = ((server.board.read().live or 0) + 1) % versions
    began = time.time()
    server.board.move(number, VersionState.LIVE, "bench", "next one")
    wait_until(lambda: swaps_since(server, began), f"version {number} to be swapped in")
    swap = swaps_since(server, began)[-1]
    return swap.at - (swap.commit_ms + swap.stage_ms) / 1000.0, swap.at


def swaps_since(server: MeasuredServer, began: float) -> list[SwapSaid]:
    """Swaps the replica made since `began`, unix seconds, oldest first; it reports its newest."""
    return [swap for swap in server.reader.replica_status().swaps if swap.at >= began]


def stock_swap(url: str, payload: str) -> Window:
    """The fastest stock path that keeps requests: paused in place, nothing flushed."""
    began = time.time()
    update = {"serialized_named_tensors": [payload], "selector": "draft", "flush_cache": False}
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as client:
        client.post("/pause_generation", json={"mode": "in_place"}).raise_for_status()
        client.post("/begin_weight_update", json={"selector": "draft"}).raise_for_status()
        client.post("/update_weights_from_tensor", json=update).raise_for_status()
        client.post("/end_weight_update", json={}).raise_for_status()
        client.post("/continue_generation", json={"torch_empty_cache": False}).raise_for_status()
    return began, time.time()


def stock_payload(draft: Path, dtype: torch.dtype | None = None) -> str:
    """A draft's weights as the stock endpoint takes them, in `dtype` or in that of the file."""
    weights = [
        (k, v.to(dtype or v.dtype)) for k, v in load_file(draft / WEIGHTS_FILE).items() if k not in {"d2t", "t2d"}
    ]
    return base64.b64encode(pickle.dumps(weights)).decode()
