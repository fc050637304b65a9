"""Several ways of doing the same thing, measured in rounds of random order, so that drift affects all alike."""

import random
from collections.abc import Callable, Mapping


def in_rounds(ways: Mapping[str, Callable[[], float]], rounds: int, seed: int) -> dict[str, list[float]]:
    """Measure every way once per round, in an order drawn from `seed`; figures by way, in the order of the rounds."""
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in random.Random(f"{seed} {number}").sample(list(ways), len(ways)):
            figures[name].append(ways[name]())
    return figures
