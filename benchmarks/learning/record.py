"""Records traces from the real server, through the product's own capture, one file per setting.

    python -m paceline.benchmarks.learning.record              # temperatures 0, 0.7; draft lengths 3, 5, 10
    python -m paceline.benchmarks.learning.record --per-domain 80 --settings t0-k5  # fewer
    python -m paceline.benchmarks.learning.record --draft random                    # drafted by an untrained head

The target is the demo's, trained over every text domain of this machine; both verdict rules that replay can judge are
there: greedy at temperature 0, target_only above. The draft decides which drafts were refused, not what was committed.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...buffer.trace import DraftTrace
from ...dashboards.tables import as_int
from ...rig.deployment import LocalDeployment, server_flags
from ...rig.machine import machine
from ...rig.models.corpus import load_corpus
from ...rig.models.target import load_tokenizer
from ...rig.progress import Report, progress_bar, quiet
from ...rig.prompts import Prompt, domain_prompts
from ...rig.services import Service, redis_service, sglang_service
from ...rig.traffic import Served, send
from ..gpu.server import Serving, server_service
from ..measure.command_line import benchmark_parser
from ..measure.measured_server import MeasuredServer, measured_server, wait_until
from .container import read_card, write_traces
from .lab import Lab, open_lab
from .setting import SETTINGS, Setting
from .warm import ensure_warm_head

CONCURRENCY = 8
MAX_TOKENS = 64
#: Teacher entries per node; fewer are cut from them.
TOP_K = 64
SEED = 0


def main() -> None:
    """Record what is asked for, whatever is there already."""
    options, console = parse(), Console()
    with progress_bar("training the target (once)", console) as report:
        lab = open_lab(options.data_dir, report)
    for setting in options.settings:
        record(lab, setting, options.per_domain, console, options.draft)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("learning.record", __doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument("--per-domain", type=int, default=168, help="requests of every domain (168)")
    parser.add_argument("--settings", type=settings, default=SETTINGS, help="by comma, as t0.7-k5; default: all six")
    parser.add_argument("--draft", choices=("warm", "random"), default="warm")
    return parser.parse_args()


def settings(text: str) -> tuple[Setting, ...]:
    """Settings by name, divided by commas."""
    try:
        return tuple(Setting.named(name) for name in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected temperature and draft length, as t0.7-k5") from None


def ensure_recorded(lab: Lab, setting: Setting, per_domain: int, console: Console) -> None:
    """Record the setting unless its file holds that many requests of every domain; drafted by the warm head."""
    path = lab.trace_file(setting)
    if not path.exists() or read_card(path)["per_domain"] < per_domain:
        record(lab, setting, per_domain, console)


def record(lab: Lab, setting: Setting, per_domain: int, console: Console, draft: str = "warm") -> None:
    """Serve `per_domain` held-out prompts of every domain and write their traces, replacing an earlier file."""
    with progress_bar("training the warm head (once)", console) as report:
        head = ensure_warm_head(lab, report) if draft == "warm" else lab.random_head(SEED)
    began_s = time.monotonic()
    with progress_bar(f"recording {setting.name}", console) as report:
        traces = served_traces(lab, setting, head, prompts(lab, per_domain), report)
    card = {
        "setting": setting.name, "per_domain": per_domain, "domains": lab.domains, "draft": draft, "head": str(head),
        "target": lab.target.key, "max_tokens": MAX_TOKENS, "top_k": TOP_K, "seed": SEED, "machine": machine(),
    }  # fmt: skip
    write_traces(lab.trace_file(setting), card, traces)
    seconds, size_mb = time.monotonic() - began_s, lab.trace_file(setting).stat().st_size / 1e6
    console.print(f"{setting.name}: {len(traces)} traces, {size_mb:.0f} MB, {seconds:.0f} s", highlight=False)


def prompts(lab: Lab, per_domain: int) -> list[Prompt]:
    """Prompts from text the target was not trained on, the domains in turn."""
    held_out = {name: domain.held_out for name, domain in load_corpus(lab.domains).domains.items()}
    found = domain_prompts(held_out, load_tokenizer(lab.target.folder), per_domain, SEED)
    return [found[per_domain * domain + number] for number in range(per_domain) for domain in range(len(held_out))]


def served_traces(lab: Lab, setting: Setting, head: Path, asked: Sequence[Prompt], report: Report) -> list[DraftTrace]:
    """Start Redis and SGLang, send everything, and return one trace of every request, in the order asked.

    Exits when a request failed or a trace is missing: a stream with holes is another stream.
    """
    with tempfile.TemporaryDirectory() as scratch:
        place = LocalDeployment.on_free_ports(Path(scratch))
        server = service(lab, setting, head, place)
        with redis_service(place.folder / "redis", place.redis_port), server:
            rig = measured_server(place, [head])
            wait_until(lambda: rig.reader.replica_status().get("capture") == "on", "the replica to capture")
            serve(rig, setting, asked, report)
            rig.drained()
            found = {entry.trace.request_id: entry.trace for entry in rig.buffer.replay(2 * len(asked))}
            captured = as_int(rig.reader.replica_status(), "captured")
    missing = [prompt.request_id for prompt in asked if prompt.request_id not in found]
    if missing or captured != len(asked):
        raise SystemExit(f"got {captured} traces, {len(missing)} requests without one; expected one of each request")
    return [found[prompt.request_id] for prompt in asked]


def service(lab: Lab, setting: Setting, head: Path, place: LocalDeployment) -> Service:
    """The server that is recorded: on the CPU host as the demo starts it, else as the checks on a GPU do."""
    env, log = {"PACELINE_TEACHER_TOP_K": str(TOP_K)}, place.folder / "sglang.log"
    more = chain_flags(setting.steps)
    if lab.device == "cpu":
        flags = [*server_flags(lab.target.folder, head), *more]
        return sglang_service(flags, place.server_port, log=log, env=place.shared_env(lab.target) | env)
    serving = Serving("cuda", "bfloat16", CONCURRENCY, "triton", "pytorch", tuple(more))
    return server_service(serving, place, lab.target, head, log, quiet, env)


def serve(rig: MeasuredServer, setting: Setting, asked: Sequence[Prompt], report: Report) -> None:
    """Send all prompts; exits when one fails."""
    done: list[Served] = []

    def note(served: Served) -> None:
        done.append(served)
        report(len(done) / len(asked), f"{len(done)} requests")

    temperature = setting.temperature
    sending = send(
        rig.url, asked, concurrency=CONCURRENCY, max_tokens=MAX_TOKENS, temperature=temperature, on_served=note
    )
    asyncio.run(sending)
    failures = [served.failure or served.finish for served in done if served.failure or served.finish != "length"]
    if failures:
        raise SystemExit(f"a request failed: {failures[0]}")


def chain_flags(steps: int) -> list[str]:
    """SGLang's flags for another draft length than the demo's; the last of a flag wins."""
    lengths = {"--speculative-num-steps": steps, "--speculative-num-draft-tokens": steps + 1}
    return [*(str(part) for flag in lengths.items() for part in flag), "--disable-radix-cache"]


if __name__ == "__main__":
    main()
