"""The results of a run in numbers: the dictionary of --json and the closing table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..buffer.stream.trace import DraftTrace
from ..dashboards.tables import RUN_COLUMNS, VersionLine, VersionsTable
from ..policies.acceptance import Tally, served_tally
from ..policies.readings.ratio_sums import RatioSums
from ..rig.reader import Swap, TraceAccount
from ..rig.runs import machine
from ..rig.traffic import Served, pooled, tokens_per_second
from .lossless import Lossless
from .timeline import timeline

_WINDOW_SHARE = 8  # an accept length "at" a point is pooled over an eighth of the domain's requests
_MIN_WINDOW = 8
_SHOWN_VERSIONS = 10
_NAMED_REQUESTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything one run of the demo measured."""

    results: Sequence[Served]
    max_tokens: int  # of every request
    versions: Sequence[VersionLine]
    traces: TraceAccount
    replay: tuple[int, int]  # verify rounds that replayed to their served length, and rounds compared
    lossless: Lossless
    swapped: Sequence[Swap]  # all that the replica made, oldest first
    swaps: int  # those that met requests in flight
    stalls_ms: Sequence[float]  # longest wait for a token around each swap that met requests in flight, where known
    quiet_ms: Sequence[float]  # the same half-way to the next of these swaps: what waits are without one
    seconds: Mapping[str, float]  # stage -> duration
    mlflow_uri: str


def as_json(run: Run) -> dict[str, object]:
    """The contents of --json. Accept lengths are pooled and include the bonus token."""
    equal, compared = run.replay
    return {
        "accept_length": accept_lengths(run.results),
        "by_version": [_version(line) for line in run.versions],
        "traces": _traces(run.traces),
        "replay": {"rounds": compared, "equal": equal},
        "lossless": {"checked": run.lossless.checked, "identical": run.lossless.identical},
        "swaps": _swaps(run),
        "timeline": timeline(run.results, run.swapped, run.versions),
        "throughput_tok_s": round(tokens_per_second(run.results), 1),
        "seconds": {stage: round(seconds, 1) for stage, seconds in run.seconds.items()},
        "mlflow_uri": run.mlflow_uri,
        "machine": machine(),
    }


def accept_lengths(results: Sequence[Served]) -> dict[str, float | None]:
    """Accept length at the start, on both sides of the shift to the last domain, and at the end.

    Each is pooled over an eighth of its domain's requests, in the order they were sent, at least eight. With one
    domain there is no shift, and the two values beside it are None.
    """
    ordered = sorted(results, key=lambda result: result.sent_at)
    shift = _shift(ordered)
    before, after = (ordered[:shift], ordered[shift:]) if shift else (ordered, [])
    last = after or before
    return {
        "first": _length(before[: _window(before)]),
        "before_shift": _length(before[-_window(before) :]) if after else None,
        "after_shift": _length(after[: _window(after)]) if after else None,
        "final": _length(last[-_window(last) :]),
    }


def served_by_version(traces: Iterable[DraftTrace]) -> dict[int, RatioSums]:
    """Return the accepted drafts of each version by its number on the traces; a request is drawn as a whole."""
    tallies: dict[tuple[int, str], Tally] = {}
    for trace in traces:
        key = trace.draft_version, trace.request_id
        tallies[key] = tallies.get(key, Tally()) + served_tally(trace)
    found: dict[int, RatioSums] = {}
    for (version, _), tally in tallies.items():
        found[version] = found.get(version, RatioSums()) + RatioSums.of(int(tally.rounds), int(tally.accepted))
    return found


def closing_table(run: Run) -> Table:
    """The results as a table."""
    table = Table(title="results", title_justify="left", show_header=False)
    for finding, value in _findings(run):
        table.add_row(Text(finding), Text(value))
    return table


def print_closing(console: Console, run: Run) -> None:
    """Print the versions, the closing table and the command that opens MLflow."""
    console.print(VersionsTable(run.versions[-_SHOWN_VERSIONS:], RUN_COLUMNS))
    console.print(closing_table(run))
    console.print(
        f"MLflow: mlflow ui --backend-store-uri {run.mlflow_uri}", highlight=False, soft_wrap=True, markup=False
    )


def faults(run: Run) -> list[str]:
    """Return what went wrong, one line each: missing or short answers, answers that differ, traces unaccounted for."""
    found = []
    incomplete = [result for result in run.results if result.failure or not _is_whole(result, run.max_tokens)]
    if incomplete:
        first = incomplete[0]
        why = first.failure or f"got {len(first.output_ids)} tokens, expected {run.max_tokens}"
        requests = f"{len(incomplete)} of {len(run.results)} requests failed"
        found.append(f"{requests}; the first, {first.prompt.request_id}: {why}")
    if run.lossless.different:
        named = ", ".join(run.lossless.different[:_NAMED_REQUESTS])
        found.append(
            f"{len(run.lossless.different)} of {run.lossless.checked} requests differ from plain decoding: {named}"
        )
    if not run.traces.is_balanced:
        found.append(f"traces are unaccounted for: {run.traces}")
    return found


