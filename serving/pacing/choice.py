"""From settings to a pacing policy: which one, over which lengths, with which table of costs."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...buffer.errors import ConfigError
from ...buffer.settings.pacing_names import PacingName
from ...policies.pacing.bandit import BANDIT_ARMS, BanditPacing
from ...policies.pacing.base import CostTable, FixedSteps, Pacing, SweepPacing
from ...policies.pacing.goodput import GoodputPacing
from ...policies.pacing.threshold import ThresholdPacing

#: Policies that choose by what steps cost, and so need the same costs on every tensor-parallel rank.
COSTED = frozenset({PacingName.GOODPUT, PacingName.BANDIT})


def build_policy(name: PacingName, lengths: Sequence[int], static_steps: int, table: CostTable | None) -> Pacing:
    """The policy called `name` over `lengths`, ascending; `static_steps` is what the server was started with."""
    if name is PacingName.FIXED:
        return FixedSteps(static_steps)
    if name is PacingName.SWEEP:
        return SweepPacing(lengths)
    if name is PacingName.THRESHOLD:
        return ThresholdPacing(lengths[-1])
    if name is PacingName.BANDIT:
        arms = {b: tuple(k for k in offered if k in lengths) or lengths for b, offered in BANDIT_ARMS.items()}
        return BanditPacing(np.random.default_rng(0), arms)
    return GoodputPacing(lengths, table)


def read_costs(file: str) -> bytes:
    """The content of `file`; empty without one. Blocks on the disk; ConfigError when it cannot be read."""
    try:
        return Path(file).read_bytes() if file else b""
    except OSError as fault:
        raise _unreadable(file, fault) from None


def table_of(costs: bytes, file: str) -> CostTable | None:
    """The table that benchmarks/pacing_costs.py wrote to `file`, or a sweeping replica reported; None without one.

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
