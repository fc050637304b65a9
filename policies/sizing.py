"""What a fleet needs beside its servers: bytes, memory, cores, GPUs and money, from measured constants and the user's.

Nothing is guessed: what no bench has measured and the user does not give is None.
"""

import math
from dataclasses import dataclass

from .sizing_constants import (
    BEAT_BYTES,
    BOARD,
    COURIER,
    LEARNER_CLAIM,
    MEMORY_SHARE,
    REDIS_APPEND,
    REDIS_CLAIM,
    REPLICA_BYTES,
    STORED_SHARE,
    TOKEN_BYTES,
    FeatureForm,
    StationCost,
)

#: Traces that a learning round claims at most; PACELINE_MIN_NEW_TRACES where that is more.
USUAL_CLAIM = 400
#: More ranks of one learner have nothing to do: a batch has so many traces.
MOST_RANKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Servers of one speculator, their traffic and what of it is kept; ValueError for what cannot be."""

    replicas: int
    tokens_per_s: float  # of output, of one replica
    prompt_tokens: int  # of a request, the mean
    output_tokens: int
    hidden: int  # values of one hidden state of the target
    form: FeatureForm
    layers: int = 3  # whose hidden states a draft reads
    value_bytes: int = 2  # of a hidden state as captured
    sample_rate: float = 1.0
    keep_s: float = 300.0  # for so long a trace is to stay in Redis
    trace_tokens: int = 2048  # PACELINE_TRACE_TOKENS
    stagger_s: float = 5.0  # PACELINE_STAGGER_S
    round_traces: int = USUAL_CLAIM  # that a learning round claims at most
    round_interval_s: float = 30.0  # PACELINE_ROUND_INTERVAL_S
    learned_tokens_per_s: float | None = None  # tokens of traces that one GPU learns; None: not known
    gpu_hour: float | None = None  # price of a learner's GPU; None: not given

    def __post_init__(self) -> None:
        positive = ("replicas", "tokens_per_s", "output_tokens", "hidden", "layers", "value_bytes", "keep_s")
        optional = ("learned_tokens_per_s",)
        for name in (*positive, *(name for name in optional if getattr(self, name) is not None)):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected more than 0")
        if not 0.0 < self.sample_rate <= 1.0:
            raise ValueError(f"sample_rate: got {self.sample_rate}, expected more than 0 and at most 1")

    @property
    def served_tokens_per_s(self) -> float:
        """Output tokens of all replicas."""
        return self.replicas * self.tokens_per_s

    @property
    def requests_per_s(self) -> float:
        """Of all replicas, captured or not."""
        return self.served_tokens_per_s / self.output_tokens

    @property
    def request_traces(self) -> int:
        """Windows that a request is cut into."""
        new_tokens = self.trace_tokens - self._context
        return 1 + max(math.ceil((self._kept_tokens - self.trace_tokens) / new_tokens), 0)

    @property
    def request_tokens(self) -> int:
        """Tokens in the traces of a request: those kept, and the context that every window after the first repeats."""
        return self._kept_tokens + (self.request_traces - 1) * self._context

    @property
    def _context(self) -> int:
        return self.trace_tokens // 4

    @property
    def _kept_tokens(self) -> int:
        """The whole prompt, or the end of one that fills a window, and the output."""
        kept = self.prompt_tokens if self.prompt_tokens < self.trace_tokens else self._context - 1
        return kept + self.output_tokens

    @property
    def feature_bytes(self) -> float:
        """Bytes of one token's features as they leave the server's device."""
        if self.form is FeatureForm.TOKENS:
            return 0.0
        if self.form is FeatureForm.INT8:
            return self.layers * self.hidden + 4.0  # a scale per token
        return float(self.layers * self.hidden * self.value_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What a fleet needs; None is not known. Cores are of processor time; Redis and a learner use one each at most."""

    trace_tokens_per_s: float
    token_bytes: float  # of a token of a trace in Redis
    trace_bytes_per_s: float  # to Redis
    beat_bytes_per_s: float  # to Redis, at most
    buffer_bytes: float  # PACELINE_BUFFER_MAX_BYTES that keeps traces for as long as they are to stay
    redis_bytes: float  # memory that Redis takes then
    redis_cores: float
    courier_cores: float  # of one server
    learner_cores: float  # to claim and to decode; training comes on top
    learner_gpus: float | None
    rollout_s: float  # until the last server drafts with a new version
    cost_per_million: float | None  # of learning, for a million output tokens served
    largest_sample_rate: float  # that the limits below allow; 0: none
    #: Redis, courier or learner: one core of it. GPUs: MOST_RANKS of a learner. rounds: the traces that these claim.
    limited_by: str  # empty where nothing is short


def sizing(fleet: Fleet) -> Sizing:
    """Of one speculator. All is in proportion to the tokens of traces, but for what every replica has."""
    captured_per_s = fleet.requests_per_s * fleet.sample_rate
    traced_per_s = captured_per_s * fleet.request_tokens
    stored_bytes = fleet.feature_bytes * STORED_SHARE[fleet.form].value if fleet.feature_bytes else 0.0
    token_bytes = TOKEN_BYTES.value + stored_bytes
    buffer_bytes = traced_per_s * token_bytes * fleet.keep_s
    redis_s = _request_s(REDIS_APPEND, fleet) + _request_s(REDIS_CLAIM, fleet)
    courier_s = _request_s(COURIER, fleet) / fleet.replicas
    learner_s = _request_s(LEARNER_CLAIM, fleet)
    board_cores = fleet.replicas * BOARD.value * 1e-6
    gpus = None if fleet.learned_tokens_per_s is None else traced_per_s / fleet.learned_tokens_per_s
    rates = {
        "Redis": max(1.0 - board_cores, 0.0) / (fleet.requests_per_s * redis_s),
        "courier": 1.0 / (fleet.requests_per_s * courier_s),
        "learner": 1.0 / (fleet.requests_per_s * learner_s),
        "rounds": fleet.round_traces / fleet.round_interval_s / (fleet.requests_per_s * fleet.request_traces),
    }
    if gpus is not None:
        rates["GPUs"] = MOST_RANKS / gpus * fleet.sample_rate
    limit = min(rates, key=lambda name: rates[name])
    return Sizing(
        trace_tokens_per_s=traced_per_s,
        token_bytes=token_bytes,
        trace_bytes_per_s=traced_per_s * token_bytes,
        beat_bytes_per_s=fleet.replicas * BEAT_BYTES.value,
        buffer_bytes=buffer_bytes,
        redis_bytes=buffer_bytes * MEMORY_SHARE[fleet.form].value + fleet.replicas * REPLICA_BYTES.value,
        redis_cores=captured_per_s * redis_s + board_cores,
        courier_cores=captured_per_s * courier_s,
        learner_cores=captured_per_s * learner_s,
        learner_gpus=gpus,
        rollout_s=fleet.replicas * fleet.stagger_s,
        cost_per_million=_cost_per_million(fleet, gpus),
        largest_sample_rate=min(rates[limit], 1.0),
        limited_by=limit if rates[limit] < 1.0 else "",
    )


def _request_s(station: StationCost, fleet: Fleet) -> float:
    """Processor time of a station for a request."""
    return station.request_s(
        fleet.form,
        traces=fleet.request_traces,
        output_tokens=fleet.output_tokens,
        feature_bytes=fleet.feature_bytes * fleet.request_tokens,
    )


def _cost_per_million(fleet: Fleet, gpus: float | None) -> float | None:
    if gpus is None or fleet.gpu_hour is None:
        return None
    return gpus * fleet.gpu_hour / 3600.0 / fleet.served_tokens_per_s * 1e6
