"""What every figure is: its unit, its formula, where it comes from, and how old it may be; said here alone."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Definition:
    """One figure that people see under `name`, in commands, in MLflow and in the documentation alike."""

    name: str  # snake_case
    unit: str
    meaning: str  # one sentence
    formula: str  # of the counters in buffer/counters.py
    counted_in: str  # what Reading.count counts
    source: str  # which member sends it
    max_age_s: float  # older, it is unknown


@dataclass(frozen=True, slots=True)
class Reading:
    """One figure with what it rests on; `value` is None where it is unknown, and `why_unknown` says why."""

    name: str  # of its Definition
    value: float | None
    count: int = 0
    at: float | None = None  # unix seconds of the newest evidence
    low: float | None = None  # of its 95 % interval; None: none can be given
    high: float | None = None
    why_unknown: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.why_unknown):
            got = f"{self.name}: got value {self.value} with why_unknown {self.why_unknown!r}"
            raise ValueError(f"{got}, expected a reason exactly where the value is unknown")


_ALL = (
    Definition(
        name="accept_length",
        unit="tokens per verify round",
        meaning="Tokens that a verify round commits, the target's own one included.",
        formula="1 + accepted / rounds, over the served cells",
        counted_in="requests",
        source="courier",
        max_age_s=60.0,
    ),
)

DEFINITIONS: Mapping[str, Definition] = {definition.name: definition for definition in _ALL}
