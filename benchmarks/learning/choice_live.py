"""One draft, SGLang's n-gram table, and a choice between them by label, on live servers of a chat model.

    python -m paceline.benchmarks.learning.record --target smollm2 --settings t0-k3     # what the draft learns from
    python -m paceline.benchmarks.learning.choice_live

All servers draft chains of three. The draft knows half of the streams; tables begin empty. Requests are prompts that
nobody has met, the streams interleaved, one request at a time, so that no server waits for another's cores. Each prompt
is sent to the draft's server, to the table's, and to the one that is chosen: the draft's, or a second table that meets
the chosen requests alone. These three go in a random order, so that a machine that slows down slows
all alike. The choice is Hedge with full information by label; a drafter's loss is the rounds that it needed for a token
times what its rounds have taken so far: what replay and the step clock tell in production. A seed is kept when it is
done: an interrupted bench goes on.
"""

import argparse
import asyncio
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
from .choice import ChoiceByLabel, kept_or_made
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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as it was answered."""

    label: str
    tokens: int
    accepted: float
    rounds: float
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
    with tempfile.TemporaryDirectory() as scratch, servers(lab, draft, Path(scratch)) as urls:
        found = []
        with progress_bar("seeds", console) as report:
            for seed in range(options.seeds):
                file = lab.folder / "choice-live" / f"{options.per_stream}-{seed}.json"
                prompts = prompts_of(lab, seed, options.per_stream)
                found.append(kept_or_made(file, Passes, partial(passes, urls, prompts, seed)))
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
    parser.add_argument("--per-stream", type=int, default=8, help="requests of each stream and seed (%(default)s)")
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


@contextmanager
def servers(lab: Lab, draft: Path, scratch: Path) -> Iterator[dict[str, str]]:
    """Start the server with the draft, and two with a table; yields their URLs, CHOICE's that of its own table."""
    local = LocalDeployment.on_free_ports(scratch)
    urls = {DRAFT: local.server_url}
    flags = [*plain_flags(lab.target.folder), *TABLE_FLAGS]
    server = cpu_server(local, lab.target, draft, flags=["--disable-radix-cache"])
    with running(local, server, [draft]), ExitStack() as tables:
        for name, replica in ((NGRAM, "table"), (CHOICE, "chosen-table")):
            beside = LocalDeployment.on_free_ports(scratch)
            env = local.shared_env(lab.target) | {"PACELINE_REPLICA": replica}
            table = sglang_service(flags, beside.server_port, log=scratch / f"{replica}.log", env=env)
            tables.enter_context(table)
            urls[name] = beside.server_url
        yield urls


def passes(urls: Mapping[str, str], prompts: Sequence[Prompt], seed: int) -> Passes:
    """Serve every prompt in the three ways, on servers that begin empty. Exits when a request fails."""
    for url in urls.values():
        flush_cache(url)  # which empties the table too
    draw = random.Random(f"{seed} choices")
    chooser = ChoiceByLabel([DRAFT, NGRAM])
    found: Passes = {name: [] for name in urls}
    under_ids = {name: under_new_ids(prompts) for name in urls}
    for place, label in enumerate(prompt.domain for prompt in prompts):
        shares = chooser.shares(label)
        (chosen,) = draw.choices([*shares], [*shares.values()])
        for name in draw.sample([*urls], len(urls)):
            asked = DRAFT if (name, chosen) == (CHOICE, DRAFT) else name
            found[name].append(served(urls[asked], under_ids[name][place]))
        chooser.learn(label, {name: seconds_per_token(found[name]) for name in shares})
    return found


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


def seconds_per_token(answers: Sequence[Answer]) -> float:
    """Of the last answer, if its rounds took as long as those of all so far, prefills in it."""
    per_round = sum(answer.seconds for answer in answers) / max(sum(answer.rounds for answer in answers), 1)
    return per_round * answers[-1].rounds / answers[-1].tokens


def markdown(seeds: Sequence[Passes]) -> str:
    """Accepted drafts per round, and tokens per second over one draft's and the better drafter's, by way to draft."""
    lines = [
        "| drafted by | accepted drafts per round | tokens/s over one draft | over the better one | its later half |",
        "|---|---|---|---|---|",
    ]
    whole = [found | {BEST: best_known(found)} for found in seeds]
    later = [{name: answers[len(answers) // 2 :] for name, answers in found.items()} for found in whole]
    for name in (DRAFT, NGRAM, CHOICE, BEST):
        figures = (
            [accepted_per_round(found[name]) for found in whole],
            [speed(found[name]) / speed(found[DRAFT]) for found in whole],
            [over_the_better(found, name) for found in whole],
            [over_the_better(found, name) for found in later],
        )
        lines.append(f"| {name} | {' | '.join(Mean.of(of_seeds).text() for of_seeds in figures)} |")
    return "\n".join(lines)


def over_the_better(found: Passes, name: str) -> float:
    """Tokens per second over those of the one drafter that made most: one, less what is regretted."""
    return speed(found[name]) / max(speed(found[DRAFT]), speed(found[NGRAM]))


def best_known(found: Passes) -> list[Answer]:
    """Every label by the drafter that makes most tokens per second of it, as it did alone."""
    labels = [answer.label for answer in found[DRAFT]]
    best = {}
    for label in labels:
        speeds = {name: speed([one for one in found[name] if one.label == label]) for name in (DRAFT, NGRAM)}
        best[label] = max(speeds, key=lambda name: speeds[name])
    return [found[best[label]][place] for place, label in enumerate(labels)]


def accepted_per_round(answers: Sequence[Answer]) -> float:
    """Of all rounds together."""
    return sum(answer.accepted for answer in answers) / sum(answer.rounds for answer in answers)


def speed(answers: Sequence[Answer]) -> float:
    """Tokens per second, one request after another."""
    return sum(answer.tokens for answer in answers) / sum(answer.seconds for answer in answers)


if __name__ == "__main__":
    with ending_signals():
        main()
