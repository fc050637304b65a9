"""Tokens of traces that a learner trains on per second, alone or on several ranks; one pass over each trace.

    python -m paceline.benchmarks.learning.record --target smollm2 --settings t0-k3     # traces of a real chat model
    torchrun --standalone --nproc-per-node 2 -m paceline.benchmarks.learning.ranks TARGET DRAFT TRACES

TARGET and DRAFT are folders of weights, TRACES a file that the first command wrote. On a GPU, with --device cuda, the
figure of one rank is what `paceline size --learned-tokens-per-s` asks for.
"""

import argparse
from pathlib import Path
from time import perf_counter

import torch
from torch.distributed import get_node_local_rank

from ...learner.model.draft_io import load_draft, load_target_embedding
from ...learner.training.plan import TrainingPlan
from ...learner.training.rank_group import joining
from ...learner.training.trainer import DraftTrainer
from ...rig.ratio import Spread
from ...rig.runs import machine
from ...rig.trace_file import read_traces
from ..measure.command_line import benchmark_parser

STEPS = 3


def main() -> None:
    """Train over and over; rank 0 prints."""
    options = parse()
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", get_node_local_rank())
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # as many cores as ranks
    with joining(device) as ranks:
        if ranks.rank:
            ranks.follow(lambda fit: trainer(options, device, fit.plan))
            return
        measured = Spread.of(rates(options, trainer(options, device, TrainingPlan(steps=STEPS, passes=1))))
        print(f"{measured.text(0)} tokens/s on {ranks.world} ranks; {machine()}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("learning.ranks", __doc__)
    parser.add_argument("target", type=Path, metavar="TARGET")
    parser.add_argument("draft", type=Path, metavar="DRAFT")
    parser.add_argument("traces", type=Path, metavar="TRACES")
    parser.add_argument("--count", type=int, default=32, help="traces of a fit (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="fits that are timed (%(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: one thread per rank")
    return parser.parse_args()


def trainer(options: argparse.Namespace, device: torch.device, plan: TrainingPlan) -> DraftTrainer:
    """One of the first draft."""
    return DraftTrainer(load_draft(options.draft, load_target_embedding(options.target)).to(device), plan)


def rates(options: argparse.Namespace, of: DraftTrainer) -> list[float]:
    """Tokens per second of each fit but the first, which warms up."""
    traces = read_traces(options.traces)[: options.count]
    tokens = sum(len(trace.tokens) for trace in traces)
    found = []
    for _ in range(1 + options.rounds):
        began_s = perf_counter()
        of.fit(traces, [])
        found.append(tokens / (perf_counter() - began_s))
    return found[1:]


if __name__ == "__main__":
    main()
