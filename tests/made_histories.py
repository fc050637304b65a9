"""Histories of a replica and a learner, made from what is known to have happened: for tests of what explains them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from paceline.buffer.board.counters import (
    Counters,
    LearnerCounters,
    SchedulerCounters,
    ServedCell,
    ServedCounters,
    StepCell,
)

REPLICA = "replica:r"
LEARNER = "learner:l"
EVERY_S = 5.0


@dataclass(frozen=True)
class Conditions:
    """How a replica serves for some time."""

    running: int = 4
    labels: Mapping[str, float] = field(default_factory=lambda: {"py": 1.0})  # share of the tokens
    sampled: float = 0.0  # share of the tokens of every label
    draft: int = 1
    #: Accept length by label; the kind "sampled" and drafts listed in `lengths_of` have their own.
    lengths: Mapping[str, float] = field(default_factory=lambda: {"py": 2.4, "prose": 1.5})
    sampled_factor: float = 0.8
    lengths_of: Mapping[int, float] = field(default_factory=dict)  # draft -> times the label's
    draft_steps: int = 3
    plain: float = 0.0  # share of the steps
    step_s: float = 0.02  # of one request, no learner
    per_request_s: float = 0.002  # for each further request
    is_learning: bool = False
    learner_cost: float = 1.0  # times the step's time while it learns
    prefill: float = 0.1  # share of the time that is not idle
    idle: float = 0.0
    target: str = "t0"


def accept_length(now: Conditions, label: str, kind: str) -> float:
    """Of one cell."""
    factor = now.sampled_factor if kind == "sampled" else 1.0
    return max(1.0, now.lengths[label] * factor * now.lengths_of.get(now.draft, 1.0))


def drafted_length(now: Conditions) -> float:
    """Tokens per verify round of all cells: the tokens over the rounds they take."""
    return 1.0 / sum(share / accept_length(now, *cell) for cell, share in cells(now).items())


def cells(now: Conditions) -> dict[tuple[str, str], float]:
    """(label, kind) -> share of the tokens."""
    kinds = {"greedy": 1.0 - now.sampled, "sampled": now.sampled}
    return {(label, kind): a * b for label, a in now.labels.items() for kind, b in kinds.items() if a * b}


def bucket(running: int) -> int:
    """The smallest power of two that holds so many."""
    return 1 << (running - 1).bit_length()


def step_seconds(now: Conditions) -> float:
    """Of one decode step."""
    cost = now.learner_cost if now.is_learning else 1.0
    return (now.step_s + (now.running - 1) * now.per_request_s) * cost


class MadeReplica:
    """Counts as a replica does, entry by entry; `noise` is the relative spread of lengths and step times."""

    def __init__(self, noise: float = 0.0, seed: int = 0, boot: str = "b0", *, has_clock: bool = True) -> None:
        self._noise = noise
        self._rng = np.random.default_rng(seed)
        self.boot = boot
        self.has_clock = has_clock
        self._served: dict[tuple[int, str, str], list[int]] = {}
        self._ended: dict[tuple[int, str, str], np.ndarray] = {}
        self._steps: dict[tuple[int, int], list[float]] = {}
        self._seconds = {"decode": 0.0, "prefill": 0.0, "swap": 0.0, "idle": 0.0}

    def restart(self) -> None:
        """Count from nothing, under another boot."""
        number = int(self.boot[1:]) + 1
        self.__init__(self._noise, seed=number, boot=f"b{number}", has_clock=self.has_clock)

    def serve(self, now: Conditions, seconds: float = EVERY_S) -> None:
        """Count so much time under these conditions."""
        busy_s = seconds * (1.0 - now.idle)
        decode_s = busy_s * (1.0 - now.prefill)
        steps = decode_s / (step_seconds(now) * self._factor())
        for key, value in {"decode": decode_s, "prefill": busy_s - decode_s, "idle": seconds - busy_s}.items():
            self._seconds[key] += value
        shares = {now.draft_steps: 1.0 - now.plain, 0: now.plain}
        for draft_steps, share in shares.items():
            if share:
                rounds = steps * share * now.running
                tokens = self._count(now, rounds) if draft_steps else rounds
                self._add_steps(bucket(now.running), draft_steps, steps * share, decode_s * share, tokens, rounds)

    def counters(self, at: float, now: Conditions) -> Counters:
        """As they are."""
        served = [
            ServedCell(
                draft=d, label=label, kind=k, rounds=r, accepted=a, ended=tuple(map(int, self._ended[d, label, k]))
            )
            for (d, label, k), (r, a) in self._served.items()
        ]
        steps = [
            StepCell(bucket=b, draft_steps=k, steps=round(n), seconds=s, tokens=round(t), requests=round(r))
            for (b, k), (n, s, t, r) in self._steps.items()
        ]
        scheduler = SchedulerCounters(steps=steps, seconds=dict(self._seconds)) if self.has_clock else None
        return Counters(
            at=at,
            boot=self.boot,
            draft=now.draft,
            target_version=now.target,
            served=ServedCounters(cells=served),
            scheduler=scheduler,
        )

    def _count(self, now: Conditions, rounds: float) -> float:
        """Rounds and accepted drafts of every cell; returns the tokens."""
        tokens = rounds * drafted_length(now)
        total = 0.0
        for (label, kind), share in cells(now).items():
            length = 1.0 + (accept_length(now, label, kind) - 1.0) * self._factor()
            count = round(tokens * share / accept_length(now, label, kind))
            accepted = round(count * (length - 1.0))
            known = self._served.setdefault((now.draft, label, kind), [0, 0])
            known[0] = known[0] + count
            known[1] = known[1] + accepted
            self._end(now.draft, label, kind, count, accepted)
            total += count + accepted
        return total

    def _end(self, draft: int, label: str, kind: str, rounds: int, accepted: int) -> None:
        each = 20
        whole = self._ended.setdefault((draft, label, kind), np.zeros(6))
        requests = rounds // each
        drawn = self._rng.binomial(3 * each, min(accepted / max(rounds, 1) / 3, 1.0), requests)
        a = drawn.sum()
        squared = (drawn**2).sum()
        whole += np.array([requests, requests * each, a, requests * each * each, each * a, squared])

    def _add_steps(self, size: int, draft_steps: int, *counts: float) -> None:
        known = self._steps.setdefault((size, draft_steps), [0.0] * 4)
        self._steps[size, draft_steps] = [a + b for a, b in zip(known, counts, strict=True)]

    def _factor(self) -> float:
        return float(np.exp(self._rng.normal(0.0, self._noise))) if self._noise else 1.0


def histories(
    phases: Sequence[tuple[float, Conditions]], *, noise: float = 0.0, seed: int = 0, has_clock: bool = True
) -> dict[str, list[Counters]]:
    """Of a replica and a learner over (seconds, conditions), one entry every EVERY_S, from second 0."""
    replica = MadeReplica(noise, seed, has_clock=has_clock)
    at = busy_s = 0.0
    found = [replica.counters(at, phases[0][1])]
    learner = [_learner(at, busy_s, phases[0][1])]
    for seconds, now in phases:
        for _ in range(round(seconds / EVERY_S)):
            at += EVERY_S
            replica.serve(now)
            found.append(replica.counters(at, now))
            busy_s += EVERY_S if now.is_learning else 0.0
            learner.append(_learner(at, busy_s, now))
    return {REPLICA: found, LEARNER: learner}


def changed(before: Conditions, **fields: object) -> Conditions:
    """The same with some fields changed."""
    return replace(before, **fields)


def _learner(at: float, busy_s: float, now: Conditions) -> Counters:
    seconds = {"train": busy_s, "idle": at - busy_s}
    return Counters(at=at, boot="l", learner=LearnerCounters(is_busy=now.is_learning, seconds=seconds))
