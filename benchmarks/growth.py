"""What a fleet costs as it grows from 1 to 64 replicas: processor time and memory by number of replicas.

Replicas are simulated: each has the connections, the heartbeat, the look at the board and the traces of a real one, and
no server. Traces are made once by the real hooks and a real courier, with random features, or recorded from a real
server (--traces). Every fleet sends the same number of them, by the product's encoder, into a real Redis that keeps a
file; a learner's claim reads, decodes, sorts and acks them. Heartbeats are the largest that a courier sends, and each
replica has an hour of history. One process acts everybody in turn, so nothing here waits for a core.

    python -m paceline.benchmarks.growth [--replicas 1 4 16 64] [--forms int8 tokens] [--rounds 3] [--hidden 4096]
        [--traces FILE] [--quick]
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..buffer.stream.trace import DraftTrace
from ..rig.processes import ending_signals
from ..rig.ratio import Spread
from ..rig.readiness import free_port
from ..rig.runs import machine
from ..rig.services import redis_service
from ..rig.trace_file import read_traces
from .fleet.costs import Cost, FleetCosts, costs_of
from .fleet.stock import FORMS, acted, bytes_per_token, in_form
from .measure.command_line import benchmark_parser
from .measure.paired import in_rounds
from .wide.traffic import Load

SEED = 0
#: Traces that every fleet sends.
SENT = {"captured": 64, "int8": 64, "fp8": 64, "tokens": 1024}
#: What the acted scheduler makes: traces that are each sent many times.
STOCK = 8
PROMPT_TOKENS = 512
OUTPUT_TOKENS = 128


def main() -> None:
    """Measure and print."""
    options = parse()
    with ending_signals(), tempfile.TemporaryDirectory() as folder:
        stock = read_traces(options.traces) if options.traces else acted(Path(folder) / "stock", load_of(options))
        print(f"machine: {machine()}")
        port = free_port()
        with redis_service(Path(folder) / "redis", port):
            for form in options.forms:
                traces = [in_form(trace, form) for trace in stock]
                sent = STOCK if options.quick else SENT[form]
                measure = partial(costs_of, f"redis://127.0.0.1:{port}/0", stock=traces, sent=sent)
                print(f"\n{form}: {described(traces)}; every fleet sends {sent} of them")
                print(table(in_fleets(measure, options.replicas, options.rounds)), flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("growth", __doc__)
    parser.add_argument("--quick", action="store_true", help="few traces, one round: its figures say little")
    parser.add_argument("--replicas", nargs="+", type=int, default=[1, 4, 16, 64], help="sizes of fleets (1 4 16 64)")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["int8", "tokens"], help="of features (both)")
    parser.add_argument("--rounds", type=int, help="of all fleets (3; 1 with --quick)")
    parser.add_argument("--hidden", type=int, default=Load().hidden, help="hidden size (4096), three layers, bfloat16")
    parser.add_argument("--traces", type=Path, help="recorded ones, as benchmarks.learning.record writes them")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    return options


def load_of(options: argparse.Namespace) -> Load:
    """What the acted scheduler serves for the stock."""
    asked = {"hidden": options.hidden, "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    return replace(Load(requests=STOCK, at_once=STOCK), **asked)


def described(traces: Sequence[DraftTrace]) -> str:
    """For the line above a table."""
    tokens = sum(len(trace.tokens) for trace in traces) / len(traces)
    return f"traces of {tokens:,.0f} tokens, {bytes_per_token(traces):,.1f} bytes per token in Redis"


def in_fleets(measure: Callable[[int], FleetCosts], sizes: Sequence[int], rounds: int) -> dict[int, list[FleetCosts]]:
    """Every size once a round, in an order drawn from SEED."""
    found: dict[int, list[FleetCosts]] = {size: [] for size in sizes}

    def once(size: int) -> float:
        found[size].append(measure(size))
        return 0.0

    in_rounds({str(size): partial(once, size) for size in sizes}, rounds, SEED)
    return found


def table(found: dict[int, list[FleetCosts]]) -> str:
    """A row per figure, a column per size: medians with extremes."""
    acts: dict[str, Callable[[FleetCosts], tuple[float, float]]] = {
        "us per trace: encode and append": lambda each: scaled(each.append, 1e6),
        "us per trace: claim, decode, sort, ack": lambda each: scaled(each.claim, 1e6),
        "us per replica and second: beat, look": lambda each: scaled(each.beat, 1e6),
        "ms per read of all heartbeats": lambda each: scaled(each.heartbeats, 1e3),
        "ms per `paceline status`": lambda each: scaled(each.status, 1e3),
    }
    rows = [["replicas", *map(str, found)], ["---"] * (len(found) + 1)]
    for name, figures in acts.items():
        for place, where in enumerate(("", ", in Redis")):
            digits = 0 if name.startswith("us") else 1
            cells = [Spread.of([figures(each)[place] for each in fleets]).text(digits) for fleets in found.values()]
            rows.append([name + where, *cells])
    memory = [Spread.of([each.replica_bytes / 1e3 for each in fleets]).text(0) for fleets in found.values()]
    share = [Spread.of([each.payload_share for each in fleets]).text(3) for fleets in found.values()]
    rows += [["kB of Redis per replica", *memory], ["bytes of Redis per byte of traces", *share]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def scaled(cost: Cost, factor: float) -> tuple[float, float]:
    """In this process, and in Redis."""
    return cost.own_s * factor, cost.redis_s * factor


if __name__ == "__main__":
    main()
