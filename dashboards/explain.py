"""`paceline explain`: why serving is faster or slower than before, as text and as JSON.

Labels and reasons come from clients and from whoever may write to Redis, so nothing is read as markup.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..buffer.board.version import BoardState
from ..buffer.errors import ConfigError
from ..buffer.plain_text import printable
from ..policies.readings.causes.answer import answer
from ..policies.readings.causes.explanation import Effect, Explanation, Finding, Period, explain
from ..policies.readings.causes.parts import factor_of
from ..policies.readings.causes.periods import draft_periods, since_periods
from ..policies.readings.definitions import Reading
from ..policies.readings.speed import speed_over_plain
from ..policies.readings.windows import windowed
from .model_free import Beside, beside
from .snapshot import Snapshot

#: What `--since` compares with when it is not given.
DEFAULT_SINCE = "10m"
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Explained:
    """An explanation with what else its answer speaks of."""

    found: Explanation
    state: BoardState
    over_plain: tuple[Reading, Reading]  # speed over plain decoding before, and now
    beside: Beside  # drafters without a model

    @property
    def answer(self) -> list[str]:
        """Sentences, the most important first."""
        return [*answer(self.found, self.state.rows, *self.over_plain), *self.beside.sentences]

    @property
    def unknown(self) -> list[str]:
        """What cannot be told, a line for each reason."""
        why = self.over_plain[1].why_unknown
        over_plain = f"speed over plain decoding: unknown, {why}" if why else ""
        return [*self.found.unknown, *filter(None, (over_plain, self.beside.why_unknown))]


def explained(seen: Snapshot, since: str | None, draft: int | None) -> Explained:
    """Compare the last minute with `since` before it, or a draft's service with that of the draft before.

    ConfigError for a bad `since`, for `since` and `draft` together, and for a draft that the histories do not hold.
    """
    if since is not None and draft is not None:
        raise ConfigError(f"got --since {since} and --draft {draft}, expected one of them")
    since_s = seconds(since or DEFAULT_SINCE)
    before, now = (
        since_periods(seen.histories, since_s, seen.at) if draft is None else draft_periods(seen.histories, draft)
    )
    windows = [windowed(seen.histories, period.began_s, period.ended_s) for period in (before, now)]
    over_plain = (speed_over_plain(windows[0]), speed_over_plain(windows[1]))
    return Explained(explain(before, now), seen.state, over_plain, beside(seen))


def seconds(text: str) -> float:
    """Of a duration such as 90s, 10m or 1h; ConfigError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) <= 0.0:
        raise ConfigError(f"--since: got {text!r}, expected a duration such as 90s, 10m or 1h")
    return float(match[1]) * _UNITS_S[match[2]]


def print_explanation(console: Console, of: Explained) -> None:
    """Sentences, then a row per cause, then what is unknown."""
    for sentence in of.answer:
        console.print(_plain(sentence), highlight=False)
    if of.found.findings:
        console.print(findings_table(of.found.findings))
        for line in of.unknown:
            console.print(_plain(line), style="yellow", highlight=False)
    if of.beside.rows:
        console.print(of.beside.table())


def findings_table(findings: Sequence[Finding]) -> Table:
    """One row per cause, those that stand out first, then likely ones; what cannot be told from noise says so, dim."""
    table = Table(title="causes: their factors multiply to the whole change", title_justify="left", expand=False)
    for heading in ("cause", "speed", "95 %", "share", "evidence, and what would change it"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        is_noise = finding.effect.is_noise
        share = "" if finding.share is None or is_noise else f"{finding.share:.0%}"
        remedy = f" {finding.remedy}" if finding.effect.log < 0.0 else ""  # what made it faster needs none
        likely = f"perhaps: {finding.evidence}.{remedy}" if finding.effect.is_likely else "below the noise"
        end = likely if is_noise else f"{finding.evidence}.{remedy}"
        cells = (finding.cause, f"x{math.exp(finding.effect.log):.2f}", _interval(finding.effect), share, end)
        table.add_row(*map(_plain, cells), style="dim" if is_noise and not finding.effect.is_likely else None)
    return table


def as_fields(of: Explained) -> dict[str, Any]:
    """As JSON values; `log` are differences of natural logarithms, which add up."""
    found = of.found
    return {
        "answer": of.answer,
        "before": _period_fields(found.before, of.over_plain[0]),
        "now": _period_fields(found.now, of.over_plain[1]),
        "replica_tokens_per_second": _effect_fields(found.total),
        "request_tokens_per_second": _effect_fields(found.request_speed),
        "causes": [_finding_fields(finding) for finding in found.findings],
        "parts": [{"part": part, "factor": factor_of(part), "log": log} for part, log in found.change.parts.items()],
        "unknown": of.unknown,
        "model_free": of.beside.as_fields(),
    }


def _period_fields(period: Period, over_plain: Reading) -> dict[str, Any]:
    amounts = period.amounts
    return {
        "name": period.name,
        "began_at": period.began_s,
        "ended_at": period.ended_s,
        "entries": len(period.stretches),
        "replica_tokens_per_second": amounts.tokens_per_second,
        "request_tokens_per_second": amounts.request_tokens_per_second,
        "accept_length": amounts.all_rounds.accept_length or None,
        "rounds": amounts.all_rounds.rounds,
        "steps": amounts.all_steps.steps,
        "speed_over_plain": over_plain.value,
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
