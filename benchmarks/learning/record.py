"""Records traces from the real server, through the product's own capture, one file per setting.

    python -m paceline.benchmarks.learning.record              # every setting of the bench
    python -m paceline.benchmarks.learning.record --per-domain 80 --settings t0-k5  # fewer
    python -m paceline.benchmarks.learning.record --draft random                    # drafted by an untrained head
    python -m paceline.benchmarks.learning.record --settings t0.7-rejection-k5      # verified by rejection sampling

The target is the demo's, trained over every text domain of this machine. Settings have every verdict rule that replay
can judge: greedy at temperature 0, target_only above it, and rejection where the name says so, for which draft and
target need one vocabulary, as here. The draft decides which drafts were refused, not what was committed.
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...buffer.stream.trace import DraftTrace, VerdictRule
from ...learner.judging.paired_replay import why_unscored
from ...rig.deployment import LocalDeployment
from ...rig.processes import ending_signals
from ...rig.progress import Report, progress_bar, quiet
from ...rig.prompts import Prompt
from ...rig.runs import machine
from ...rig.services import Service
from ...rig.trace_file import read_card, write_traces
from ...rig.traffic import Served, send
from ..gpu.server import Serving, server_service
from ..measure.command_line import benchmark_parser
from ..measure.measured_server import MeasuredServer, held_out_prompts
from ..measure.services import cpu_server, running
from .lab import Lab, open_lab
from .programme import FULL, Setting
from .warm import ensure_warm_head

CONCURRENCY = 8
MAX_TOKENS = 64
#: Teacher entries per node of a sampled request: Aurora learns from the target's whole distribution. The product keeps
#: one of a greedy request.
TOP_K = 64
REJECTION_FLAG = "--speculative-use-rejection-sampling"
SEED = 0


def main() -> None:
    """Record what is asked for, whatever is there already."""
    options = parse()
    console = Console()
    with progress_bar("training the target (once)", console) as report:
        lab = open_lab(options.data_dir, report)
    for setting in options.settings:
        record(lab, setting, options.per_domain, console=console, draft=options.draft)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("learning.record", __doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument("--per-domain", type=int, default=168, help="requests of every domain (168)")
    parser.add_argument("--settings", type=settings, default=FULL.settings, help="by comma, as t0.7-k5; default: all")
    parser.add_argument("--draft", choices=("warm", "random"), default="warm")
    return parser.parse_args()


def settings(text: str) -> tuple[Setting, ...]:
    """Settings by name, divided by commas."""
    try:
        return tuple(Setting.named(name) for name in text.split(","))
    except ValueError:
        expected = "temperature and draft length, as t0.7-k5, or with the rule, as t0.7-rejection-k5"
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}") from None


def ensure_recorded(lab: Lab, setting: Setting, per_domain: int, console: Console) -> None:
    """Record the setting, drafted by the warm head, unless its file holds `per_domain` requests of every domain."""
    path = lab.trace_file(setting)
    card = read_card(path) if path.exists() else {}
    if card.get("per_domain", 0) < per_domain:
        record(lab, setting, per_domain, console=console)


def record(lab: Lab, setting: Setting, per_domain: int, *, console: Console, draft: str = "warm") -> None:
    """Serve `per_domain` held-out prompts of every domain and write their traces, replacing an earlier file.

    Exits as `served_traces` does; an earlier file is left as it was then.
    """
    with progress_bar("training the warm head (once)", console) as report:
        head = ensure_warm_head(lab, report) if draft == "warm" else lab.random_head(SEED)
    began_s = time.monotonic()
    with progress_bar(f"recording {setting.name}", console) as report:
        prompts = held_out_prompts(lab.target, per_domain * len(lab.domains), SEED, lab.domains)
        traces = served_traces(lab, setting, head, prompts=prompts, report=report)
    card = {
        "setting": setting.name, "per_domain": per_domain, "domains": lab.domains, "draft": draft, "head": str(head),
        "target": lab.target.key, "max_tokens": MAX_TOKENS,
        "seed": SEED, "machine": machine(),
    }  # fmt: skip
    write_traces(lab.trace_file(setting), card, traces)
    seconds = time.monotonic() - began_s
    size_mb = lab.trace_file(setting).stat().st_size / 1e6
    console.print(f"{setting.name}: {len(traces)} traces, {size_mb:.0f} MB, {seconds:.0f} s", highlight=False)


def served_traces(
    lab: Lab, setting: Setting, head: Path, *, prompts: Sequence[Prompt], report: Report
) -> list[DraftTrace]:
    """Start Redis and SGLang, send every prompt, and return one trace of each request, in the order of `prompts`.

    Exits when a request failed or a trace is missing: a stream with holes is another stream.
    """
    with tempfile.TemporaryDirectory() as scratch:
        local = LocalDeployment.on_free_ports(Path(scratch))
        with running(local, recorded_server(lab, setting, head, local), [head]) as services:
            server = services.server
            server.wait_for_capture()
            serve(server, setting, prompts, report)
            captured = server.drained().account.captured
            traces = {entry.trace.request_id: entry.trace for entry in server.buffer.replay(2 * len(prompts))}
    missing = [prompt.request_id for prompt in prompts if prompt.request_id not in traces]
    if missing or captured != len(prompts):
        raise SystemExit(f"got {captured} traces, {len(missing)} requests without one; expected one of each request")
    found = [traces[prompt.request_id] for prompt in prompts]
    refuse_unscored(setting, found)
    return found


def refuse_unscored(setting: Setting, traces: Sequence[DraftTrace]) -> None:
    """Exit unless replay can score every trace and rejection sampling verified them where the setting says so."""
    reasons = Counter(filter(None, map(why_unscored, traces)))
    rules = {trace.verdict_rule for trace in traces}
    if reasons or (rules == {VerdictRule.REJECTION}) is not setting.rejection:
        got = ", ".join(sorted(rule.value for rule in rules))
        raise SystemExit(
            f"{setting.name}: got traces of the rules {got}, not scored: {dict(reasons)}; expected all scored, by "
            f"{'rejection' if setting.rejection else 'equality with the committed token'}"
        )


def recorded_server(lab: Lab, setting: Setting, head: Path, local: LocalDeployment) -> Service:
    """The server that is recorded: on the CPU host as the demo starts it, else as the checks on a GPU do."""
    env = {"PACELINE_TEACHER_TOP_K": str(TOP_K)}
    flags = [*chain_flags(setting.steps), *([REJECTION_FLAG] if setting.rejection else [])]
    if lab.device == "cpu":
        return cpu_server(local, lab.target, head, flags=flags, env=env)
    serving = Serving(
        device="cuda",
        dtype="bfloat16",
        max_running=CONCURRENCY,
        attention_backend="triton",
        sampling_backend="pytorch",
        extra=tuple(flags),
    )
    return server_service(
        serving, local, target=lab.target, draft=head, log=local.folder / "sglang.log", report=quiet, env=env
    )


def serve(server: MeasuredServer, setting: Setting, prompts: Sequence[Prompt], report: Report) -> None:
    """Send all prompts; exits when one fails."""
    requests: list[Served] = []

    def note(request: Served) -> None:
        requests.append(request)
        report(len(requests) / len(prompts), f"{len(requests)} requests")

    temperature = setting.temperature
    sending = send(
        server.url, prompts, concurrency=CONCURRENCY, max_tokens=MAX_TOKENS, temperature=temperature, on_served=note
    )
    asyncio.run(sending)
    for request in requests:
        if request.failure or request.finish != "length":
            raise SystemExit(f"a request failed: {request.failure or request.finish}")


def chain_flags(steps: int) -> list[str]:
    """SGLang's flags for another draft length than the demo's; the last of a flag wins."""
    lengths = {"--speculative-num-steps": steps, "--speculative-num-draft-tokens": steps + 1}
    return [*(str(part) for flag in lengths.items() for part in flag), "--disable-radix-cache"]


if __name__ == "__main__":
    with ending_signals():
        main()
