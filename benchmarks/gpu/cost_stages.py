"""What costs.py measures of the servers of a shape, stage by stage; each writes its figures as they come."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from operator import eq
from typing import Any

from ...rig.prompts import Prompt
from ...rig.ratio import Spread, ratio
from ...rig.traffic import longest_gap_ms
from ..hook_cost.lock_share import lock_shares
from ..measure import stalls
from ..measure.answers import answer_all, asks, flush_cache
from ..measure.processes import child_named
from .cost_servers import CAPTURED, OPTED_OUT, PACED, PLAIN, WITHOUT, Bench
from .hook_times import Sums, read_sums
from .profiled import profiled
from .shapes import SHAPES

PROMPT_TOKENS = 32
#: Requests whose answers are compared, word for word.
ANSWERS = 8
#: Seconds in which the holder of the lock is sampled.
LOCK_S = 4
#: The probe writes its sums twice a second.
PROBE_S = 0.6


def rounds(bench: Bench) -> None:
    """Milliseconds of a round by way, its ratios, and what the hooks take, per batch size."""
    for batch, tokens in bench.plan.tokens.items():
        if not bench.figures.has("rounds", shape=bench.plan.shape, batch=batch):
            _measure(bench, batch, tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of one way, and the hooks' sums before and after it."""

    tokens_per_second: float
    seconds: float
    rounds: int  # of the request that had most; without a draft, its tokens
    accept_length: float
    began: Sums
    ended: Sums


def _measure(bench: Bench, batch: int, tokens: int) -> None:
    runs: dict[str, list[_Run]] = {way: [] for way in bench.ways}
    before = bench.server.drained().account.dropped
    for turn in range(-1, bench.plan.turns):  # the first warms up
        for way in random.Random(f"{batch} {turn}").sample(list(bench.ways), len(bench.ways)):
            run = _run(bench, way, prompts(bench, batch, f"{batch} {turn}"), tokens)
            runs[way] += [run] if turn >= 0 else []
    after = bench.server.drained().account.dropped
    rates = {way: [run.tokens_per_second for run in made] for way, made in runs.items()}
    round_ms = {way: [1e3 * run.seconds / run.rounds for run in made] for way, made in runs.items()}
    pairs = ((CAPTURED, OPTED_OUT), (OPTED_OUT, WITHOUT), (CAPTURED, WITHOUT), (PACED, PLAIN), (CAPTURED, PLAIN))
    bench.figures.write(
        "rounds",
        shape=bench.plan.shape,
        batch=batch,
        accept_length=round(runs[CAPTURED][-1].accept_length, 3),
        round_ms={way: Spread.of(figures).text(3) for way, figures in round_ms.items()},
        tokens_per_second={
            f"{one} over {other}": ratio(rates[one], rates[other]).text()
            for one, other in pairs
            if {one, other} <= rates.keys()
        },
        hooks={way: _per_round(runs[way]) for way in (OPTED_OUT, CAPTURED)},
        dropped={reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)},
    )


def _run(bench: Bench, way: str, asked: Sequence[Prompt], tokens: int) -> _Run:
    """Every run prefills the same tokens, and what the courier still has of it is delivered before the next."""
    url, capture = bench.ways[way]
    flush_cache(url)
    is_timed = url == bench.server.url
    began = _sums(bench) if is_timed else {}
    answers = answer_all(url, asks(asked, "costs", tokens, capture=capture), len(asked))
    ended = _sums(bench) if is_timed else {}
    for server in (bench.server, bench.paced):
        if server is not None:
            server.drained()
    rounds_run = max(answer.meta.get("spec_verify_ct") or tokens for answer in answers.answers)
    return _Run(
        tokens_per_second=answers.tokens_per_second,
        seconds=answers.seconds,
        rounds=rounds_run,
        accept_length=answers.tally.accept_length if is_timed else 0.0,
        began=began,
        ended=ended,
    )


def _sums(bench: Bench) -> Sums:
    """The sums by now; one token of a request that opts out has them written."""
    time.sleep(PROBE_S)
    answer_all(bench.server.url, asks(prompts(bench, 1, "probe"), "probe", 1, capture=False), 1)
    return read_sums(bench.times)


def _per_round(runs: Sequence[_Run]) -> dict[str, str]:
    """By hook: calls and microseconds of one round, and the longest call since the server started."""
    rounds_run = sum(run.rounds for run in runs)
    found = {}
    for hook, (_, _, longest_ns) in sorted(runs[-1].ended.items()):
        calls, took_ns = (
            sum(run.ended[hook][at] - run.began.get(hook, [0, 0, 0])[at] for run in runs) for at in (0, 1)
        )
        if calls:
            shares = f"{calls / rounds_run:.2f} calls, {took_ns / rounds_run / 1e3:.1f} us"
            found[hook] = f"{shares}, {took_ns / calls / 1e3:.1f} each, longest {longest_ns / 1e3:.0f}"
    return found


