"""The path of a trace, and of a draft, at a real model's width: what every station takes, and where it saturates.

There is no model: tensors are random. An acted scheduler streams requests through the real hook bodies to a real
courier process, a real Redis and a learner's claim, and waits only where the line to the courier has no room; then once
more without waiting, to see what is dropped. Costs are bytes and processor time per token that a trace holds, of its
prompt as well; one core could carry the inverse. On a CPU the hook bodies gather feature rows themselves, which a GPU
does beside the scheduler, so they grow with the bytes here.

Then, as ratios of paired rounds: what handing a forward on takes of the scheduler's thread, by width; the buffer's
ingest against a bare XADD of the same bytes; the trainer's fit against a bare PyTorch loop on batches that are built
already. Last a draft's way into a server, without the copy into SGLang's model.

    python -m paceline.benchmarks.width [--quick] [--only stations hand-over ingest fit swap] [--hidden 4096]
        [--layers 3] [--dtype bfloat16] [--prompt-tokens 8192] [--requests 64] [--output-tokens 128]
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..rig.processes import ending_signals
from ..rig.runs import machine
from .measure.command_line import benchmark_parser
from .wide.fitting import against_bare as fit_against_bare
from .wide.hand_over import by_width
from .wide.ingest import against_bare as ingest_against_bare
from .wide.staged import staged
from .wide.stations import Journey, travel
from .wide.traffic import DTYPES, Load

#: Of the paired rounds and of the swap.
NARROW = (256, 1024)
KEPT_PROMPT = 511


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured."""

    rounds: int
    hand_over: Mapping[str, Any]  # of the load
    ingest: tuple[int, int]  # rounds, trips of each
    fit: tuple[int, int, int, int]  # hidden size, vocabulary, traces, tokens of each
    swap_vocabulary: int
    swap_repeats: int


QUICK = Size(
    rounds=5,
    hand_over={"requests": 8, "at_once": 8, "output_tokens": 32, "prompt_tokens": 256},
    ingest=(5, 2),
    fit=(512, 512, 4, 64),
    swap_vocabulary=2048,
    swap_repeats=1,
)
# Redis rewrites its file in some rounds and not in others, so ingest needs many.
FULL = Size(
    rounds=10,
    hand_over={"requests": 32, "at_once": 32, "output_tokens": 64, "prompt_tokens": 256},
    ingest=(40, 4),
    fit=(1024, 4096, 8, 64),
    swap_vocabulary=32_000,
    swap_repeats=3,
)
#: In place of the usual load with --quick.
QUICK_REQUESTS = 16
QUICK_OUTPUT_TOKENS = 32


def main() -> None:
    """Measure and print."""
    options = parse()
    torch.set_num_threads(1)  # costs are of one core
    load = load_of(options)
    size = QUICK if options.quick else FULL
    print(f"machine: {machine()}")
    print(
        f"hidden {load.hidden} x {load.layers} layers in {load.dtype}; {load.row_bytes:,} bytes of features per token"
    )
    for name, print_part in PARTS.items():
        if name in options.only:
            with ending_signals(), tempfile.TemporaryDirectory() as folder:  # no Redis is left running
                print_part(Path(folder), load, size)


def parse() -> argparse.Namespace:
    """The command line."""
    usual = Load()
    parser = benchmark_parser("width", __doc__)
    parser.add_argument("--quick", action="store_true", help="fewer requests and rounds: under a minute on two cores")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="some parts (all)")
    parser.add_argument("--hidden", type=int, default=usual.hidden, help="hidden size (4096)")
    parser.add_argument("--layers", type=int, default=usual.layers, help="layers whose states are captured (3)")
    parser.add_argument("--dtype", choices=list(DTYPES), default=usual.dtype, help="of the states (bfloat16)")
    parser.add_argument("--feature-format", choices=("captured", "int8"), default="captured", help="int8: as of a GPU")
    parser.add_argument("--prompt-tokens", type=int, default=usual.prompt_tokens, help="of every prompt (8192)")
    parser.add_argument("--requests", type=int, help="streamed at a time (64; 16 with --quick)")
    parser.add_argument("--output-tokens", type=int, help="of a request, the mean (128; 32 with --quick)")
    return parser.parse_args()


