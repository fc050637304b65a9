"""Requests answered whole, not streamed, to measure throughput and correctness with."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from ...policies.acceptance import Tally
from ...rig.prompts import Prompt
from ...serving.capture.sglang_requests import OPT_OUT_KEY
from .measured_server import under_new_ids, wait_until

PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. `stop_tokens` end it early, else it yields `max_tokens` tokens."""

    prompt: Prompt
    max_tokens: int
    stop_tokens: tuple[int, ...] = ()
    capture: bool = True  # False: the client opts out
    temperature: float = 0.0

    def body(self) -> dict[str, object]:
        """Body of SGLang's /generate."""
        sampling: dict[str, object] = {"temperature": self.temperature, "max_new_tokens": self.max_tokens}
        sampling |= {"stop_token_ids": list(self.stop_tokens)} if self.stop_tokens else {"ignore_eos": True}
        sampling |= {} if self.capture else {"custom_params": {OPT_OUT_KEY: True}}
        return {
            "rid": self.prompt.request_id,
            "input_ids": list(self.prompt.input_ids),
            "sampling_params": sampling,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, with SGLang's `meta_info`."""

    ask: Ask
    output_ids: tuple[int, ...]
    meta: Mapping[str, Any]

    @property
    def tally(self) -> Tally:
        """Accepted drafts and verify rounds as SGLang counted them."""
        return Tally(self.meta["spec_num_correct_drafts"], self.meta["spec_verify_ct"])


@dataclass(frozen=True, slots=True)
class Answers:
    """All answers of one run, in the order asked, and how long the run took."""

    answers: tuple[Answer, ...]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of the run over its duration, which includes prefill and the client's own time."""
        return sum(len(answer.output_ids) for answer in self.answers) / self.seconds

    @property
    def tally(self) -> Tally:
        """Pooled over the run."""
        return sum((answer.tally for answer in self.answers), Tally())


def asks(prompts: Sequence[Prompt], label: str, max_tokens: int, *, capture: bool = True) -> list[Ask]:
    """One request per prompt, under new ids that begin with `label`."""
    return [Ask(prompt=prompt, max_tokens=max_tokens, capture=capture) for prompt in under_new_ids(prompts, label)]


def answer_all(url: str, asked: Sequence[Ask], concurrency: int) -> Answers:
    """Send everything, `concurrency` at a time, and wait for all answers; exits when a request fails."""
    began_s = time.perf_counter()
    answers = asyncio.run(_answer_all(url, asked, concurrency))
    return Answers(tuple(answers), time.perf_counter() - began_s)


def flush_cache(url: str) -> None:
    """Empty the radix cache of an idle server, so that the next run prefills every token."""
    with httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
        wait_until(lambda: client.post("/flush_cache").is_success, "the server to be idle and to flush its cache")


async def _answer_all(url: str, asked: Sequence[Ask], concurrency: int) -> list[Answer]:
    gate = asyncio.Semaphore(concurrency)
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits, trust_env=False) as client:
        return await asyncio.gather(*(_answer(client, gate, ask) for ask in asked))


async def _answer(client: httpx.AsyncClient, gate: asyncio.Semaphore, ask: Ask) -> Answer:
    async with gate:
        reply = await client.post("/generate", json=ask.body())
    if reply.is_error:
        raise SystemExit(f"request {ask.prompt.request_id} failed: HTTP {reply.status_code} {reply.text[:300]}")
    body = reply.json()
    return Answer(ask, tuple(body["output_ids"]), body["meta_info"])
