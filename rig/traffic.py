"""A client that streams prompts through a running SGLang server and records what arrived when."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from ..policies.acceptance import Tally
from .prompts import Prompt

_GATE_LIMIT_S = 60.0  # a gate that stays closed must not stop the traffic for good
_PATIENCE_S = 120.0  # without a byte from the server; a request that waits longer has failed


@dataclass(frozen=True, slots=True)
class Arrival:
    """One streamed chunk; `tokens` counts all tokens of the request so far, as SGLang streams cumulatively."""

    at: float  # unix seconds
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The outcome of one request."""

    prompt: Prompt
    sent_at: float  # unix seconds
    arrivals: tuple[Arrival, ...]
    output_ids: tuple[int, ...]
    finish: str  # SGLang's type of finish: "length", "stop", "abort"; empty: no answer, see `failure`
    tally: Tally  # accepted drafts and verify rounds
    retractions: int
    failure: str = ""

    @property
    def done_at(self) -> float:
        """Unix seconds of the last chunk; of sending when none came."""
        return self.arrivals[-1].at if self.arrivals else self.sent_at


async def send(
    base_url: str,
    prompts: Iterable[Prompt],
    *,
    concurrency: int,
    max_tokens: int,
    temperature: float = 0.0,
    is_labelled: bool = False,
    ends_at_eos: bool = False,
    on_served: Callable[[Served], None] = lambda _: None,
    gate: asyncio.Event | None = None,
) -> list[Served]:
    """Send `prompts` in order, `concurrency` at a time; return what was served, in order of completion.

    Greedy at temperature 0, sampled above. Every request yields `max_tokens` tokens, unless `ends_at_eos`. With
    `is_labelled` a request names its prompt's domain as its label.
    `on_served` is called in the event loop right after each request. A request that fails is returned with its
    failure; nothing is retried. Cancelling closes the connections, which aborts the requests in the server. While
    `gate` is not set no new request is sent, for a minute at most; those in flight go on.
    """
    queue = iter(prompts)
    served: list[Served] = []
    sampling = {"temperature": temperature, "ignore_eos": not ends_at_eos, "max_new_tokens": max_tokens}

    async def work(client: httpx.AsyncClient) -> None:
        for prompt in queue:  # shared: each worker takes the next prompt
            if gate is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(gate.wait(), _GATE_LIMIT_S)
            result = await _serve(client, prompt, sampling | _label(prompt) if is_labelled else sampling)
            served.append(result)
            on_served(result)

    limits = httpx.Limits(max_connections=concurrency)
    async with (
        httpx.AsyncClient(base_url=base_url, timeout=_PATIENCE_S, limits=limits, trust_env=False) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(concurrency):
            group.create_task(work(client))
    return served


def pooled(results: Iterable[Served]) -> Tally:
    """Accepted drafts and rounds of all results together."""
    return sum((result.tally for result in results), Tally(0, 0))


def longest_gap_ms(results: Iterable[Served], window: tuple[float, float]) -> float | None:
    """Longest wait between two chunks of one request, milliseconds, among waits that touch `window`.

    `window` is (first, last) in unix seconds. None when no request streamed in it: nobody waited who could tell.
    """
    first, last = window
    gaps_s = [
        after.at - before.at
        for result in results
        for before, after in zip(result.arrivals, result.arrivals[1:], strict=False)
        if before.at <= last and after.at >= first
    ]
    return 1000.0 * max(gaps_s) if gaps_s else None


def tokens_per_second(results: Sequence[Served]) -> float:
    """Output tokens of all results over the time from the first request sent to the last chunk; 0.0 without any."""
    if not results:
        return 0.0
    seconds = max(result.done_at for result in results) - min(result.sent_at for result in results)
    return sum(len(result.output_ids) for result in results) / seconds if seconds > 0 else 0.0


def _label(prompt: Prompt) -> dict[str, object]:
    return {"custom_params": {"paceline_label": prompt.domain}}


async def _serve(client: httpx.AsyncClient, prompt: Prompt, sampling: Mapping[str, object]) -> Served:
    body = {
        "rid": prompt.request_id,
        "input_ids": list(prompt.input_ids),
        "stream": True,
        "sampling_params": sampling,
    }
    sent_at = time.time()
    arrivals = []
    last = {}
    try:
        async for last in _chunks(client, body):
            arrivals.append(Arrival(time.time(), len(last["output_ids"])))
    except (httpx.HTTPError, ValueError, KeyError) as error:
        failure = f"{type(error).__name__}: {error}"
        return _outcome(prompt, sent_at=sent_at, arrivals=arrivals, last={}, failure=failure)
    failure = "" if last else "the server closed the stream without an answer"
    return _outcome(prompt, sent_at=sent_at, arrivals=arrivals, last=last, failure=failure)


async def _chunks(client: httpx.AsyncClient, body: Mapping[str, object]) -> AsyncIterator[dict[str, Any]]:
    """Chunks of SGLang's server-sent events, each with all output so far. ValueError carries a server's refusal."""
    async with client.stream("POST", "/generate", json=body) as response:
        if response.is_error:
            raise ValueError(f"HTTP {response.status_code}: {(await response.aread())[:300].decode(errors='replace')}")
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise ValueError(chunk["error"].get("message", chunk["error"]))
                yield chunk


def _outcome(
    prompt: Prompt, *, sent_at: float, arrivals: Sequence[Arrival], last: Mapping[str, Any], failure: str
) -> Served:
    meta = last.get("meta_info", {})
    return Served(
        prompt=prompt,
        sent_at=sent_at,
        arrivals=tuple(arrivals),
        output_ids=tuple(last.get("output_ids", ())),
        finish=(meta.get("finish_reason") or {}).get("type", ""),
        tally=Tally(meta.get("spec_num_correct_drafts", 0), meta.get("spec_verify_ct", 0)),
        retractions=meta.get("num_retractions", 0),
        failure=failure,
    )