def _compared(lossless: Lossless) -> str:
    if not lossless.checked:
        return "not compared: on a GPU verification and decoding round differently (docs/gpu.md)"
    return f"{lossless.identical} of {lossless.checked} requests identical to plain decoding"


def _is_whole(result: Served, max_tokens: int) -> bool:
    """Whether all tokens are there: as many as were asked for, or as the model had to say."""
    return len(result.output_ids) == max_tokens or result.finish == "stop"


def _findings(run: Run) -> list[tuple[str, str]]:
    lengths = accept_lengths(run.results)
    equal, compared = run.replay
    traces = run.traces
    path = " -> ".join(
        f"{value:.2f} ({name.replace('_', ' ')})" for name, value in lengths.items() if value is not None
    )
    set_aside = sum(traces.set_aside.values())
    whole = "all accounted for" if traces.is_balanced else "NOT ALL ACCOUNTED FOR"
    stalls = _waits("around swaps", run.stalls_ms)
    quiet = _waits("half-way between them", run.quiet_ms)
    aborted, retracted = _disturbed(run.results)
    return [
        ("accept length", path),
        ("traces", f"{_by_the_server(traces)}: {whole}"),
        ("", f"{traces.learned} learned, {traces.held_out} held out, {traces.rested} rested"),
        ("", f"{traces.pending} pending, {set_aside} set aside"),
        ("replay", f"{equal} of {compared} verify rounds as served"),
        ("lossless", _compared(run.lossless)),
        ("swaps", f"{run.swaps} of {len(run.swapped)} with requests in flight"),
        ("", f"{aborted} requests aborted, {retracted} retracted"),
        ("longest wait for a token", stalls),
        ("", quiet),
        ("throughput", f"{tokens_per_second(run.results):.0f} tok/s over {len(run.results)} requests"),
        ("seconds", ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in run.seconds.items())),
    ]


def _shift(ordered: Sequence[Served]) -> int:
    """Index of the first request of the last domain; 0 when there is one domain only."""
    last = ordered[-1].prompt.domain if ordered else ""
    return next((index for index, result in enumerate(ordered) if result.prompt.domain == last), 0)


def _window(results: Sequence[Served]) -> int:
    return max(_MIN_WINDOW, len(results) // _WINDOW_SHARE)


def _length(results: Sequence[Served]) -> float:
    return round(pooled(results).accept_length, 4)


def _version(line: VersionLine) -> dict[str, object]:
    return {
        "number": line.number,
        "state": line.state.value,
        "reason": line.reason,
        "judged_accept_length": line.judged_accept_length,
        "predicted_accept_length": line.predicted_accept_length,
        "served_accept_length": line.served_accept_length,
        "served_interval": line.served_interval,
        "prediction_error": line.prediction_error,
        "error_half_width": line.error_half_width,
        "requests": line.requests,
        "rounds": line.rounds,
    }


def _by_the_server(traces: TraceAccount) -> str:
    if traces.captured is None or traces.dropped is None:
        return "captured, delivered and dropped unknown, the server has not said"
    return f"{traces.captured} captured, {traces.delivered} delivered, {sum(traces.dropped.values())} dropped"


def _traces(line: TraceAccount) -> dict[str, object]:
    return {
        "captured": line.captured,
        "delivered": line.delivered,
        "dropped": None if line.dropped is None else dict(line.dropped),
        "learned": line.learned,
        "held_out": line.held_out,
        "rested": line.rested,
        "pending": line.pending,
    }


def _swaps(run: Run) -> dict[str, object]:
    aborted, retracted = _disturbed(run.results)
    unknown: Mapping[str, float | None] = {"p50": None, "max": None}
    return {
        "count": run.swaps,
        "stall_ms": _spread(run.stalls_ms) or dict(unknown),
        "quiet_ms": _spread(run.quiet_ms) or dict(unknown),
        "aborted": aborted,
        "retracted": retracted,
    }


def _waits(when: str, waits_ms: Sequence[float]) -> str:
    found = ", ".join(f"{when}, {name} {value:.0f} ms" for name, value in _spread(waits_ms).items())
    return found or f"{when}, unknown: no request streamed then"


def _spread(waits_ms: Sequence[float]) -> dict[str, float]:
    if not waits_ms:
        return {}
    return {"p50": round(float(np.median(waits_ms)), 1), "max": round(max(waits_ms), 1)}


def _disturbed(results: Iterable[Served]) -> tuple[int, int]:
    """Requests that ended in an abort or without an answer, and retractions."""
    aborted = retracted = 0
    for result in results:
        aborted += bool(result.failure) or result.finish == "abort"
        retracted += result.retractions
    return aborted, retracted
