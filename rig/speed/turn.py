"""One server's turn: it answers a block of prompts alone, and every arrival is kept."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from ...buffer.errors import PacelineError
from ...policies.acceptance import Tally
from ..prompts import Prompt
from ..traffic import Served, send
from .arm import ArmServer

#: Between two turns, for what became due on the server that was asked last.
SETTLE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer: its tokens, and milliseconds from the start of the turn."""

    request: str
    sent_ms: float
    arrivals: tuple[tuple[float, int], ...]  # milliseconds, and tokens so far
    output_ids: tuple[int, ...]
    accepted: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The answers of one server to a block, in the order of the prompts; all are complete."""

    arm: str
    concurrency: int
    at: float  # unix seconds
    answers: tuple[Answer, ...]

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return sum(len(answer.output_ids) for answer in self.answers)

    @property
    def seconds(self) -> float:
        """From the first request sent to the last token."""
        last_ms = max(answer.arrivals[-1][0] for answer in self.answers)
        return (last_ms - min(answer.sent_ms for answer in self.answers)) / 1e3

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over `seconds`: prefill and the client's own time are in it."""
        return self.tokens / self.seconds

    @property
    def tally(self) -> Tally:
        """Accepted drafts and verify rounds; none of a server that does not draft."""
        return Tally(sum(a.accepted for a in self.answers), sum(a.rounds for a in self.answers))

    def token_ms(self) -> list[float]:
        """Time of every token after an answer's first chunk, milliseconds.

        The wait for a chunk is shared equally by its tokens, as SGLang's own bench_serving does.
        """
        shared = []
        for answer in self.answers:
            for (before_ms, had), (after_ms, has) in zip(answer.arrivals, answer.arrivals[1:], strict=False):
                shared += [(after_ms - before_ms) / (has - had)] * (has - had)
        return shared


def take_turn(server: ArmServer, prompts: Sequence[Prompt], *, concurrency: int, max_tokens: int, label: str) -> Turn:
    """Ask one server all of `prompts`, `concurrency` at a time, and wait for every answer.

    Request ids begin with `label`, which no other turn may have had. PacelineError when the server has ended, or an
    answer is missing or short.
    """
    server.service.ensure_running()
    asked = [replace(prompt, request_id=f"{label}-{prompt.request_id}") for prompt in prompts]
    began_at = time.time()
    served = asyncio.run(send(server.url, asked, concurrency=concurrency, max_tokens=max_tokens))
    by_id = {one.prompt.request_id: _answer(one, began_at, max_tokens, server.arm.name) for one in served}
    answers = tuple(
        replace(by_id[ask.request_id], request=prompt.request_id) for ask, prompt in zip(asked, prompts, strict=True)
    )
    return Turn(server.arm.name, concurrency, began_at, answers)


def take_turns(
    servers: Mapping[str, ArmServer],
    ask: Callable[[ArmServer], Turn],
    draw: random.Random,
    beside: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> list[Turn]:
    """One turn of every server, in an order that `draw` gives; `beside` is what runs while the arm named is asked."""
    turns = []
    for name in draw.sample(list(servers), len(servers)):
        with beside(name):
            turns.append(ask(servers[name]))
        time.sleep(SETTLE_S)
    return turns


def different(turns: Sequence[Turn], reference: str) -> list[str]:
    """Answers of a block that are not those of arm `reference`, as "arm request"."""
    expected = next([a.output_ids for a in turn.answers] for turn in turns if turn.arm == reference)
    return [
        f"{turn.arm} {answer.request}"
        for turn in turns
        for answer, ids in zip(turn.answers, expected, strict=True)
        if answer.output_ids != ids
    ]


def _answer(served: Served, began_at: float, max_tokens: int, arm: str) -> Answer:
    if served.failure or len(served.output_ids) != max_tokens:
        got = served.failure or f"{len(served.output_ids)} tokens, {served.finish}"
        raise PacelineError(f"{arm}, request {served.prompt.request_id}: got {got}; expected {max_tokens} tokens")
    arrivals: dict[int, float] = {}
    for arrival in served.arrivals:  # a chunk without a new token is no arrival
        arrivals.setdefault(arrival.tokens, round(1e3 * (arrival.at - began_at), 2))
    return Answer(
        request=served.prompt.request_id,
        sent_ms=round(1e3 * (served.sent_at - began_at), 2),
        arrivals=tuple((at_ms, tokens) for tokens, at_ms in arrivals.items()),
        output_ids=served.output_ids,
        accepted=int(served.tally.accepted),
        rounds=int(served.tally.rounds),
    )
