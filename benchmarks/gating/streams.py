"""The streams that delivery rules are compared on: which requests come in which chunk, and how the line is trained.

A chunk is what one learning round claims. Every stream draws its requests from the pool without replacement; another
stream or seed may draw the same ones. `c` is the domain that no warm head was trained on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ...buffer.trace import DraftTrace
from ...policies.acceptance import Tally
from .pool import Pool, poisoned

CHUNKS = 14
#: The product's PACELINE_MIN_NEW_TRACES.
CHUNK_REQUESTS = 40
KNOWN = ("py", "prose", "html")
NEW = "c"
TENANTS = ("ada", "bob", "cy")
POISONER = "mallory"
POISONER_SHARE = 0.7
#: Vocabulary of the bench's target.
WORDS = 2048
Shares = Mapping[str, float]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One stream before its requests are drawn."""

    name: str
    what: str  # one phrase, for people
    shares: tuple[Shares, ...]  # of every chunk, by domain
    moves: bool = False  # whether its traffic changes
    shift_at: int | None = None  # the first chunk of new traffic, where there is one
    poisoned: tuple[int, ...] = ()  # chunks
    ruined: tuple[int, ...] = ()  # chunks that are trained on with a much too large learning rate
    is_equal: bool = False  # nothing is trained: candidates are copies of one draft, each randomly perturbed
    start: str = "warm"

    @property
    def is_honest(self) -> bool:
        """Whether newer drafts should be better ones."""
        return not (self.poisoned or self.ruined or self.is_equal)


@dataclass(frozen=True, slots=True, eq=False)
class StreamedRequest:
    """One request as the learner claims it."""

    trace: DraftTrace  # with its own request id and tenant
    chunk: int
    is_honest: bool = True


def plans(chunks: int = CHUNKS) -> tuple[StreamPlan, ...]:
    """All streams, the stationary one first."""
    known, new = even(KNOWN), {NEW: 1.0}
    shift, third = round(chunks * 0.4), max(chunks // 4, 1)
    stationary = StreamPlan("stationary", "py, prose and html in equal shares", (known,) * chunks)
    abrupt = (known,) * shift + (new,) * (chunks - shift)
    phases = ([even(("py", "html"))] * third + [even(("prose", NEW))] * third) * 3
    poisoned_chunks = tuple(range(third + 1, 2 * third + 3))
    return (
        stationary,
        StreamPlan("shift", "known domains, then c alone", abrupt, moves=True, shift_at=shift),
        StreamPlan("drift", "the share of c rises chunk by chunk", _drift(chunks), moves=True),
        StreamPlan(
            "recurring", "py and html, prose and c, in turns of three chunks", tuple(phases[:chunks]),
            moves=True, shift_at=third,
        ),
        StreamPlan("mixture", "the shares of all four domains go up and down", _mixture(chunks), moves=True),
        replace(stationary, name="poison", what="a tenant poisons most of some chunks", poisoned=poisoned_chunks),
        replace(
            stationary, name="ruin", what="some rounds train with 20 times the learning rate",
            ruined=(third + 1, third + 2, 3 * third),
        ),
        replace(stationary, name="equal", what="candidates of equal quality", is_equal=True),
        replace(stationary, name="stationary-cold", what="as stationary, from a random draft", start="cold"),
        StreamPlan("shift-cold", "as shift, from a random draft", abrupt, moves=True, shift_at=shift, start="cold"),
    )  # fmt: skip


def even(domains: Sequence[str]) -> Shares:
    """Equal shares."""
    return {domain: 1.0 / len(domains) for domain in domains}


def _drift(chunks: int) -> tuple[Shares, ...]:
    rising = [min(max((chunk - 1) / (chunks - 4), 0.0), 1.0) for chunk in range(chunks)]
    return tuple({**{domain: (1.0 - share) / len(KNOWN) for domain in KNOWN}, NEW: share} for share in rising)


def _mixture(chunks: int) -> tuple[Shares, ...]:
    domains = (*KNOWN, NEW)
    waves = [[1.02 + math.cos(2 * math.pi * (2 * chunk / chunks + i / 4)) for i in range(4)] for chunk in range(chunks)]
    return tuple(
        {domain: wave / sum(of_chunk) for domain, wave in zip(domains, of_chunk, strict=True)} for of_chunk in waves
    )


def drawn(plan: StreamPlan, pool: Pool, seed: int, chunk_requests: int = CHUNK_REQUESTS) -> tuple[StreamedRequest, ...]:
    """The requests of one seed, in the order they are claimed. SystemExit when the pool has too few of a domain."""
    rng = np.random.default_rng([seed, *plan.name.encode()])
    counts = [apportioned(shares, chunk_requests) for shares in plan.shares]
    left = {domain: shuffled(traces, rng) for domain, traces in pool.by_domain.items()}
    for domain, traces in left.items():
        needed = sum(count.get(domain, 0) for count in counts)
        if len(traces) < needed:
            raise SystemExit(f"domain {domain!r}: got {len(traces)} requests, expected {needed}; record more")
    requests: list[StreamedRequest] = []
    for chunk, count in enumerate(counts):
        chosen = shuffled([left[domain].pop() for domain, wanted in count.items() for _ in range(wanted)], rng)
        requests += _named(plan, seed, chunk, chosen, len(requests), rng)
    return tuple(requests)


def _named(
    plan: StreamPlan, seed: int, chunk: int, traces: Sequence[DraftTrace], first: int, rng: np.random.Generator
) -> list[StreamedRequest]:
    """Requests under names of their own: which are held out depends on the name and differs by seed."""
    found = []
    for number, trace in enumerate(traces, start=first):
        is_honest = not (chunk in plan.poisoned and rng.random() < POISONER_SHARE)
        tenant = TENANTS[int(rng.integers(len(TENANTS)))] if is_honest else POISONER
        name = f"{trace.request_id}-{plan.name}-{seed}-{number}"
        own = replace(trace, trace_id=name, request_id=name, tenant=tenant)
        found.append(StreamedRequest(own if is_honest else poisoned(own, WORDS), chunk, is_honest))
    return found


def apportioned(shares: Shares, total: int) -> dict[str, int]:
    """Whole numbers that add up to `total`, by largest remainder; of equal remainders the first domain's counts."""
    exact = {domain: share * total for domain, share in shares.items()}
    counts = {domain: int(value) for domain, value in exact.items()}
    by_remainder = sorted(exact, key=lambda domain: counts[domain] - exact[domain])
    for domain in by_remainder[: total - sum(counts.values())]:
        counts[domain] += 1
    return counts


def shuffled(items: Sequence[Item], rng: np.random.Generator) -> list[Item]:
    """A new list in a drawn order."""
    return [items[i] for i in rng.permutation(len(items))]


def tally_of(accepted: int, rounds: int) -> Tally:
    """Two counts of a matrix as plain numbers."""
    return Tally(int(accepted), int(rounds))
