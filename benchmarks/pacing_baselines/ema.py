"""SGLang's own rule: a moving average of accepted drafts against fixed thresholds, per batch-size slot.

Restated from AdaptiveStepSlot of sglang 0.5.21 (srt/speculative/adaptive_spec_params.py), to be compared with. It
knows no cost: the table of candidates per batch size carries all there is to know about the machine.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...policies.pacing.base import bucket_of


@dataclass(frozen=True, slots=True)
class EmaSlot:
    """Settings of one slot, with SGLang's defaults."""

    candidates: tuple[int, ...]  # ascending
    up_hysteresis: float = 0.0
    down_hysteresis: float = -0.25
    ceiling_coeff: float = 0.0  # 0: no ceiling
    alpha: float = 0.2
    update_interval: int = 5  # batches
    warmup_batches: int = 10


#: First batch size of a slot -> its settings: SGLang's default table.
SGLANG_SLOTS: Mapping[int, EmaSlot] = {
    1: EmaSlot((1, 3, 5, 7)),
    8: EmaSlot((0, 1, 3), down_hysteresis=0.0),
    32: EmaSlot((0, 1), down_hysteresis=0.0),
    64: EmaSlot((0,), down_hysteresis=0.0),
}


class EmaPacing:
    """One state per slot; `initial_steps` where a slot offers them, else its middle candidate."""

    def __init__(self, initial_steps: int, slots: Mapping[int, EmaSlot] = SGLANG_SLOTS) -> None:
        self._slots = {begin: _SlotState(slots[begin], initial_steps) for begin in sorted(slots)}

    def steps(self, batch_size: int) -> int:
        """The current candidate of the slot."""
        return self._slot(batch_size).current

    def observe(self, batch_size: int, steps: int, accepted: Sequence[int], cost_ms: float | None) -> None:
        """Move the average, and the choice every `update_interval` batches; ignore the cost."""
        del steps, cost_ms
        if accepted:
            self._slot(batch_size).update(sum(accepted) / len(accepted))

    def draft_changed(self) -> None:
        """Changes nothing: SGLang keeps one average across drafts."""

    def _slot(self, batch_size: int) -> "_SlotState":
        return self._slots[bucket_of(batch_size, list(self._slots))]


class _SlotState:
    def __init__(self, slot: EmaSlot, initial_steps: int) -> None:
        self._slot = slot
        middle = slot.candidates[len(slot.candidates) // 2]
        self.current = initial_steps if initial_steps in slot.candidates else middle
        self._mean = float(self.current - 1)
        self._batches = 0

    def update(self, accepted: float) -> None:
        slot = self._slot
        if self.current:
            self._mean += slot.alpha * (accepted - self._mean)
        self._batches += 1
        past = self._batches - slot.warmup_batches
        if past > 0 and past % slot.update_interval == 0:
            self.current = self._probe() if self.current == 0 else self._ceiled(self._moved())

    def _probe(self) -> int:
        """After plain decoding the smallest draft is always tried again, with a neutral average if there is none."""
        lowest = self._slot.candidates[:2][-1]
        if lowest > 0 and self._mean < 0.0:
            self._mean = float(lowest - 1)
        return lowest

    def _moved(self) -> int:
        """Down while the average is at or under the threshold below; else up while it is over the one above."""
        slot, now = self._slot, self.current
        for lower, upper in reversed(list(pairwise(slot.candidates))):
            threshold = (0.5 if lower == 0 else lower - 0.5) + slot.down_hysteresis
            if upper == now and self._mean <= threshold:
                now = lower
        if now < self.current:
            return now
        for lower, upper in pairwise(slot.candidates):
            if lower == now and self._mean > lower - 0.5 + slot.up_hysteresis:
                now = upper
        return now

    def _ceiled(self, target: int) -> int:
        """Never above the ceiling, unless the move was upwards."""
        slot = self._slot
        if slot.ceiling_coeff <= 0.0 or target > self.current:
            return target
        ceiling = max(1, math.ceil(self._mean * slot.ceiling_coeff))
        fitting = [k for k in slot.candidates if k <= min(ceiling, target)]
        return fitting[-1] if fitting else slot.candidates[0]
