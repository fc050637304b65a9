"""What a draft that is not used costs: tokens per second of servers that draft nothing over one that loaded no draft.

All servers are up at the same time, with a target deepened as in pacing_costs.py, and are asked the same prompts in
turn, other ones each round, in an order drawn anew; so every figure has a partner measured seconds before or after it.
With --draft, the folder of one that has learnt, goodput and fixed-K compare pacing with lengths that stay. Ways:

    plain      a server without speculation
    extending  SGLang alone at steps 0: the draft runs over every committed token
    skipping   the same with SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1: the floor that SGLang itself leaves
    warm       paceline at steps 0 with PACELINE_CATCH_UP_BYTES=0: as extending, and every request captured
    uncaptured paceline at steps 0, the draft still, no trace captured
    captured   the same, every request captured
    goodput    paceline paced by its default policy over the lengths of --lengths
    fixed-K    paceline at K steps, always

    python -m paceline.benchmarks.zero_steps [--ways plain,extending,skipping,warm,uncaptured,captured] [--rounds 8]
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from ..rig.deployment import LocalDeployment, plain_flags
from ..rig.models.deepened import LAYERS, slower
from ..rig.models.target import TargetModel, ensure_random_draft, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.progress import progress_bar
from ..rig.prompts import Prompt
from ..rig.ratio import ratio
from ..rig.services import sglang_service
from ..rig.signals import ending_signals
from ..rig.speed.arm import CATCH_UP_BYTES
from .measure.answers import answer_all, asks
from .measure.command_line import benchmark_parser
from .measure.measured_server import held_out_prompts, wait_until
from .measure.paired import in_rounds
from .measure.services import cpu_server, running

SEED = 0
PLAIN = "plain"
#: SGLang wants a length above 0 to start with; no batch here is as large as that.
NEVER = {1: (0,), 64: (3,)}
#: Of every server. An idle scheduler spins unless it is told to sleep: it would take a core from the one that is asked.
FLAGS = ("--disable-radix-cache", "--sleep-on-idle")
FLOOR = (PLAIN, "extending", "skipping", "warm", "uncaptured", "captured")
#: Of kept hidden states, whatever the environment says.
CATCHES_UP, ALWAYS_WARM = {"PACELINE_CATCH_UP_BYTES": str(CATCH_UP_BYTES)}, {"PACELINE_CATCH_UP_BYTES": "0"}


@dataclass(frozen=True, slots=True)
class Way:
    """How one server drafts."""

    lengths: Mapping[int, tuple[int, ...]]  # of SGLang's adaptive speculation, from a batch size on
    env: Mapping[str, str]
    has_paceline: bool = True


def main() -> None:
    """Measure and print."""
    options, console = parse(), Console()
    if options.target:
        target = TargetModel(options.target, options.target.name, {}, 0)
    else:
        with progress_bar("training the target (once)", console) as report:
            target = ensure_target(options.data_dir, TrainPlan(), report=report)
    draft = options.draft or ensure_random_draft(target.folder, options.data_dir / "drafts" / target.key, SEED)
    slow = slower(target, options.layers)
    # One round more than is counted: the first ones load what later ones find, and pacing measures its costs.
    prompts = held_out_prompts(target, max(options.concurrency) * (1 + options.rounds), SEED)
    with ExitStack() as stack:
        urls = {name: stack.enter_context(serving(name, slow, draft, options)) for name in options.ways}
        for concurrency in options.concurrency:
            blocks = [prompts[begin : begin + concurrency] for begin in range(0, len(prompts), concurrency)]
            ways = {name: partial(speed, url, iter(blocks), options.tokens) for name, url in urls.items()}
            in_rounds(ways, 1, SEED)
            print_row(concurrency, in_rounds(ways, options.rounds, SEED))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("zero_steps", __doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of targets and draft")
    parser.add_argument("--target", type=Path, help="folder of a target (the demo's)")
    parser.add_argument("--draft", type=Path, help="folder of a draft of that target (a random one)")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"layers of the deepened target ({LAYERS})")
    parser.add_argument("--ways", type=words, default=FLOOR, help=f"what to compare ({','.join(FLOOR)})")
    parser.add_argument("--lengths", type=numbers, default=(0, 1, 2, 3, 4, 5), help="lengths that goodput may choose")
    parser.add_argument("--concurrency", type=numbers, default=(1, 4, 8), help="requests at a time (1,4,8)")
    parser.add_argument("--tokens", type=int, default=48, help="output tokens of each request (48)")
    parser.add_argument("--rounds", type=int, default=8, help="figures of each way and concurrency (8)")
    return parser.parse_args()


def words(text: str) -> tuple[str, ...]:
    """Comma-separated names."""
    return tuple(text.split(","))


def numbers(text: str) -> tuple[int, ...]:
    """Comma-separated whole numbers."""
    return tuple(map(int, text.split(",")))


def way_of(name: str, lengths: Sequence[int]) -> Way:
    """What is meant by a name; exits when nothing is."""
    known = {
        "extending": Way(NEVER, {}, has_paceline=False),
        "skipping": Way(NEVER, {"SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND": "1"}, has_paceline=False),
        "warm": Way(NEVER, {"PACELINE_PACING": "off", **ALWAYS_WARM}),
        "uncaptured": Way(NEVER, {"PACELINE_PACING": "off", "PACELINE_SAMPLE_RATE": "0", **CATCHES_UP}),
        "captured": Way(NEVER, {"PACELINE_PACING": "off", **CATCHES_UP}),
        "goodput": Way({1: tuple(lengths)}, {"PACELINE_PACING": "goodput", **CATCHES_UP}),
    }
    kind, _, steps = name.partition("-")
    if kind == "fixed" and steps.isdecimal():
        return Way({1: (int(steps),)}, {"PACELINE_PACING": "fixed"})
    if name not in known:
        raise SystemExit(f"--ways: got {name}, expected {PLAIN}, fixed-NUMBER or one of {', '.join(known)}")
    return known[name]


@contextmanager
def serving(name: str, target: TargetModel, draft: Path, options: argparse.Namespace) -> Iterator[str]:
    """URL of the server that `name` stands for; it is up for as long as the context."""
    with tempfile.TemporaryDirectory() as folder:
        local = LocalDeployment.on_free_ports(Path(folder))
        if name == PLAIN:
            kept = [*plain_flags(target.folder), *FLAGS]
            env = local.shared_env(target) | {"PACELINE_REDIS_URL": ""}
            with sglang_service(kept, local.server_port, log=local.folder / "sglang.log", env=env):
                yield local.server_url
        else:
            with speculating(way_of(name, options.lengths), local, target, draft):
                yield local.server_url


@contextmanager
def speculating(way: Way, local: LocalDeployment, target: TargetModel, draft: Path) -> Iterator[None]:
    """A server that drafts as `way` says."""
    lengths = local.folder / "lengths.json"
    table = {str(batch): {"candidate_steps": list(steps)} for batch, steps in way.lengths.items()}
    lengths.write_text(json.dumps(table), encoding="utf-8")
    longest = max(max(steps) for steps in way.lengths.values())
    adaptive = ["--speculative-adaptive", "--speculative-adaptive-config", str(lengths)]
    adaptive += ["--speculative-num-steps", str(longest), *FLAGS]
    if way.has_paceline:
        with running(local, cpu_server(local, target, draft, adaptive, way.env), [draft]) as services:
            status = services.server.reader.replica_status
            wait_until(lambda: status().get("capture") == "on" and status().get("pacing"), "the replica to be paced")
            yield
    else:
        with cpu_server(local, target, draft, adaptive, {**way.env, "PACELINE_REDIS_URL": ""}):
            yield


def speed(url: str, blocks: Iterator[Sequence[Prompt]], tokens: int) -> float:
    """Output tokens per second while the next block is answered, all of it at a time.

    Prefill and the client's own time are included.
    """
    prompts = next(blocks)
    return answer_all(url, asks(prompts, "zero", tokens), len(prompts)).tokens_per_second


def print_row(concurrency: int, figures: Mapping[str, Sequence[float]]) -> None:
    """One concurrency: tokens per second, and each way over the first one."""
    first, *others = figures
    for name in figures:
        mean = sum(figures[name]) / len(figures[name])
        print(f"concurrency {concurrency}: {name} {mean:.1f} tokens/s", flush=True)
    for name in others:
        found = ratio(figures[name], figures[first])
        print(f"concurrency {concurrency}: {name} over {first} {found.text()}", flush=True)


if __name__ == "__main__":
    with ending_signals():
        main()
