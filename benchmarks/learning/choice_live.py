"""One draft, SGLang's n-gram table, and a choice between them by label, on two live servers of a chat model.

    python -m paceline.benchmarks.learning.record --target smollm2 --settings t0-k3     # what the draft learns from
    python -m paceline.benchmarks.learning.choice_live

Both servers draft chains of three. The draft knows half of the streams; the table begins empty. Requests are prompts
that neither has met, the streams interleaved, one request at a time, so that a server never waits for the other's
cores. Each is sent to both servers in turn; that is what replay and the step clock tell in production. Then the choice
runs on emptied servers: Hedge with full information by label, over the requests before, whose loss is the rounds that
a drafter needs for a token times what its rounds take.
"""

import argparse
import asyncio
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from ...buffer.errors import ConfigError
from ...learner.disk import write_text
from ...rig.deployment import LocalDeployment, plain_flags
from ...rig.processes import ending_signals
from ...rig.progress import progress_bar
from ...rig.prompts import Prompt
from ...rig.runs import machine
from ...rig.services import sglang_service
from ...rig.trace_file import read_card
from ...rig.traffic import Served, pooled, send
from ..measure.answers import flush_cache
from ..measure.command_line import benchmark_parser
from ..measure.measured_server import under_new_ids
from ..measure.services import cpu_server, running
from .choice import hedge
from .figures import Mean
from .lab import Lab, open_lab
from .warm import CHAT_SETTING, ensure_warm_head

DRAFT = "one draft"
NGRAM = "n-gram table"
CHOICE = "choice by label"
BEST = "the label's best, known beforehand"
MAX_TOKENS = 64
TABLE_FLAGS = (
    "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4",
    "--speculative-ngram-max-bfs-breadth", "1", "--disable-radix-cache",
)  # fmt: skip

#: What every way to draft made of one seed's requests.
Passes = dict[str, list[Served]]


def main() -> None:
    """Serve, and write the table."""
    options = parse()
    console = Console()
    with progress_bar("the target (once)", console) as report:
        lab = open_lab(options.data_dir, report, is_chat=True)
    with progress_bar("the draft (once)", console) as report:
        draft = ensure_warm_head(lab, lab.domains[0], report)
    with tempfile.TemporaryDirectory() as scratch:
        local = LocalDeployment.on_free_ports(Path(scratch))
        beside = LocalDeployment.on_free_ports(Path(scratch))
        env = local.shared_env(lab.target) | {"PACELINE_REPLICA": "table"}
        flags = [*plain_flags(lab.target.folder), *TABLE_FLAGS]
        table = sglang_service(flags, beside.server_port, log=Path(scratch) / "table.log", env=env)
        server = cpu_server(local, lab.target, draft, flags=["--disable-radix-cache"])
        with running(local, server, [draft]), table, progress_bar("seeds", console) as report:
            urls = {DRAFT: local.server_url, NGRAM: beside.server_url}
            found = []
            for seed in range(options.seeds):
                found.append(passes(urls, prompts_of(lab, seed, options.per_stream), seed))
                report((seed + 1) / options.seeds, f"{seed + 1} of {options.seeds}")
    text = f"{markdown(found)}\n{machine()}\n"
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "choice-live.md", text)
    console.print(text, highlight=False, soft_wrap=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("learning.choice_live", __doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument("--seeds", type=int, default=3, help="orders, each of other prompts (%(default)s)")
    parser.add_argument("--per-stream", type=int, default=6, help="requests of each stream and seed (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning"))
    return parser.parse_args()


def prompts_of(lab: Lab, seed: int, per_stream: int) -> list[Prompt]:
    """Prompts of every stream that has so many beyond those that were recorded, in the order of `seed`."""
    found = []
    for stream in lab.domains:
        first = int(read_card(lab.trace_file(CHAT_SETTING, stream))["per_domain"]) + seed * per_stream
        try:
            found += lab.prompts(stream, first + per_stream)[first:]
        except ConfigError:  # a short stream was recorded whole
            continue
    random.Random(seed).shuffle(found)
    return found


def passes(urls: Mapping[str, str], prompts: Sequence[Prompt], seed: int) -> Passes:
    """Serve all prompts by each drafter alone, then by the choice. Exits when a request fails."""
    found: Passes = {}
    for name, url in urls.items():
        flush_cache(url)  # which empties the table too
        found[name] = [served(url, prompt) for prompt in under_new_ids(prompts)]
    for url in urls.values():
        flush_cache(url)
    chosen = choices(found, seed)
    found[CHOICE] = [served(urls[name], prompt) for name, prompt in zip(chosen, under_new_ids(prompts), strict=True)]
    return found


def served(url: str, prompt: Prompt) -> Served:
    """One request, alone."""
    (answer,) = asyncio.run(send(url, [prompt], concurrency=1, max_tokens=MAX_TOKENS, ends_at_eos=True))
    if answer.failure:
        raise SystemExit(f"{prompt.request_id} failed: {answer.failure}")
    return answer


def choices(found: Passes, seed: int) -> list[str]:
    """The drafter of each request, drawn by Hedge from what both made of the requests before it."""
    draw = random.Random(f"{seed} choices")
    losses: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(found, 0.0))
    seen: Counter[str] = Counter()
    chosen = []
    for place, request in enumerate(next(iter(found.values()))):
        label = request.prompt.domain
        seen[label] += 1
        shares = hedge(losses[label], seen[label])
        chosen.append(draw.choices([*shares], [*shares.values()])[0])
        spent = {name: seconds_per_round(all_of[: place + 1]) for name, all_of in found.items()}
        for name, all_of in found.items():
            rounds_per_token = all_of[place].tally.rounds / len(all_of[place].output_ids)
            losses[label][name] += rounds_per_token * spent[name] / max(spent.values())
    return chosen


def seconds_per_round(requests: Sequence[Served]) -> float:
    """As a step clock tells it; prefills are in it."""
    return seconds_of(requests) / max(pooled(requests).rounds, 1)


def seconds_of(requests: Sequence[Served]) -> float:
    """From sending to the last token, one after another."""
    return sum(request.done_at - request.sent_at for request in requests)


def markdown(seeds: Sequence[Passes]) -> str:
    """Accepted drafts per round, tokens per second over one draft's, and regret, by way to draft."""
    lines = [
        "| drafted by | accepted drafts per round | tokens per second over one draft | over the best |",
        "|---|---|---|---|",
    ]
    whole = [found | {BEST: best_known(found)} for found in seeds]
    for name in (DRAFT, NGRAM, CHOICE, BEST):
        accepted = Mean.of([pooled(found[name]).accepted / pooled(found[name]).rounds for found in whole])
        speeds = Mean.of([speed(found[name]) / speed(found[DRAFT]) for found in whole])
        apart = Mean.of([speed(found[name]) / speed(found[BEST]) for found in whole])
        lines.append(f"| {name} | {accepted.text()} | {speeds.text()} | {apart.text()} |")
    return "\n".join(lines)


def best_known(found: Passes) -> list[Served]:
    """Every label by the drafter that makes most tokens per second of it, as it did alone."""
    labels = {request.prompt.domain for request in found[DRAFT]}
    by_label = {
        label: max(
            ([request for request in found[name] if request.prompt.domain == label] for name in (DRAFT, NGRAM)),
            key=speed,
        )
        for label in labels
    }
    return [request for requests in by_label.values() for request in requests]


def speed(requests: Sequence[Served]) -> float:
    """Tokens per second."""
    return sum(len(request.output_ids) for request in requests) / seconds_of(requests)


if __name__ == "__main__":
    with ending_signals():
        main()
