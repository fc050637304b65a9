"""Requests replayed with two drafts, and what a test may bet on: one gain per prompt, however many answers it has.

Answers to one prompt resemble each other: a line that happens to fit the prompt gains on all of them. Reinforcement
learning asks for eight or sixteen at a time. Their mean is one draw of what the traffic gains; taken for a draw each,
they make evidence out of nothing (docs/measured.md has how much).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .acceptance import Tally


@dataclass(frozen=True, slots=True)
class Paired:
    """One request, replayed with the line's weights before it was learnt and with the reference draft."""

    tenant: str
    line: Tally
    reference: Tally
    prompt: str = ""  # the key of its prompt; empty: not known, and taken for a prompt of its own

    @property
    def gain(self) -> float:
        """Of accept lengths L, (L of the line - L of the reference) / (their sum), within (-1, 1).

        0 unless both have rounds. Where both commit the same text it is the share of verify rounds that the line saves,
        (R of the reference - R of the line) / (their sum). No long request outweighs the others.
        """
        ours = self.line.accept_length
        theirs = self.reference.accept_length
        return (ours - theirs) / (ours + theirs) if self.has_rounds else 0.0

    @property
    def has_rounds(self) -> bool:
        """Whether both drafts had a verify round."""
        return bool(self.line.rounds and self.reference.rounds)


class Asked(NamedTuple):
    """A prompt and who asked: nobody's answers are counted among those of another tenant."""

    tenant: str
    prompt: str


class Bet(NamedTuple):
    """What one prompt shows."""

    tenant: str
    gain: float
    requests: int


def by_prompt(pairs: Iterable[Paired]) -> list[list[Paired]]:
    """Those with rounds of both drafts, the answers to one prompt together; in the order of the first of each."""
    found: dict[Asked | int, list[Paired]] = defaultdict(list)
    for place, pair in enumerate(pairs):
        if pair.has_rounds:
            found[Asked(pair.tenant, pair.prompt) if pair.prompt else place].append(pair)
    return list(found.values())


def bets_of(pairs: Iterable[Paired], most_gain: float, least_gain: float = 0.0) -> list[Bet]:
    """One bet per prompt, on (mean gain of its n requests - `least_gain`) * sqrt(n).

    More than `most_gain` either way, of a request or of a prompt, counts as that much. The mean of n requests spreads
    about sqrt(n) times less than one of them: unscaled, bets on it would be too small to show a gain soon. The scale
    depends on n alone, so what is fair stays fair.
    """
    return [
        Bet(some[0].tenant, _scaled([pair.gain for pair in some], most_gain, least_gain), len(some))
        for some in by_prompt(pairs)
    ]


def _scaled(gains: Sequence[float], most_gain: float, least_gain: float) -> float:
    mean = sum(min(max(gain, -most_gain), most_gain) for gain in gains) / len(gains)
    scaled = math.sqrt(len(gains)) * (mean - least_gain)
    return min(max(scaled, -most_gain - least_gain), most_gain - least_gain)
