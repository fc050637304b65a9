"""Switches a planted cause off and on in turn, and asks `explain` what made the difference."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...buffer.base import VersionBoard
from ...buffer.counters import Counters
from ...policies.readings.causes.explanation import Explanation, explain
from ...policies.readings.causes.periods import during
from ...policies.readings.causes.stretches import stretches
from ...rig.ratio import Ratio, ratio
from ..measure.measured_server import MeasuredServer, wait_until
from .plants import Plant
from .traffic import Phase, serve_for


@dataclass(frozen=True, slots=True)
class Outcome:
    """One planted cause: what clients saw, and what `explain` said of it and of its control."""

    plant: Plant
    effect: Ratio  # speed of a request, on over off, as clients saw it
    explained: Explanation
    control: Explanation  # the first times without the cause against the later ones

    @property
    def share(self) -> float | None:
        """Contribution of the planted cause over the paired effect, both logarithms; None where it has none."""
        found = next((each for each in self.explained.findings if each.cause is self.plant.cause), None)
        return None if found is None else found.effect.log / math.log(self.effect.mean)


def measured(server: MeasuredServer, plant: Plant, pairs: int, seconds: float) -> Outcome:
    """Run `pairs` of a phase without the cause and one with it, of so many seconds each."""
    off: list[Phase] = []
    on: list[Phase] = []
    for _ in range(pairs):
        for is_on, phases in ((False, off), (True, on)):
            plant.switch(is_on)
            phases.append(serve_for(server.url, plant.on if is_on else plant.off, seconds))
    plant.switch(False)
    wait_until(lambda: _has_entries_until(server.board, on[-1].ended_s), "the history to reach the last phase")
    histories = {member: server.board.history(member) for member in server.board.members()}
    effect = ratio(*([phase.request_tokens_per_second for phase in phases] for phases in (on, off)))
    half = len(off) // 2
    return Outcome(plant, effect, compared(histories, off, on), compared(histories, off[:half], off[half:]))


def compared(histories: Mapping[str, Sequence[Counters]], before: Sequence[Phase], now: Sequence[Phase]) -> Explanation:
    """What `explain` says of the times of some phases against those of others."""
    found = stretches(histories)
    spans = [[(phase.began_s, phase.ended_s) for phase in phases] for phases in (before, now)]
    return explain(during("without it", found, spans[0]), during("with it", found, spans[1]))


def _has_entries_until(board: VersionBoard, until_s: float) -> bool:
    return all(board.history(member)[-1].at >= until_s for member in board.members() if member.startswith("replica:"))
