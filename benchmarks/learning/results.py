"""results.json: what one invocation of the bench found, and how several are merged into one."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ...buffer.trace import DraftTrace
from .programme import Rates
from .runs import Run
from .wire import WireSize


@dataclass(frozen=True, slots=True)
class TunedRate:
    """The best learning rate of a grid."""

    tuned_as: str  # an objective, or a row that is tuned by itself
    traffic: str  # Setting.traffic
    start: str
    rate: float


@dataclass(frozen=True, slots=True)
class Part:
    """One invocation."""

    command: str
    machine: Mapping[str, str | int]
    stages: tuple[str, ...]
    preparing_s: float
    whole_s: float


@dataclass(frozen=True, slots=True)
class Results:
    """Everything found on one target and one set of traces."""

    target: str
    domains: tuple[str, ...]
    recorded: Mapping[str, str]  # setting -> fingerprint of its traces
    parts: tuple[Part, ...]
    rates: tuple[TunedRate, ...]
    runs: tuple[Run, ...]
    wire: tuple[WireSize, ...] = ()
    plans: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of every row, but for steps and seed

    @property
    def tuned(self) -> Rates:
        """As Programme.jobs takes them."""
        return {(rate.tuned_as, rate.traffic, rate.start): rate.rate for rate in self.rates}


def fingerprint(traces: Sequence[DraftTrace]) -> str:
    """Equal for traces of the same requests with the same committed tokens: streams drawn from them are the same."""
    digest = hashlib.sha256()
    for trace in traces:
        digest.update(trace.request_id.encode() + trace.tokens.tobytes())
    return digest.hexdigest()[:16]


def write_results(path: Path, results: Results, rows: Sequence[Mapping[str, object]]) -> None:
    """Replace `path`; `rows` are figures for other readers, read_results leaves them out."""
    written = {**msgspec.to_builtins(results), "rows": list(rows)}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1) + b"\n")


def read_results(path: Path) -> Results:
    """What write_results wrote. SystemExit, naming the file, when it is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except (OSError, msgspec.MsgspecError) as error:
        raise SystemExit(f"{path}: got {error}, expected a results.json of this bench") from error


def merged(results: Sequence[Results]) -> Results:
    """Several invocations as one; a run that two of them made is kept once, from the first.

    SystemExit when they do not fit one table: another target, other domains, other traces of a setting, a row
    whose plan has changed, or a row that went by two learning rates.
    """
    first = results[0]
    for other in results[1:]:
        _agree("target and domains", (first.target, first.domains), (other.target, other.domains))
    runs: dict[tuple[object, ...], Run] = {}
    for run in (run for part in results for run in part.runs):
        runs.setdefault(run.job.key, run)
    rates = _united("learning rate of", (part.tuned for part in results))
    return Results(
        first.target,
        first.domains,
        recorded=_united("traces of", (part.recorded for part in results)),
        parts=tuple(part for result in results for part in result.parts),
        rates=tuple(TunedRate(key[0], key[1], key[2], rate) for key, rate in rates.items()),
        runs=tuple(runs.values()),
        wire=tuple({(size.setting, size.top_k): size for part in results for size in part.wire}.values()),
        plans=_united("plan of row", (part.plans for part in results)),
    )


def _united(what: str, tables: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for table in tables:
        for name, value in table.items():
            _agree(f"{what} {name}", found.setdefault(name, value), value)
    return found


def _agree(what: str, one: object, other: object) -> None:
    if one != other:
        raise SystemExit(
            f"--merge, {what}: got {one} and {other}, expected the same; run the parts on one --data-dir, "
            "with one version of the rows, the later ones with --rates FIRST/results.json"
        )
