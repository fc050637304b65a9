"""What an unreachable Redis costs the requests that are served meanwhile: paired periods on one CPU server.

Requests are answered whole, several at a time, for so many seconds with Redis well and for so many with Redis stopped
by SIGSTOP (it accepts connections and answers nothing, the hardest way to be gone), in turns. A failed request
ends the run. Printed are the p99 of the time per output token, paired as a ratio, and where every trace went.

    python -m paceline.benchmarks.outage [--seconds 60] [--periods 3] [--concurrency 4] [--data-dir .paceline]
"""

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console

from ..dashboards.tables import as_counts, as_int
from ..rig.machine import machine
from ..rig.models.target import ensure_random_draft, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.place import Place, server_flags, shared_env
from ..rig.progress import progress_bar
from ..rig.prompts import Prompt
from ..rig.services import Service, free_port, redis_service, sglang_service
from .measure.answers import answer_all, asks
from .measure.paired import ratio
from .measure.rig import Rig, held_out_prompts, make_rig, wait_until

MAX_TOKENS, SEED, CROWDS = 48, 0, 4  # crowds of requests asked at once, so that all are busy to the end


def main() -> None:
    """Measure and print."""
    options, console = parse(), Console()
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    draft = ensure_random_draft(target.folder, options.data_dir / "drafts" / target.key, SEED)
    prompts = held_out_prompts(target, CROWDS * options.concurrency, SEED)
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(Path(scratch), free_port(), free_port())
        server = sglang_service(
            server_flags(target.folder, draft),
            place.server_port,
            log=place.folder / "s.log",
            env=shared_env(place, target),
        )
        with redis_service(place.folder / "redis", place.redis_port) as redis, server:
            rig = make_rig(place, [draft])
            period(rig, prompts, options.concurrency, 5.0)  # warms up
            tell(console, rig, *measure(rig, redis, prompts, options))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of one period (60)")
    parser.add_argument("--periods", type=int, default=3, help="of either kind (3)")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"))
    return parser.parse_args()


def measure(
    rig: Rig, redis: Service, prompts: Sequence[Prompt], options: argparse.Namespace
) -> tuple[list[float], list[float], int]:
    """p99 milliseconds per token of every period with Redis well, and without, and the requests answered."""
    well, gone, requests = [], [], 0
    with progress_bar("measuring", Console()) as report:
        for number in range(options.periods):
            report(number / options.periods, f"{number} of {options.periods} pairs")
            times = period(rig, prompts, options.concurrency, options.seconds)
            with stopped(redis):
                others = period(rig, prompts, options.concurrency, options.seconds)
            wait_until(lambda: rig.watch.replica().get("buffer_error") == "", "the replica to find Redis again")
            rig.drained()
            well.append(float(np.percentile(times, 99)))
            gone.append(float(np.percentile(others, 99)))
            requests += len(times) + len(others)
    return well, gone, requests


def period(rig: Rig, prompts: Sequence[Prompt], concurrency: int, seconds: float) -> list[float]:
    """Milliseconds per output token of every request answered in about `seconds`. A failed request raises."""
    ends, times = time.monotonic() + seconds, []
    while time.monotonic() < ends:
        done = answer_all(rig.url, asks(prompts, "outage", MAX_TOKENS), concurrency)
        times += [1e3 * each.meta["e2e_latency"] / len(each.output_ids) for each in done.answers]
    return times


@contextmanager
def stopped(redis: Service) -> Iterator[None]:
    """Let Redis answer nothing for the body."""
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(redis.pid, signal.SIGCONT)


def tell(console: Console, rig: Rig, well: list[float], gone: list[float], requests: int) -> None:
    """Print the ratio and where the traces went."""
    reading = rig.drained()
    console.print(f"machine: {machine()}; seed {SEED}", soft_wrap=True)
    console.print(f"{requests} requests answered; a failed one would have ended this run")
    console.print(
        f"p99 of milliseconds per token, Redis gone / well, paired: {ratio(gone, well).text()}", soft_wrap=True
    )
    console.print(
        f"traces captured {as_int(reading, 'captured')}, delivered {as_int(reading, 'delivered')}, "
        f"dropped {as_counts(reading, 'dropped')}"
    )


if __name__ == "__main__":
    main()
