"""How often the gate proves a line that gains nothing, where every prompt has several answers.

Gains are drawn, not measured: each answer's is normal with standard deviation 0.1, and answers to one prompt share a
part of the variance. The gate judges them block by block, once as it does, a bet per prompt and block, and once with
every answer taken for a prompt of its own. The first must stay within its error, 0.1; the second has no bound.

    python -m paceline.benchmarks.repeated_prompts [--runs 400] [--blocks 40]

Prints a Markdown table; under two minutes on one core.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..policies.acceptance import Tally
from ..policies.paired import Paired
from ..policies.prequential import LineFinding, PrequentialRules, PrequentialTest
from .measure.command_line import benchmark_parser

#: Of one answer's gain; that of greedy requests of 40 tokens in the gate bench is about as wide.
SPREAD = 0.1
#: Answers per prompt, and the share of the variance that they have in common.
CASES = ((1, 0.0), (8, 0.0), (8, 0.2), (8, 0.5), (16, 0.2))
#: Answers of a block: half of what one step of reinforcement learning brings in the demo.
_ANSWERS = 32
GAIN = 0.03
_SEED = 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What comes: blocks of prompts, each with so many answers."""

    answers: int
    shared: float  # of the variance, by the answers to one prompt
    gain: float  # on average
    prompts: int  # of a block
    blocks: int
    has_keys: bool  # whether the gate can tell which answers are to one prompt

    def drawn(self, rng: np.random.Generator) -> Iterator[list[Paired]]:
        """The blocks, one after the other."""
        for block in range(self.blocks):
            own_PA = rng.normal(size=(self.prompts, self.answers)) * np.sqrt(1.0 - self.shared)
            common_P1 = rng.normal(size=(self.prompts, 1)) * np.sqrt(self.shared)
            gains_PA = self.gain + SPREAD * (own_PA + common_P1)
            names = [f"{block}-{prompt}" if self.has_keys else "" for prompt in range(self.prompts)]
            yield [paired(gain, name) for name, gains in zip(names, gains_PA, strict=True) for gain in gains]


def paired(gain: float, prompt: str) -> Paired:
    """A request with this gain."""
    length = 2.0 * (1.0 + gain) / (1.0 - gain)
    return Paired("", Tally(max(length - 1.0, 0.0), 1), Tally(1, 1), prompt)


def proven_after(traffic: Traffic, rng: np.random.Generator) -> int | None:
    """Blocks until the line is said to gain; None when it never is."""
    test = PrequentialTest(PrequentialRules())
    for number, block in enumerate(traffic.drawn(rng), 1):
        test.observe(block)
        if test.verdict().finding is LineFinding.GAINS:
            return number
    return None


def proofs(traffic: Traffic, runs: int) -> list[int | None]:
    """What became of so many runs; traffic that differs in keys alone is drawn alike."""
    return [proven_after(traffic, np.random.default_rng([_SEED, run])) for run in range(runs)]


def _row(answers: int, shared: float, runs: int, blocks: int) -> str:
    cells = []
    for gain, has_keys in product((0.0, GAIN), (False, True)):
        traffic = Traffic(answers, shared, gain, max(_ANSWERS // answers, 1), blocks, has_keys)
        found = proofs(traffic, runs)
        proven = [number for number in found if number is not None]
        share = f"{len(proven) / runs:.1%}"
        cells.append(f"{share}, {np.median(proven):.0f} blocks" if gain and proven else share)
    return f"| {answers} | {shared:.0%} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = benchmark_parser("repeated_prompts", __doc__)
    parser.add_argument("--runs", type=int, default=400, help="per cell (default 400)")
    parser.add_argument("--blocks", type=int, default=40, help=f"of {_ANSWERS} answers, per run (default 40)")
    args = parser.parse_args()
    kinds = ("a bet per answer", "a bet per prompt")
    print(f"| answers | variance shared | {' | '.join(f'no gain: {kind}' for kind in kinds)} | "
          f"{' | '.join(f'gain {GAIN}: {kind}' for kind in kinds)} |")  # fmt: skip
    print("|---" * 6 + "|")
    for answers, shared in CASES:
        print(_row(answers, shared, args.runs, args.blocks), flush=True)


if __name__ == "__main__":
    main()
