"""What sizing calculates with: figures that a bench has measured, each with the command that prints what it is of.

Processor times are of one core of the machine that docs/sizing.md names. A station of a trace's path takes a time for
every trace, one for every output token, whose rounds are many small arrays, and one for every byte of features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class FeatureForm(StrEnum):
    """How traces hold the target's hidden states."""

    CAPTURED = "captured"  # as a target in bfloat16 has them
    INT8 = "int8"  # quantised on the server's GPU
    TOKENS = "tokens"  # not at all: the learner recomputes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A figure, what it is of, and the command that prints what it is calculated from."""

    what: str
    value: float
    unit: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StationCost:
    """Processor time of one station of a trace's path."""

    per_trace: Constant  # microseconds
    per_token: Constant  # microseconds per output token
    per_byte: Mapping[FeatureForm, Constant]  # nanoseconds per byte of features, as these leave the server's device

    def request_s(self, form: FeatureForm, *, traces: int, output_tokens: int, feature_bytes: float) -> float:
        """Seconds of one core for a request."""
        features_ns = self.per_byte[form].value * feature_bytes if feature_bytes else 0.0
        own_us = self.per_trace.value * traces + self.per_token.value * output_tokens
        return own_us * 1e-6 + features_ns * 1e-9

    def constants(self) -> list[Constant]:
        """All of them."""
        return [self.per_trace, self.per_token, *self.per_byte.values()]


_NARROW: Final = "make bench-width ARGS='--only stations --hidden 8 --output-tokens 1024'"
_WIDE: Final = {
    FeatureForm.CAPTURED: "make bench-width ARGS='--only stations --hidden 8192 --requests 16'",
    FeatureForm.INT8: "make bench-width ARGS='--only stations --hidden 8192 --requests 16 --feature-format int8'",
}
_GROWTH: Final = "make bench-growth ARGS='--forms int8'"


_REAL: Final = "make bench-growth ARGS='--forms tokens --traces FILE'"


def _station(name: str, *, per_trace_us: float, per_token_us: float, captured_ns: float, int8_ns: float) -> StationCost:
    by_form = {FeatureForm.CAPTURED: captured_ns, FeatureForm.INT8: int8_ns}
    return StationCost(
        per_trace=Constant(what=f"{name}, traces", value=per_trace_us, unit="us per trace", command=_REAL),
        per_token=Constant(what=f"{name}, rounds", value=per_token_us, unit="us per output token", command=_NARROW),
        per_byte={
            form: Constant(what=f"{name}, {form.value}", value=ns, unit="ns per byte of features", command=_WIDE[form])
            for form, ns in by_form.items()
        },
    )


COURIER: Final = _station("courier", per_trace_us=490, per_token_us=21.6, captured_ns=4.69, int8_ns=3.47)
REDIS_APPEND: Final = _station("Redis, append", per_trace_us=210, per_token_us=0.15, captured_ns=2.4, int8_ns=2.6)
REDIS_CLAIM: Final = _station("Redis, claim", per_trace_us=25, per_token_us=0.3, captured_ns=0.79, int8_ns=0.63)
LEARNER_CLAIM: Final = _station("learner, claim", per_trace_us=530, per_token_us=2.04, captured_ns=3.78, int8_ns=2.52)

#: Of a token and its verdicts, without features.
TOKEN_BYTES: Final = Constant(
    what="a token and its verdicts in Redis",
    value=8.7,
    unit="bytes per token",
    command=_REAL,
)
STORED_SHARE: Final = {
    form: Constant(what=f"features in Redis, {form.value}", value=share, unit="of their bytes", command=_WIDE[form])
    for form, share in ((FeatureForm.CAPTURED, 0.774), (FeatureForm.INT8, 0.996))
}
#: Of traces with features, each apart from its entry; and without, which are small.
_APART: Final = Constant(
    what="memory of Redis, traces with features", value=1.02, unit="of their bytes", command=_GROWTH
)
MEMORY_SHARE: Final = {
    FeatureForm.CAPTURED: _APART,
    FeatureForm.INT8: _APART,
    FeatureForm.TOKENS: Constant(what="memory of Redis, tokens", value=1.31, unit="of their bytes", command=_REAL),
}
BOARD: Final = Constant(
    what="Redis, a heartbeat and a look at the board", value=780.0, unit="us per server and second", command=_REAL
)
REPLICA_BYTES: Final = Constant(
    what="memory of Redis, keys and connections", value=6e5, unit="bytes per server", command=_REAL
)
#: A bound and no measurement: a courier sends no more.
BEAT_BYTES: Final = Constant(
    what="a heartbeat, at most", value=8000.0, unit="bytes", command="serving/courier/heartbeat.py:MAX_BEAT_BYTES"
)

#: As docs/sizing.md lists them.
ALL_CONSTANTS: Final = (
    *(each for station in (COURIER, REDIS_APPEND, REDIS_CLAIM, LEARNER_CLAIM) for each in station.constants()),
    TOKEN_BYTES,
    *STORED_SHARE.values(),
    *dict.fromkeys(MEMORY_SHARE.values()),
    BOARD,
    REPLICA_BYTES,
    BEAT_BYTES,
)
