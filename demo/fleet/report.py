"""The results of a fleet in numbers: what one server's run tells, of all together, and what each replica served."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...rig.reader import TraceAccount
from ...rig.traffic import Served
from .. import report as one_server
from ..report import Run, accept_lengths
from ..timeline import timeline
from .watch import FailOver

_NAMED_REQUESTS = 3
#: Among what was set aside.
LOST = "lost_with_the_primary"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """Everything one run measured."""

    whole: Run
    replicas: Mapping[str, Run]  # what each served and did
    untraced: Sequence[str]  # ids of answered requests of which no trace has arrived
    store: str  # by which drafts came
    fail_over: FailOver
    releases: Mapping[str, str]  # of SGLang by replica; empty where it has not said


def fleet_run(
    replicas: Mapping[str, Run],
    results: Sequence[Served],
    *,
    untraced: Sequence[str],
    store: str,
    fail_over: FailOver,
    releases: Mapping[str, str],
) -> FleetRun:
    """Add up the runs of at least one replica; `results` holds all requests, those that nobody answered too."""
    runs = [*replicas.values()]
    whole = replace(
        runs[0],
        results=results,
        traces=with_lost(together([run.traces for run in runs])),
        swapped=sorted(chain.from_iterable(run.swapped for run in runs), key=lambda swap: swap.at),
        swaps=sum(run.swaps for run in runs),
        stalls_ms=[*chain.from_iterable(run.stalls_ms for run in runs)],
        quiet_ms=[*chain.from_iterable(run.quiet_ms for run in runs)],
    )
    return FleetRun(
        whole=whole, replicas=replicas, untraced=untraced, store=store, fail_over=fail_over, releases=releases
    )


def together(accounts: Sequence[TraceAccount]) -> TraceAccount:
    """The account of several servers of one buffer; what one of them has not said is unknown of all."""
    dropped: Counter[str] = Counter()
    for account in accounts:
        dropped.update(account.dropped or {})
    return replace(
        accounts[0],
        captured=_sum([account.captured for account in accounts]),
        delivered=_sum([account.delivered for account in accounts]),
        dropped=None if any(account.dropped is None for account in accounts) else dropped,
        silent_s=max(account.silent_s for account in accounts),
    )


def with_lost(account: TraceAccount) -> TraceAccount:
    """Count what servers delivered and Redis does not have as LOST: the primary died before its replica had it."""
    missing = (account.delivered or 0) - account.arrived
    return replace(account, set_aside={**account.set_aside, LOST: missing}) if missing > 0 else account


def as_json(run: FleetRun) -> dict[str, object]:
    """The contents of --json: that of `make demo`, and of every replica what it served, swapped and captured."""
    return {
        **one_server.as_json(run.whole),
        "requests": {
            "sent": len(run.whole.results),
            "failed": failed(run.whole.results),
            "untraced": len(run.untraced),
        },
        "replicas": {name: _replica(run, name) for name in run.replicas},
        "store": run.store,
        "fail_over": _fail_over(run),
    }


def faults(run: FleetRun) -> list[str]:
    """Return what went wrong, one line each, as for one server; also answers of which every trace is missing."""
    found = one_server.faults(run.whole)
    if _lost(run) > len(run.replicas):
        found.append(f"{_lost(run)} traces were lost with Redis' primary, expected one of each server at most")
    gone = sum((run.whole.traces.dropped or {}).values()) + _lost(run)
    if len(run.untraced) > gone:
        named = ", ".join(run.untraced[:_NAMED_REQUESTS])
        found.append(f"{len(run.untraced)} answers have no trace, expected at most the {gone} dropped or lost: {named}")
    return found


def failed(results: Sequence[Served]) -> int:
    """Requests that nobody answered."""
    return sum(bool(result.failure) for result in results)


def print_closing(console: Console, run: FleetRun) -> None:
    """Print what one server's run prints, of all together, and a row per replica."""
    one_server.print_closing(console, run.whole)
    console.print(replicas_table(run))
    dropped = sum((run.whole.traces.dropped or {}).values())
    answered = len(run.whole.results) - failed(run.whole.results)
    console.print(
        f"requests: {len(run.whole.results)} sent, {failed(run.whole.results)} failed, {answered} answered = "
        f"{answered - len(run.untraced)} with a trace + {len(run.untraced)} without ({dropped} traces were dropped)",
        highlight=False,
    )
    console.print(_fail_over_line(run), highlight=False)


def replicas_table(run: FleetRun) -> Table:
    """A row per replica."""
    table = Table(title="replicas", title_justify="left")
    for heading in ("replica", "SGLang", "requests", "accept length", "swaps", "captured", "dropped"):
        table.add_column(heading)
    for name, part in run.replicas.items():
        lengths = _lengths(part)
        path = " -> ".join(f"{value:.2f}" for value in lengths.values() if value is not None)
        dropped = part.traces.dropped
        cells = (
            name,
            run.releases[name] or "unknown",
            str(len(part.results)),
            path or "served nothing",
            str(len(part.swapped)),
            _known(part.traces.captured),
            _known(None if dropped is None else sum(dropped.values())),
        )
        table.add_row(*map(Text, cells))
    return table


def _replica(run: FleetRun, name: str) -> dict[str, object]:
    part = run.replicas[name]
    began_at = min(result.sent_at for result in run.whole.results)
    return {
        "sglang": run.releases[name] or None,
        "requests": len(part.results),
        "accept_length": _lengths(part),
        "swaps": len(part.swapped),
        "captured": part.traces.captured,
        "delivered": part.traces.delivered,
        "dropped": None if part.traces.dropped is None else dict(part.traces.dropped),
        "timeline": timeline(part.results, part.swapped, (), began_at=began_at),
    }


def _fail_over(run: FleetRun) -> dict[str, object]:
    seen = run.fail_over
    results = run.whole.results
    wait_ms = seen.longest_wait_ms(results)
    return {
        "after_requests": seen.after_requests,
        "away_s": round(seen.back_at - seen.killed_at, 1),
        "answered_meanwhile": seen.answered_meanwhile(results),
        "longest_wait_ms": None if wait_ms is None else round(wait_ms, 1),
        "traces_lost": _lost(run),
    }


def _fail_over_line(run: FleetRun) -> str:
    found = _fail_over(run)
    wait = "unknown" if found["longest_wait_ms"] is None else f"{found['longest_wait_ms']} ms"
    return (
        f"fail-over: Redis' primary was killed after {found['after_requests']} requests, and its replica answered "
        f"{found['away_s']} s later; meanwhile {found['answered_meanwhile']} requests were answered, the longest wait "
        f"for a token was {wait}; {found['traces_lost']} traces were lost with the primary"
    )


def _lost(run: FleetRun) -> int:
    return run.whole.traces.set_aside.get(LOST, 0)


def _lengths(part: Run) -> dict[str, float | None]:
    """Accept lengths at the four points of the run; none where it served nothing."""
    return accept_lengths(part.results) if part.results else {}


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _known(count: int | None) -> str:
    return "unknown" if count is None else str(count)
