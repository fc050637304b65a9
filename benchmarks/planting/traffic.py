"""Traffic that lasts for a time: requests of one kind, some at a time, and the speed at which they were answered."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...rig.prompts import Prompt
from ...rig.traffic import Served, send

MAX_TOKENS = 48
#: So much at both ends of a phase is no part of it, so that no entry of the history, one in five seconds, counts what
#: another phase served among what this one did.
MARGIN_S = 3.0

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one kind."""

    prompts: Sequence[Prompt]  # used again and again, under new ids
    label: str
    concurrency: int = 2
    temperature: float = 0.0
    max_tokens: int = MAX_TOKENS


@dataclass(frozen=True, slots=True)
class Phase:
    """A time under one set of conditions."""

    began_s: float  # unix seconds, MARGIN_S after the conditions began
    ended_s: float  # MARGIN_S before the last request
    request_tokens_per_second: float  # of one request, as its client saw it
    requests: int


def serve_for(url: str, traffic: Traffic, seconds: float) -> Phase:
    """Send requests for so long and a margin at each end, and wait for the last answers. SystemExit when one fails."""
    began_s = time.time() + MARGIN_S
    ended_s = began_s + seconds
    sending = send(
        url,
        _prompts(traffic, ended_s + MARGIN_S),
        concurrency=traffic.concurrency,
        max_tokens=traffic.max_tokens,
        temperature=traffic.temperature,
        is_labelled=True,
    )
    every = asyncio.run(sending)
    failures = [result.failure for result in every if result.failure]
    results = [result for result in every if began_s <= result.sent_at < ended_s]
    if failures or not results:
        raise SystemExit(
            f"of {len(every)} requests {len(failures)} failed: {failures[:1]}; {len(results)} in the phase"
        )
    return Phase(began_s, ended_s, _speed(results), len(results))


def _prompts(traffic: Traffic, until_s: float) -> Iterator[Prompt]:
    for prompt in itertools.cycle(traffic.prompts):
        if time.time() >= until_s:
            return
        yield replace(prompt, request_id=f"planted-{next(_numbers)}", domain=traffic.label)


def _speed(results: Sequence[Served]) -> float:
    """Tokens over the time from the first token of a request to its last, pooled: SGLang reports the first at once."""
    tokens = sum(result.arrivals[-1].tokens - result.arrivals[0].tokens for result in results)
    return tokens / sum(result.done_at - result.arrivals[0].at for result in results)