def profiles(bench: Bench) -> None:
    """Calls of CUDA and kernels of a forward, by way."""
    for batch in bench.plan.profiled:
        tokens = 2 * bench.plan.steps + 40
        for way, (url, capture) in bench.ways.items():
            if bench.figures.has("profile", shape=bench.plan.shape, batch=batch, way=way):
                continue
            asked = asks(prompts(bench, batch, f"profile {batch} {way}"), "profile", tokens, capture=capture)
            folder = bench.folder / f"profile-{batch}-{way.replace(' ', '-')}"
            serve = partial(answer_all, url, asked, batch)
            found = profiled(url, folder, bench.plan.steps, has_gpu=bench.has_gpu, serve=serve)
            bench.figures.write("profile", shape=bench.plan.shape, batch=batch, way=way, per_forward=found)


def locks(bench: Bench) -> None:
    """Which threads of the scheduler's process hold Python's lock while it serves."""
    scheduler = child_named(bench.service.pid, "sglang::scheduler")
    for batch in bench.plan.profiled:
        for way in (OPTED_OUT, CAPTURED):
            if bench.figures.has("locks", shape=bench.plan.shape, batch=batch, way=way):
                continue
            url, capture = bench.ways[way]
            tokens = 3 * max(bench.plan.tokens.values())
            asked = asks(prompts(bench, batch, f"locks {batch} {way}"), "locks", tokens, capture=capture)
            with ThreadPoolExecutor(1) as watching:
                shares = watching.submit(lock_shares, scheduler.pid, bench.folder, LOCK_S)
                answer_all(url, asked, batch)
            bench.figures.write("locks", shape=bench.plan.shape, batch=batch, way=way, shares=shares.result())


def same_answers(bench: Bench) -> None:
    """How many answers are token by token those of another way: one request at a time, and all at a time."""
    asked = prompts(bench, ANSWERS, "answers")
    tokens = max(bench.plan.tokens.values())
    for concurrency in (1, ANSWERS):
        if bench.figures.has("same answers", shape=bench.plan.shape, concurrency=concurrency):
            continue
        said = {}
        for way, (url, capture) in bench.ways.items():
            flush_cache(url)
            answers = answer_all(url, asks(asked, "answers", tokens, capture=capture), concurrency).answers
            said[way] = [answer.output_ids for answer in answers]
        same = {
            f"{one} as {other}": f"{sum(map(eq, said[one], said[other]))} of {ANSWERS}"
            for one, other in combinations(said, 2)
        }
        bench.figures.write("same answers", shape=bench.plan.shape, concurrency=concurrency, tokens=tokens, **same)


def swap_waits(bench: Bench) -> None:
    """Longest wait for a token in a second before a swap of paceline's, and around it; how long staging took."""
    if bench.figures.has("swap waits", shape=bench.plan.shape):
        return
    began = time.time()
    waits = _waits(bench, bench.server.url, partial(stalls.paceline_swap, bench.server, len(bench.drafts)))
    made = stalls.swaps_since(bench.server, began)
    stage_ms = [round(swap.stage_ms, 1) for swap in made]
    commit_ms = [round(swap.commit_ms, 1) for swap in made]
    bench.figures.write("swap waits", shape=bench.plan.shape, **waits, stage_ms=stage_ms, commit_ms=commit_ms)


def stock_waits(bench: Bench) -> None:
    """The same on the server without paceline, by SGLang's own endpoints."""
    if WITHOUT in bench.others and not bench.figures.has("stock waits", shape=bench.plan.shape):
        url = bench.others[WITHOUT]
        swap = partial(stalls.stock_swap, url, stalls.stock_payload(bench.drafts[0]))
        bench.figures.write("stock waits", shape=bench.plan.shape, **_waits(bench, url, swap))


def _waits(bench: Bench, url: str, swap: Callable[[], stalls.Window]) -> dict[str, Any]:
    quiet_window: list[stalls.Window] = []

    def act() -> stalls.Window:
        began = time.time()
        time.sleep(1.0)
        quiet_window.append((began, time.time()))
        return swap()

    streams = min(4, max(bench.plan.tokens))
    first = answer_all(url, asks(prompts(bench, streams, "speed"), "speed", 64, capture=False), streams)
    tokens = min(round(bench.plan.swap_s * first.tokens_per_second / streams), 4800 if bench.has_gpu else 400)
    plan = stalls.StallPlan(repeats=bench.plan.swaps, streams=streams, max_tokens=tokens, act_after_s=0.5)
    waits: dict[str, list[float | None]] = {"before": [], "around": []}
    for repeat in range(plan.repeats):
        asked = prompts(bench, streams, f"swap {repeat}")
        served, window = asyncio.run(stalls.stream(stalls.Way(url, act), asked, plan))
        waits["before"].append(longest_gap_ms(served, quiet_window[-1]))
        waits["around"].append(longest_gap_ms(served, window))
    usual_ms = round(1e3 * streams / first.tokens_per_second, 2)
    return {"waits_ms": waits, "usual_gap_ms": usual_ms, "streams": streams}


def prompts(bench: Bench, count: int, seed: str) -> list[Prompt]:
    """Random tokens: these weights know no text."""
    draw = random.Random(seed)
    words = SHAPES[bench.plan.shape][0]["vocab_size"]
    name = seed.replace(" ", "-")
    return [
        Prompt(f"{name}-{number}", "random", tuple(draw.randrange(3, words) for _ in range(PROMPT_TOKENS)))
        for number in range(count)
    ]
