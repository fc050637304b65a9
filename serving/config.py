"""Settings of the SGLang process, read from the environment once, when the plugin starts."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..buffer.config import BufferConfig
from ..buffer.environment import read_float, read_int
from ..buffer.errors import ConfigError


class PacingName(StrEnum):
    """Who chooses the number of draft steps on a server started with --speculative-adaptive."""

    OFF = "off"  # SGLang's own rule
    GOODPUT = "goodput"
    THRESHOLD = "threshold"
    BANDIT = "bandit"
    FIXED = "fixed"  # --speculative-num-steps, always
    SWEEP = "sweep"  # every length in turn, to measure what they cost


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """One replica. Without a Redis URL nothing is captured and nothing is swapped."""

    redis_url: str | None = field(repr=False)  # may hold a password
    buffer: BufferConfig
    replica: str = ""  # empty: host name and port of the server
    target: str = "target"  # must equal the learner's
    target_version: str = "0"
    draft_version: int = 0  # board number of the weights the server starts with
    top_k: int = 4  # teacher entries per verified node of a sampled request; 0 captures tokens and verdicts alone
    greedy_top_k: int = 1  # of a greedy request: its verdicts compare with the best token, and so do its labels
    capture_features: bool = True
    sample_rate: float = 1.0  # share of requests captured, by hash of the request id
    tap_bytes: int = 256 << 20  # of forwards waiting for the courier before new ones are dropped
    window_tokens: int = 2048  # a longer request is cut into windows of this many tokens
    context_tokens: int = 512  # tokens of context a window behind a cut starts with
    canary_requests: int = 400  # of a canary on this replica; there it is decided at the latest
    canary_window_s: float = 0.0  # windows in which a canary here takes turns with the live version; 0: none
    roll_out_s: float = 5.0  # between two replicas that take a new live version over; 0: all at once
    backlog_bytes: int = 256 << 20  # encoded traces kept while Redis is away
    pacing: PacingName = PacingName.GOODPUT  # without --speculative-adaptive nothing is paced
    pacing_costs: str = ""  # file of step costs; needed where several ranks must choose alike

    def __post_init__(self) -> None:
        if self.context_tokens >= self.window_tokens:
            self._refuse(
                "PACELINE_CONTEXT_TOKENS", self.context_tokens, f"< PACELINE_WINDOW_TOKENS ({self.window_tokens})"
            )
        if not 0.0 <= self.sample_rate <= 1.0:
            self._refuse("PACELINE_SAMPLE_RATE", self.sample_rate, "0.0..1.0")

    @staticmethod
    def _refuse(key: str, got: object, expected: str) -> None:
        raise ConfigError(f"{key}: got {got}, expected {expected}")


def from_env(env: Mapping[str, str] = os.environ) -> ServingConfig:
    """Read the settings; ConfigError names the key, what was got and what was expected."""
    return ServingConfig(
        redis_url=env.get("PACELINE_REDIS_URL") or None,
        buffer=BufferConfig.from_env(env),
        replica=env.get("PACELINE_REPLICA", ""),
        target=env.get("PACELINE_TARGET", "target"),
        target_version=env.get("PACELINE_TARGET_VERSION", "0"),
        draft_version=read_int(env, "PACELINE_DRAFT_VERSION", 0, minimum=-1),
        top_k=read_int(env, "PACELINE_TOP_K", 4, minimum=0),
        greedy_top_k=read_int(env, "PACELINE_GREEDY_TOP_K", 1, minimum=0),
        capture_features=bool(read_int(env, "PACELINE_FEATURES", 1, minimum=0)),
        sample_rate=read_float(env, "PACELINE_SAMPLE_RATE", 1.0, minimum=0.0),
        tap_bytes=read_int(env, "PACELINE_TAP_BYTES", 256 << 20, minimum=1),
        window_tokens=read_int(env, "PACELINE_WINDOW_TOKENS", 2048, minimum=16),
        context_tokens=read_int(env, "PACELINE_CONTEXT_TOKENS", 512, minimum=1),
        canary_requests=read_int(env, "PACELINE_CANARY_REQUESTS", 400, minimum=30),
        canary_window_s=read_float(env, "PACELINE_CANARY_WINDOW_S", 0.0, minimum=0.0),
        roll_out_s=read_float(env, "PACELINE_ROLL_OUT_S", 5.0, minimum=0.0),
        backlog_bytes=read_int(env, "PACELINE_BACKLOG_BYTES", 256 << 20, minimum=1),
        pacing=_read_pacing(env),
        pacing_costs=env.get("PACELINE_PACING_COSTS", ""),
    )


def _read_pacing(env: Mapping[str, str]) -> PacingName:
    got = env.get("PACELINE_PACING") or PacingName.GOODPUT
    try:
        return PacingName(got)
    except ValueError:
        raise ConfigError(
            f"PACELINE_PACING: got {got!r}, expected one of {[str(name) for name in PacingName]}"
        ) from None


def courier_env(settings: ServingConfig, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment of a courier process: this process's own, and the name that was found for the replica."""
    return {**env, "PACELINE_REPLICA": settings.replica}
