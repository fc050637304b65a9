"""Records traces from the real server, through the product's own capture, one file per setting and domain.

    python -m paceline.benchmarks.learning.record              # every setting of the bench
    python -m paceline.benchmarks.learning.record --per-domain 80 --settings t0-k5  # fewer
    python -m paceline.benchmarks.learning.record --settings t0.7-rejection-k5      # verified by rejection sampling
    python -m paceline.benchmarks.learning.record --target smollm2                  # eight streams of a chat model

Domains that are there are not recorded again, so an interrupted run goes on. Settings have every verdict rule that
replay can judge: greedy at temperature 0, target_only above it, and rejection where the name says so, for which draft
and target need one vocabulary. An untrained head drafts, which decides what was refused and not what was
committed.
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
from ..measure.measured_server import MeasuredServer
from ..measure.services import cpu_server, running
from .lab import SEED, Lab, open_lab
from .programme import PROGRAMMES, Setting

CONCURRENCY = 8
MAX_TOKENS = 64
#: Teacher entries per node of a sampled request: Aurora learns from the target's whole distribution. The product keeps
#: one of a greedy request.
TOP_K = 64
REJECTION_FLAG = "--speculative-use-rejection-sampling"


def main() -> None:
    """Record what is asked for and is not there."""
    options = parse()
    console = Console()
    programme = PROGRAMMES[options.target]
    with progress_bar("the target (once)", console) as report:
        lab = open_lab(options.data_dir, report, is_chat=options.target != "tiny", device=options.device)
    for setting in options.settings or programme.settings:
        ensure_recorded(lab, setting, options.per_domain or programme.per_domain(len(lab.domains)), console)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("learning.record", __doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument("--target", choices=sorted(PROGRAMMES), default="tiny", help="a small one, or a chat model")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="that serves")
    parser.add_argument("--per-domain", type=int, help="requests of every domain; default: as the bench needs")
    parser.add_argument("--settings", type=settings, help="by comma, as t0.7-k5; default: all of the bench")
    return parser.parse_args()


def settings(text: str) -> tuple[Setting, ...]:
    """Settings by name, divided by commas."""
    try:
        return tuple(Setting.named(name) for name in text.split(","))
    except ValueError:
        expected = "temperature and draft length, as t0.7-k5, or with the rule, as t0.7-rejection-k5"
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}") from None


def ensure_recorded(lab: Lab, setting: Setting, per_domain: int, console: Console) -> None:
    """Serve the first `per_domain` prompts of every domain whose file holds fewer, and write their traces.

    Files are written domain by domain. Exits as `served_traces` does; an earlier file is left as it was then.
    """
    missing = [domain for domain in lab.domains if _recorded(lab.trace_file(setting, domain)) < per_domain]
    if not missing:
        return
    with progress_bar("the first draft (once)", console):
        head = lab.random_head(SEED)
    with tempfile.TemporaryDirectory() as scratch:
        local = LocalDeployment.on_free_ports(Path(scratch))
        with running(local, recorded_server(lab, setting, head, local), [head]) as services:
            services.server.wait_for_capture()
            for domain in missing:
                began_s = time.monotonic()
                with progress_bar(f"recording {setting.name}, {domain}", console) as report:
                    prompts = lab.prompts(domain, per_domain)
                    traces = served_traces(lab, services.server, setting, prompts=prompts, report=report)
                card = {
                    "setting": setting.name, "domain": domain, "per_domain": per_domain, "head": str(head),
                    "target": lab.target.key, "max_tokens": MAX_TOKENS, "seed": SEED, "machine": machine(),
                }  # fmt: skip
                file = lab.trace_file(setting, domain)
                write_traces(file, card, traces)
                taken = f"{file.stat().st_size / 1e6:.0f} MB, {time.monotonic() - began_s:.0f} s"
                console.print(f"{setting.name}, {domain}: {len(traces)} traces, {taken}", highlight=False)


def _recorded(file: Path) -> int:
    """Requests that a file holds; 0 where there is none."""
    return int(read_card(file).get("per_domain", 0)) if file.exists() else 0


def served_traces(
    lab: Lab, server: MeasuredServer, setting: Setting, *, prompts: Sequence[Prompt], report: Report
) -> list[DraftTrace]:
    """Send every prompt, and return one trace of each request, in the order of `prompts`.

    Exits when a request failed or a trace is missing: a stream with holes is another stream.
    """
    serve(lab, server, setting, prompts=prompts, report=report)
    server.drained()
    traces = {entry.trace.request_id: entry.trace for entry in server.buffer.replay(2 * len(prompts))}
    missing = [prompt.request_id for prompt in prompts if prompt.request_id not in traces]
    if missing:
        raise SystemExit(f"got {len(missing)} requests without a trace, {missing[0]} the first; expected one of each")
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
    # Every drafted token is verified, and an untrained draft of a chat model gets none accepted: one is enough there.
    flags = [*chain_flags(1 if lab.is_chat else setting.steps), *([REJECTION_FLAG] if setting.rejection else [])]
    if lab.device == "cpu":
        return cpu_server(local, lab.target, head, flags=[*flags, "--dtype", "float32"], env=env)
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


def serve(lab: Lab, server: MeasuredServer, setting: Setting, *, prompts: Sequence[Prompt], report: Report) -> None:
    """Send all prompts, a chat model's until it ends its answer; exits when one fails."""
    requests: list[Served] = []

    def note(request: Served) -> None:
        requests.append(request)
        report(len(requests) / len(prompts), f"{len(requests)} requests")

    sending = send(
        server.url,
        prompts,
        concurrency=CONCURRENCY,
        max_tokens=MAX_TOKENS,
        temperature=setting.temperature,
        ends_at_eos=lab.is_chat,
        on_served=note,
    )
    asyncio.run(sending)
    for request in requests:
        if request.failure or request.finish not in {"length", "stop"}:
            raise SystemExit(f"{request.prompt.request_id} failed: {request.failure or request.finish}")


def chain_flags(steps: int) -> list[str]:
    """SGLang's flags for another draft length than the demo's; the last of a flag wins."""
    lengths = {"--speculative-num-steps": steps, "--speculative-num-draft-tokens": steps + 1}
    return [*(str(part) for flag in lengths.items() for part in flag), "--disable-radix-cache"]


if __name__ == "__main__":
    with ending_signals():
        main()
