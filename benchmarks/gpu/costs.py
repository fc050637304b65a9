"""What capture and swaps cost on a GPU, by targets of a real model's shape with random weights.

    python -m paceline.benchmarks.gpu.costs                      # some ten minutes on an H100 or H200
    python -m paceline.benchmarks.gpu.costs --device cpu --tiny  # the same code path on the CPU host

Servers of one target are asked in turns, in an order drawn for the turn: one without a draft, one with the draft and
without paceline, one with both and requests that opt out, the same with requests that are captured, and one that paces.
A draft of random weights has nearly no token accepted, so every token costs a verify round: the worst case for capture,
and a draft for pacing to leave alone. Answers are compared word for word as well. Every figure is a line of
OUT/figures.jsonl as soon as it is there, so a run that is cut short keeps what it had, and another one with the same
OUT measures only what is not there yet.
"""

import argparse
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from ..measure.command_line import benchmark_parser
from .cost_servers import PACED, PLAIN, Figures, Plan, attempt, started
from .cost_stages import locks, profiles, rounds, same_answers, stock_waits, swap_waits
from .shapes import SHAPES

GPU_PLANS = (
    # Three targets of this shape are what a card of 80 GB holds.
    Plan(
        shape="llama-3.1-8b",
        tokens={1: 144, 32: 128, 8: 128, 64: 128},
        turns=3,
        profiled=(32,),
        swaps=1,
        swap_s=24.0,
        others=(PLAIN, PACED),
    ),
    Plan(shape="smollm2-135m", tokens={1: 384, 8: 256, 32: 256}, turns=3, profiled=(1,), swaps=2, swap_s=9.0),
)
STEPS = {
    step.__name__.replace("_", "-"): step for step in (rounds, same_answers, swap_waits, profiles, locks, stock_waits)
}
TINY_PLANS = (Plan(shape="tiny", tokens={1: 24, 2: 16}, turns=1, profiled=(1,), swaps=1, steps=6),)


def main() -> int:
    """Start every server, then measure shape by shape."""
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    figures = Figures(options.out / "figures.jsonl")
    has_gpu = options.device == "cuda"
    plans = [plan for plan in (TINY_PLANS if options.tiny else GPU_PLANS) if options.only in {None, plan.shape}]
    figures.write("machine", torch=torch.__version__, gpu=torch.cuda.get_device_name() if has_gpu else "none")
    with ExitStack() as stack:
        benches = started(stack, plans, options, figures)
        for name in options.steps:
            for bench in benches:
                attempt(figures, f"{name} {bench.plan.shape}", partial(STEPS[name], bench))
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("gpu.costs", __doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where the servers run (cuda)")
    parser.add_argument("--tiny", action="store_true", help="a small shape and a few requests: a smoke test")
    parser.add_argument("--only", choices=tuple(SHAPES), help="one shape")
    parser.add_argument("--steps", nargs="+", choices=tuple(STEPS), default=tuple(STEPS), help="in this order (all)")
    parser.add_argument("--out", type=Path, default=Path(".paceline/gpu-costs"), help="figures.jsonl and logs")
    parser.add_argument("sglang", nargs="*", help="after --: more flags for SGLang")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
