"""The rules of the bench by name, today's gate and no gate among them."""

from collections.abc import Callable
from dataclasses import dataclass

from ...policies.line_delivery import DeliveryRules
from ...policies.prequential import PrequentialRules
from .prequential_rules import Line, Snapshot, TrustedLine
from .rules import CutHeldOutGate, HeldOutGate, NoGate, RecentHeldOutGate
from .view import Rule

NO_GATE, TODAY, TRUSTED = "no gate", "held-out gate", "line, trusted for 4 rounds"


@dataclass(frozen=True, slots=True)
class NamedRule:
    """A row of the tables."""

    name: str
    make: Callable[[int], Rule]  # from a seed, for those that draw


def _line(later_error: float | None = None) -> Callable[[int], Rule]:
    return lambda _: Line(PrequentialRules(), later_error)


def _trusted(rounds: int, **numbers: float) -> Callable[[int], Rule]:
    return lambda _: TrustedLine(DeliveryRules(PrequentialRules(**numbers), rounds))


RULES = (
    NamedRule(NO_GATE, lambda _: NoGate()),
    NamedRule(TODAY, HeldOutGate),
    NamedRule("held-out gate, recent ones count more", RecentHeldOutGate),
    NamedRule("held-out gate, cut where traffic changed", CutHeldOutGate),
    NamedRule("snapshot on the next chunk", lambda _: Snapshot(PrequentialRules())),
    NamedRule("line", _line()),
    NamedRule("line, later promotions at 0.5", _line(0.5)),
    NamedRule("line, trusted for 2 rounds", _trusted(2)),
    NamedRule(TRUSTED, _trusted(4)),
    NamedRule("line, trusted for 6 rounds", _trusted(6)),
    NamedRule(f"{TRUSTED}, proof at 20 to 1", _trusted(4, error=0.05)),
    NamedRule(f"{TRUSTED}, gains of 1 % at least", _trusted(4, least_gain=0.01)),
)

#: Rules with a curve of their own in the plot.
PLOTTED = (NO_GATE, TODAY, "line", TRUSTED, "oracle")
