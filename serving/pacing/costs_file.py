"""The file that PACELINE_PACING_COSTS names: what a decode step costs, as `paceline pacing-costs` writes it."""

import json
from pathlib import Path

from ...buffer.errors import ConfigError
from ...policies.pacing.step_costs import CostTable


def read_costs(file: str) -> bytes:
    """The content of `file`; empty without one. Blocks on the disk; ConfigError when it cannot be read."""
    try:
        return Path(file).read_bytes() if file else b""
    except OSError as fault:
        raise _unreadable(file, fault) from None


def table_of(costs: bytes, file: str) -> CostTable | None:
    """The table in `costs`, the content of `file`; None without one.

    Raises ConfigError when it is not {"cost_ms": {"batch size": [plain, 1 step, 2 steps, ...]}}, or with
    {"steps": milliseconds} in place of the list.
    """
    if not file:
        return None
    try:
        rows = json.loads(costs)["cost_ms"]
        named = {batch: row if isinstance(row, dict) else dict(enumerate(row)) for batch, row in rows.items()}
        cost_ms = {int(batch): {int(k): float(ms) for k, ms in row.items()} for batch, row in named.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise _unreadable(file, fault) from None
    if not cost_ms or not all(row and min(row.values()) > 0.0 for row in cost_ms.values()):
        raise ConfigError(f"PACELINE_PACING_COSTS: got no costs, or some not above 0, in {file}, expected milliseconds")
    return CostTable(cost_ms)


def _unreadable(file: str, fault: Exception) -> ConfigError:
    return ConfigError(f"PACELINE_PACING_COSTS: got {file}, expected a readable table of step costs: {fault!r}")
