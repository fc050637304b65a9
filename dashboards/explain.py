"""`paceline explain`: why serving is faster or slower than before, as text and as JSON.

Labels and reasons come from clients and from whoever may write to Redis, so nothing is read as markup.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..buffer.base import VersionBoard
from ..buffer.counters import Counters
from ..buffer.errors import ConfigError
from ..buffer.plain_text import printable
from ..buffer.version import BoardRow
from ..policies.readings.causes.answer import answer
from ..policies.readings.causes.explanation import Effect, Explanation, Finding, Period, explain
from ..policies.readings.causes.parts import factor_of
from ..policies.readings.causes.periods import draft_periods, since_periods

#: What `--since` compares with when it is not given.
DEFAULT_SINCE = "10m"
#: Entries of the history before the compared time that differences begin at: those of an hour ago come once a minute.
_BASE_S = 120.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def show_explanation(
    board: VersionBoard, console: Console, *, since: str | None, draft: int | None, as_json: bool
) -> int:
    """Print it; return the exit code: 0, or 2 where it cannot be told. Reads the histories of all members once.

    ConfigError for a bad `since`, for `since` and `draft` together, and for a draft that the histories do not hold.
    """
    if since is not None and draft is not None:
        raise ConfigError(f"got --since {since} and --draft {draft}, expected one of them")
    rows = board.read().rows
    found = explain(*periods(board, since or DEFAULT_SINCE, draft))
    if as_json:
        console.print_json(json.dumps(as_fields(found, rows)))
    else:
        print_explanation(console, found, rows)
    return 0 if found.request_speed is not None else 2


def periods(board: VersionBoard, since: str, draft: int | None) -> tuple[Period, Period]:
    """What to compare, out of the histories that the board keeps."""
    now_s, since_s = board.now(), seconds(since)
    if draft is not None:
        return draft_periods(_histories(board, 0.0), draft)
    return since_periods(_histories(board, now_s - 2 * since_s - _BASE_S), since_s, now_s)


def seconds(text: str) -> float:
    """Of a duration such as 90s, 10m or 1h; ConfigError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) <= 0.0:
        raise ConfigError(f"--since: got {text!r}, expected a duration such as 90s, 10m or 1h")
    return float(match[1]) * _UNITS_S[match[2]]


def print_explanation(console: Console, found: Explanation, rows: Mapping[int, BoardRow]) -> None:
    """Sentences, then a row per cause."""
    for sentence in answer(found, rows):
        console.print(_plain(sentence), highlight=False)
    if found.findings:
        console.print(findings_table(found.findings))
    if found.request_speed is not None:
        for line in found.unknown:
            console.print(_plain(line), style="yellow", highlight=False)


def findings_table(findings: Sequence[Finding]) -> Table:
    """One row per cause, those that stand out first; what cannot be told from noise is dim and says so."""
    table = Table(title="causes: their factors multiply to the whole change", title_justify="left", expand=False)
    for heading in ("cause", "speed", "95 %", "share", "evidence, and what would change it"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        is_noise = finding.effect.is_noise
        share = "" if finding.share is None or is_noise else f"{finding.share:.0%}"
        end = "below the noise" if is_noise else f"{finding.evidence}. {finding.remedy}"
        cells = (finding.cause, f"x{math.exp(finding.effect.log):.2f}", _interval(finding.effect), share, end)
        table.add_row(*map(_plain, cells), style="dim" if is_noise else None)
    return table


def as_fields(found: Explanation, rows: Mapping[int, BoardRow]) -> dict[str, Any]:
    """As JSON values; `log` are differences of natural logarithms, which add up."""
    return {
        "answer": answer(found, rows),
        "before": _period_fields(found.before),
        "now": _period_fields(found.now),
        "tokens_per_second": _effect_fields(found.total),
        "request_speed": _effect_fields(found.request_speed),
        "causes": [_finding_fields(finding) for finding in found.findings],
        "parts": [{"part": part, "factor": factor_of(part), "log": log} for part, log in found.change.parts.items()],
        "unknown": list(found.unknown),
    }


def _histories(board: VersionBoard, since_s: float) -> dict[str, Sequence[Counters]]:
    return {member: board.history(member, since_s) for member in board.members()}


def _period_fields(period: Period) -> dict[str, Any]:
    amounts = period.amounts
    return {
        "name": period.name,
        "began_at": period.began_s,
        "ended_at": period.ended_s,
        "entries": len(period.stretches),
        "tokens_per_second": amounts.tokens_per_second,
        "request_tokens_per_second": amounts.request_tokens_per_second,
        "accept_length": amounts.all_rounds.accept_length or None,
        "rounds": amounts.all_rounds.rounds,
        "steps": amounts.all_steps.steps,
    }


def _finding_fields(finding: Finding) -> dict[str, Any]:
    more = {"share": finding.share, "evidence": finding.evidence, "what_would_change_it": finding.remedy}
    return {"cause": finding.cause, **(_effect_fields(finding.effect) or {}), **more}


def _effect_fields(effect: Effect | None) -> dict[str, Any] | None:
    if effect is None:
        return None
    bounds = {"log_low": effect.low, "log_high": effect.high}
    return {"factor": math.exp(effect.log), "log": effect.log, **bounds, "is_noise": effect.is_noise}


def _interval(effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return "unknown"
    return f"{math.exp(effect.low):.2f} .. {math.exp(effect.high):.2f}"


def _plain(text: str) -> Text:
    return Text(printable(text))