def load_of(options: argparse.Namespace) -> Load:
    """What is streamed from station to station."""
    requests = options.requests or (QUICK_REQUESTS if options.quick else Load().requests)
    output_tokens = options.output_tokens or (QUICK_OUTPUT_TOKENS if options.quick else Load().output_tokens)
    asked = {name: getattr(options, name) for name in ("hidden", "layers", "dtype", "feature_format", "prompt_tokens")}
    return Load(requests=requests, at_once=requests, output_tokens=output_tokens, **asked)


def print_stations(folder: Path, load: Load, _size: Size) -> None:
    """Every station once, with a scheduler that waits for room; then what one that does not loses."""
    held = travel(folder / "held", load)
    print(f"\n{load.requests} requests at a time, prompts of {load.prompt_tokens} tokens, {summary(held)}\n")
    print("| station | bytes per token | processor us per token | tokens/s of one core |\n|---|---|---|---|")
    for station in held.stations():
        print(station.line(held.claimed.tokens))
    print("\n| the scheduler | captured | delivered | dropped | claimed |\n|---|---|---|---|---|")
    print(counts_line("waits for room on the line", held), flush=True)
    print(counts_line("never waits", travel(folder / "flood", load, is_held=False)), flush=True)


def summary(journey: Journey) -> str:
    """What was streamed, and what the courier needed for it."""
    return (
        f"{journey.spent.output_tokens:,} output tokens, {journey.claimed.tokens:,} tokens in traces; "
        f"the courier held {journey.courier_peak_bytes / 1e6:,.0f} MB at most"
    )


def counts_line(name: str, journey: Journey) -> str:
    """One row of the table of counts."""
    counts = journey.counts
    dropped = ", ".join(f"{reason}: {traces}" for reason, traces in sorted(counts["dropped"].items())) or "none"
    claimed = ", ".join(f"{outcome}: {traces}" for outcome, traces in journey.claimed.outcomes.items() if traces)
    return f"| {name} | {counts['captured']} | {counts['delivered']} | {dropped} | {claimed or 'none'} |"


def print_hand_over(folder: Path, load: Load, size: Size) -> None:
    """By width."""
    widths = sorted({*(narrow for narrow in NARROW if narrow < load.hidden), load.hidden})
    narrow = Load(layers=load.layers, dtype=load.dtype, **size.hand_over)
    print("\n| hidden | bytes per forward | hooks, us | hand-over, us | over the narrowest |\n|---|---|---|---|---|")
    for found in by_width(folder, narrow, widths, size.rounds):
        print(found.line(), flush=True)


def print_ingest(folder: Path, load: Load, size: Size) -> None:
    """Payloads as small as those of tokens alone, and as large as this load's."""
    rounds, trips = size.ingest
    large = (min(load.prompt_tokens, KEPT_PROMPT) + load.output_tokens) * load.row_bytes
    print("\n| bytes | per trip | buffer, MB/s | bare XADD, MB/s | buffer over bare |\n|---|---|---|---|---|")
    for payload_bytes, depth in ((4 << 10, 16), (64 << 10, 16), (1 << 20, 16), (large, 2)):
        found = ingest_against_bare(
            folder / str(payload_bytes), payload_bytes=payload_bytes, depth=depth, trips=trips, rounds=rounds
        )
        print(found.line(), flush=True)


def print_fit(_folder: Path, _load: Load, size: Size) -> None:
    """At a width that two cores can train."""
    print("\n| hidden | tokens of a fit | fit, tokens/s | bare loop, tokens/s | fit over bare |\n|---|---|---|---|---|")
    hidden, vocabulary, traces, tokens = size.fit
    found = fit_against_bare(hidden, vocabulary, traces=traces, tokens=tokens, rounds=size.rounds)
    print(found.line(), flush=True)


def print_swap(folder: Path, load: Load, size: Size) -> None:
    """Of a draft as wide as the load."""
    headings = ("hidden", "file, MB", "staged, MB", "staging, s", "beside a busy thread, s", "digest, s", "copy, s")
    print(f"\n| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
    print(staged(folder, load.hidden, size.swap_vocabulary, size.swap_repeats).line(), flush=True)


PARTS: Mapping[str, Callable[[Path, Load, Size], None]] = {
    "stations": print_stations,
    "hand-over": print_hand_over,
    "ingest": print_ingest,
    "fit": print_fit,
    "swap": print_swap,
}


if __name__ == "__main__":
    main()
