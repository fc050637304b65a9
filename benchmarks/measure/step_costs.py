"""The table of step costs that pacing_costs.py measures and pacing.py simulates with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...rig.runs import machine

EXAMPLE_NAME = "EXAMPLE, not measured"


@dataclass(frozen=True, slots=True)
class Costs:
    """What a decode step costs: milliseconds by batch size, then by steps from 0 on."""

    name: str
    cost_ms: Mapping[int, Sequence[float]]
    no_speculation_ms: Mapping[int, float]  # of a server without a draft, by batch size; may be empty

    @property
    def max_steps(self) -> int:
        """Longest draft that every batch size has a cost for."""
        return min(map(len, self.cost_ms.values())) - 1

    def text(self) -> str:
        """Contents of the file, as PACELINE_PACING_COSTS reads it too."""
        rows = {str(batch): [round(ms, 3) for ms in row] for batch, row in self.cost_ms.items()}
        alone = {str(batch): round(ms, 3) for batch, ms in self.no_speculation_ms.items()}
        table = {"name": self.name, "machine": machine(), "cost_ms": rows, "no_speculation_ms": alone}
        return json.dumps(table, indent=2) + "\n"


def load_costs(path: Path | None) -> Costs:
    """The table in `path`, or the example."""
    if path is None:
        return Costs(EXAMPLE_NAME, {batch: [example_ms(batch, k) for k in range(9)] for batch in (1, 4, 8)}, {})
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    alone = {int(batch): ms for batch, ms in found.get("no_speculation_ms", {}).items()}
    return Costs(found["name"], {int(batch): costs for batch, costs in found["cost_ms"].items()}, alone)


def example_ms(batch: int, steps: int) -> float:
    """A machine on which drafts pay at batch 1 and hardly at batch 8."""
    return 8.0 + (1.0 if steps else 0.0) + 0.6 * steps + 0.15 * batch * (steps + 1)
