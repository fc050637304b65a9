"""One draft, SGLang's n-gram table, and a choice between them by label, on two live servers of a chat model.

    python -m paceline.benchmarks.learning.record --target smollm2 --settings t0-k3     # what the draft learns from
    python -m paceline.benchmarks.learning.choice_live

Both servers draft chains of three. The draft knows half of the streams; the table begins empty. Requests are prompts
that neither has met, the streams interleaved, one request at a time, so that a server never waits for the other's
cores. Each is sent to both servers in turn; that is what replay and the step clock tell in production. Then the choice
runs on emptied servers: Hedge with full information by label, over the requests before, whose loss is the rounds that
a drafter needs for a token times what its rounds take. A seed is kept when it is done: an interrupted bench goes on.
"""

import argparse
import asyncio
import random
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
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
from ...rig.traffic import send
from ..measure.answers import flush_cache
from ..measure.command_line import benchmark_parser
from ..measure.measured_server import under_new_ids
from ..measure.services import cpu_server, running
from .choice import ChoiceByLabel
from .figures import Mean
from .lab import Lab, open_lab
from .orders import kept_or_made
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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as it was answered."""

    label: str
    tokens: int
    accepted: int
    rounds: int
    seconds: float  # from sending to the last token


#: What every way to draft made of one seed's requests.
Passes = dict[str, list[Answer]]


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
                kept = lab.folder / "choice-live" / f"{options.per_stream}-{seed}"
                prompts = prompts_of(lab, seed, options.per_stream)
                alone = kept_or_made(kept.with_suffix(".alone.json"), Passes, partial(passes, urls, prompts))
                chosen = choices(alone, seed)
                by_choice = partial(one_by_one, urls, prompts, chosen)
                found.append(alone | {CHOICE: kept_or_made(kept.with_suffix(".json"), list[Answer], by_choice)})
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


def passes(urls: Mapping[str, str], prompts: Sequence[Prompt]) -> Passes:
    """Serve all prompts by each drafter alone."""
    return {name: one_by_one(urls, prompts, [name] * len(prompts)) for name in urls}


def one_by_one(urls: Mapping[str, str], prompts: Sequence[Prompt], drafters: Sequence[str]) -> list[Answer]:
    """Serve each prompt by its drafter, on servers that begin empty. Exits when a request fails."""
    for url in urls.values():
        flush_cache(url)  # which empties the table too
    return [served(urls[name], prompt) for name, prompt in zip(drafters, under_new_ids(prompts), strict=True)]


def served(url: str, prompt: Prompt) -> Answer:
    """One request, alone."""
    (found,) = asyncio.run(send(url, [prompt], concurrency=1, max_tokens=MAX_TOKENS, ends_at_eos=True))
    if found.failure:
        raise SystemExit(f"{prompt.request_id} failed: {found.failure}")
    return Answer(
        label=prompt.domain,
        tokens=len(found.output_ids),
        accepted=found.tally.accepted,
        rounds=found.tally.rounds,
        seconds=found.done_at - found.sent_at,
    )


def choices(found: Passes, seed: int) -> list[str]:
    """The drafter of each request, drawn by Hedge from what both made of the requests before it."""
    draw = random.Random(f"{seed} choices")
    chooser = ChoiceByLabel([*found])
    chosen = []
    for place, answer in enumerate(next(iter(found.values()))):
        shares = chooser.shares(answer.label)
        chosen.append(draw.choices([*shares], [*shares.values()])[0])
        spent = {name: seconds_per_round(answers[: place + 1]) for name, answers in found.items()}
        rounds_per_token = {name: answers[place].rounds / answers[place].tokens for name, answers in found.items()}
        chooser.learn(answer.label, {name: rounds_per_token[name] * spent[name] for name in found})
    return chosen


def seconds_per_round(answers: Sequence[Answer]) -> float:
    """As a step clock tells it; prefills are in it."""
    return sum(answer.seconds for answer in answers) / max(sum(answer.rounds for answer in answers), 1)


def markdown(seeds: Sequence[Passes]) -> str:
    """Accepted drafts per round, tokens per second over one draft's, and over the best, by way to draft."""
    lines = [
        "| drafted by | accepted drafts per round | tokens per second over one draft | over the best |",
        "|---|---|---|---|",
    ]
    whole = [found | {BEST: best_known(found)} for found in seeds]
    for name in (DRAFT, NGRAM, CHOICE, BEST):
        accepted = Mean.of([accepted_per_round(found[name]) for found in whole])
        speeds = Mean.of([speed(found[name]) / speed(found[DRAFT]) for found in whole])
        apart = Mean.of([speed(found[name]) / speed(found[BEST]) for found in whole])
        lines.append(f"| {name} | {accepted.text()} | {speeds.text()} | {apart.text()} |")
    return "\n".join(lines)


def best_known(found: Passes) -> list[Answer]:
    """Every label by the drafter that makes most tokens per second of it, as it did alone."""
    labels = {answer.label for answer in found[DRAFT]}
    best = []
    for label in labels:
        of_label = ([answer for answer in found[name] if answer.label == label] for name in (DRAFT, NGRAM))
        best += max(of_label, key=speed)
    return best


def accepted_per_round(answers: Sequence[Answer]) -> float:
    """Of all rounds together."""
    return sum(answer.accepted for answer in answers) / sum(answer.rounds for answer in answers)


def speed(answers: Sequence[Answer]) -> float:
    """Tokens per second, one request after another."""
    return sum(answer.tokens for answer in answers) / sum(answer.seconds for answer in answers)


if __name__ == "__main__":
    with ending_signals():
        main()
