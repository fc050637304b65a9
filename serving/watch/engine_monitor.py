"""Contradictions in a replica's own figures: silent hooks, swaps without effect, drafts that do not pay."""

import logging
from collections.abc import Sequence
from typing import Any

from ...buffer.board.member_status import AlarmSaid, GoodputSaid, MemberStatus, PacingSaid
from ...policies.guard import Action, Alarm, AlarmName, GuardInput, GuardLimits, alarms
from ...policies.verdict_words import alarm_sentence

log = logging.getLogger(__name__)

#: Decode steps, of plain decoding and with drafts: where one of them is only tried now and then, more take hours.
MIN_STEPS = 50


class EngineMonitor:
    """Turns the scheduler's status into alarms, active until their cause is gone; for the courier's thread."""

    def __init__(self, limits: GuardLimits | None = None) -> None:
        self._limits = limits or GuardLimits(min_steps=MIN_STEPS)
        self._engine_rounds = self._captured_rounds = 0  # when a round was captured last
        self._active: dict[AlarmName, Alarm] = {}

    def turn(self, said: MemberStatus) -> None:
        """Look at what the scheduler process reported last; fields it did not send raise no alarm."""
        if said.captured_rounds != self._captured_rounds or said.capture_reason:
            self._engine_rounds = said.engine_rounds
            self._captured_rounds = said.captured_rounds
        pacing = said.pacing or PacingSaid()
        figures = GuardInput(
            engine_rounds=said.engine_rounds - self._engine_rounds,
            published_sha256=said.published_sha256,
            loaded_sha256=said.loaded_sha256,
            **_slowest(pacing.goodput, self._limits.min_steps),
        )
        found = {alarm.name: alarm for alarm in alarms(figures, self._limits)}
        for name in found.keys() - self._active.keys():
            log.error("paceline: alarm %s: %s", name, alarm_sentence(name, found[name].figures))
        self._active = found

    def fill(self, said: MemberStatus) -> None:
        """Put active alarms into the replica's heartbeat, and why a learner should wait; empty when it need not."""
        active = list(self._active.values())
        said.standing_alarms = [AlarmSaid(name=a.name, action=a.action, figures=dict(a.figures)) for a in active]
        pausing = (alarm for alarm in active if alarm.action is Action.PAUSE_LEARNING)
        said.learning_paused = "; ".join(f"{a.name}: {alarm_sentence(a.name, a.figures)}" for a in pausing)


def _slowest(goodput: Sequence[GoodputSaid], min_steps: int) -> dict[str, Any]:
    """The fields of GuardInput for the batch bucket in which drafts pay least, of those with enough steps."""
    known = [row for row in goodput if row.steps >= min_steps]
    if not known:
        return {}
    worst = min(known, key=lambda row: row.tokens_per_s / row.plain_tokens_per_s)
    return {
        "tokens_per_s": worst.tokens_per_s,
        "plain_tokens_per_s": worst.plain_tokens_per_s,
        "goodput_steps": worst.steps,
    }
