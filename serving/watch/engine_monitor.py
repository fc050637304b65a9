"""Contradictions in a replica's own figures: silent hooks, swaps without effect, drafts that do not pay."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ...policies.guard import Action, Alarm, AlarmName, GuardInput, GuardLimits, alarms

log = logging.getLogger(__name__)

#: Decode steps, of plain decoding and with drafts: where one of them is only tried now and then, more take hours.
MIN_STEPS = 50


class EngineMonitor:
    """Turns the scheduler's status into alarms, active until their cause is gone; for the courier's thread."""

    def __init__(self, limits: GuardLimits | None = None) -> None:
        self._limits = limits or GuardLimits(min_steps=MIN_STEPS)
        self._engine_rounds = self._captured_rounds = 0  # when a round was captured last
        self._active: dict[AlarmName, Alarm] = {}

    def turn(self, status: Mapping[str, Any]) -> None:
        """Look at what the scheduler process reported last; fields it did not send raise no alarm."""
        engine = int(status.get("engine_rounds", 0))
        captured = int(status.get("captured_rounds", 0))
        if captured != self._captured_rounds or status.get("capture_reason"):
            self._engine_rounds = engine
            self._captured_rounds = captured
        figures = GuardInput(
            engine_rounds=engine - self._engine_rounds,
            published_sha256=str(status.get("published_sha256", "")),
            loaded_sha256=str(status.get("loaded_sha256", "")),
            **_slowest(status.get("pacing", {}).get("goodput", []), self._limits.min_steps),
        )
        found = {alarm.name: alarm for alarm in alarms(figures, self._limits)}
        for name in found.keys() - self._active.keys():
            log.error("paceline: alarm %s: %s", name, found[name].detail)
        self._active = found

    def status(self) -> dict[str, object]:
        """For the replica's heartbeat: active alarms, and why a learner should wait; empty when it need not."""
        active = list(self._active.values())
        why = "; ".join(f"{a.name}: {a.detail}" for a in active if a.action is Action.PAUSE_LEARNING)
        return {"standing_alarms": [alarm.as_json() for alarm in active], "learning_paused": why}


def _slowest(goodput: Sequence[Mapping[str, float]], min_steps: int) -> dict[str, Any]:
    """The fields of GuardInput for the batch bucket in which drafts pay least, of those with enough steps."""
    known = [row for row in goodput if row["steps"] >= min_steps]
    if not known:
        return {}
    worst = min(known, key=lambda row: row["tokens_per_s"] / row["plain_tokens_per_s"])
    named = {name: worst[name] for name in ("tokens_per_s", "plain_tokens_per_s")}
    return {**named, "goodput_steps": int(worst["steps"])}
