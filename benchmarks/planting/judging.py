"""What `explain` says of a recording of a planted cause, and of its control: times without the cause, compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...policies.readings.causes.explanation import Explanation, explain
from ...policies.readings.causes.periods import during
from ...policies.readings.causes.stretches import stretches
from ...rig.ratio import Ratio, ratio
from .measuring import Recording
from .traffic import Phase


@dataclass(frozen=True, slots=True)
class Compared:
    """Two sets of phases: speed of a request in the second over that in the first, and what `explain` says of them."""

    effect: Ratio  # as clients saw it
    explained: Explanation

    @property
    def named(self) -> list[str]:
        """Causes that stand out, the first of them first."""
        return [finding.cause for finding in self.explained.findings if not finding.effect.is_noise]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One planted cause, and its control."""

    recording: Recording
    planted: Compared  # without the cause, and with it
    control: Compared  # every other phase without the cause, and the rest of those

    @property
    def share(self) -> float | None:
        """Contribution of the planted cause over the paired effect, both logarithms; None where it has none."""
        findings = self.planted.explained.findings
        found = next((each for each in findings if each.cause is self.recording.cause), None)
        return None if found is None else found.effect.log / math.log(self.planted.effect.mean)


def judged(recording: Recording) -> Outcome:
    """At least two phases without the cause are needed: a control compares them with each other."""
    off = recording.off
    return Outcome(recording, _compared(recording, off, recording.on), _compared(recording, off[0::2], off[1::2]))


def _compared(recording: Recording, before: Sequence[Phase], now: Sequence[Phase]) -> Compared:
    found = stretches(recording.histories)
    spans = [[(phase.began_s, phase.ended_s) for phase in phases] for phases in (before, now)]
    pairs = list(zip(now, before, strict=False))
    speeds = ([pair[side].request_tokens_per_second for pair in pairs] for side in (0, 1))
    explained = explain(during("without it", found, spans[0]), during("with it", found, spans[1]))
    return Compared(ratio(*speeds), explained)
