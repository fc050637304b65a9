"""The rules of the bench by name, today's gate and no gate among them."""

from collections.abc import Callable
from dataclasses import dataclass

from ...policies.prequential import PrequentialRules
from .prequential_rules import Line, Snapshot
from .rules import CutHeldOutGate, HeldOutGate, NoGate, RecentHeldOutGate
from .view import Rule

NO_GATE, TODAY = "no gate", "held-out gate"


@dataclass(frozen=True, slots=True)
class NamedRule:
    """A row of the tables."""

    name: str
    make: Callable[[int], Rule]  # from a seed, for those that draw


def _line(**numbers: float) -> Callable[[int], Rule]:
    return lambda _: Line(PrequentialRules(**numbers))


RULES = (
    NamedRule(NO_GATE, lambda _: NoGate()),
    NamedRule(TODAY, HeldOutGate),
    NamedRule("held-out gate, recent ones count more", RecentHeldOutGate),
    NamedRule("held-out gate, cut where traffic changed", CutHeldOutGate),
    NamedRule("snapshot on the next chunk", lambda _: Snapshot(PrequentialRules())),
    NamedRule("line", _line()),
    NamedRule("line, later promotions at 0.2", _line(later_error=0.2)),
    NamedRule("line, later promotions at 0.5", _line(later_error=0.5)),
)

#: Rules with a curve of their own in the plot.
PLOTTED = (NO_GATE, TODAY, "line", "oracle")
