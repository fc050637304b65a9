"""Amounts: what was served in some time, as sums that can be added and subtracted, and rates made of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple, TypeVar

from ..ratio_sums import RatioSums

#: Whether a learner ran while steps were taken; PARTLY: it began or ended a round meanwhile.
BUSY = "busy"
IDLE = "idle"
PARTLY = "partly"
UNKNOWN = "unknown"


class ServedKey(NamedTuple):
    """What rounds are told apart by; the order is the one in which a change is split."""

    label: str
    kind: str  # greedy, sampled or edited
    draft: int


class StepKey(NamedTuple):
    """What decode steps are told apart by; the order is the one in which a change is split."""

    bucket: int  # largest batch size of the bucket
    draft_steps: int  # 0: plain decoding
    learner: str  # BUSY, IDLE, PARTLY or UNKNOWN


@dataclass(frozen=True, slots=True)
class Rounds:
    """Verify rounds."""

    rounds: int = 0
    accepted: int = 0
    ended: tuple[int, ...] = (0, 0, 0, 0, 0, 0)  # fields of RatioSums, of the stretches that ended

    def __add__(self, other: "Rounds") -> "Rounds":
        ended = tuple(map(add, self.ended, other.ended))
        return Rounds(self.rounds + other.rounds, self.accepted + other.accepted, ended)

    @property
    def tokens(self) -> int:
        """Committed, the target's own included."""
        return self.rounds + self.accepted

    @property
    def accept_length(self) -> float:
        """Tokens per round; 0.0 without rounds."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the accept length of the stretches that ended; None where they are too few."""
        return RatioSums.of_row(self.ended).interval


@dataclass(frozen=True, slots=True)
class Steps:
    """Decode steps."""

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0  # committed, of all requests
    requests: int = 0  # sum of the batch sizes

    def __add__(self, other: "Steps") -> "Steps":
        return Steps(
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.tokens + other.tokens,
            self.requests + other.requests,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What replicas served, added up over them; `seconds` is their schedulers' time by what they did in it."""

    served: Mapping[ServedKey, Rounds] = field(default_factory=dict)
    steps: Mapping[StepKey, Steps] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    targets: frozenset[str] = frozenset()  # versions of the target that served
    replicas: frozenset[str] = frozenset()

    def __add__(self, other: "Amounts") -> "Amounts":
        return added((self, other))

    @property
    def all_rounds(self) -> Rounds:
        """Of every cell."""
        return sum(self.served.values(), Rounds())

    @property
    def all_steps(self) -> Steps:
        """Of every cell."""
        return sum(self.steps.values(), Steps())

    @property
    def clock_s(self) -> float:
        """Scheduler seconds of all replicas; at least those of the decode steps."""
        return max(sum(self.seconds.values()), self.all_steps.seconds)

    @property
    def busy_s(self) -> float:
        """Those of them that were not idle; at least those of the decode steps."""
        return max(self.clock_s - self.seconds.get("idle", 0.0), self.all_steps.seconds)

    @property
    def tokens_per_second(self) -> float | None:
        """Of one replica while its scheduler ran; None without a step clock."""
        return self.all_steps.tokens / self.clock_s if self.seconds and self.all_steps.seconds else None

    @property
    def request_tokens_per_second(self) -> float | None:
        """Of one request while it runs; None without a step clock."""
        whole = self.all_steps
        if not self.seconds or not whole.seconds or not whole.requests:
            return None
        return whole.tokens / self.busy_s / (whole.requests / whole.steps)


def added(amounts: Iterable[Amounts]) -> Amounts:
    """All of them together."""
    every = list(amounts)
    return Amounts(
        served=_summed(each.served for each in every),
        steps=_summed(each.steps for each in every),
        seconds=_summed(each.seconds for each in every),
        targets=frozenset().union(*(each.targets for each in every)),
        replicas=frozenset().union(*(each.replicas for each in every)),
    )


_K = TypeVar("_K")
_V = TypeVar("_V", Rounds, Steps, float)


def _summed(tables: Iterable[Mapping[_K, _V]]) -> dict[_K, _V]:
    found: dict[_K, _V] = {}
    for key, value in (row for table in tables for row in table.items()):
        found[key] = found[key] + value if key in found else value
    return found
