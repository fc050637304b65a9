"""The description of a draft in MLflow, as Markdown: what a reviewer asks, answered in one screen.

What is not known is said to be unknown, with the reason. A column of a table is escaped: reasons, labels and names come
from others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ....buffer.board.version import PREDICTED_SCORE, PREDICTED_STANDARD_ERROR, BoardRow, VersionState
from ....policies.readings.ratio_sums import Z_95
from ....policies.verdict_words import lead, sentence
from ..round_evidence import JUDGED, TRAFFIC_WINDOW
from ..run_record import FIT, GATE
from .history import Change
from .served_figures import SERVED

_STATES = {VersionState.ROLLED_BACK: "rolled back"}
_LIMITS = (
    "Judged by replay of recorded requests with the weights from before they were learnt; predicted by replay of the "
    "newest requests with its own weights. Neither is a promise. "
    "Intervals hold the chance of the requests alone. A draft changes the speed of answers, never their tokens."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the run of a draft holds."""

    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    started_at: float | None = None  # unix seconds
    ended_at: float | None = None
    traffic: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # data set -> its tags
    link: str = ""  # of the run, within MLflow's pages


def model_card(row: BoardRow, facts: RunFacts, changes: Sequence[Change], model: str) -> str:
    """The card of one draft; `changes` are its history, oldest first, and empty where it is not known."""
    number = row.version.number
    answers = {
        "State": _state(row, changes),
        "Judged": _judged(row, facts),
        "Predicted": _predicted(row.version.scores),
        "Served": _served(row.version.scores, facts.metrics),
        "Learnt from": _traffic(facts.traffic.get(TRAFFIC_WINDOW)),
        "Judged on": _traffic(facts.traffic.get(JUDGED)),
        "Cost": _cost(facts),
        "Limits": _LIMITS,
    }
    # MLflow's table of versions shows the first line as it is, so it has no markup.
    lines = [f"draft {number}: {_name(row.state)}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(text)} |" for name, text in answers.items()]
    lines += ["", *_history(changes), "", *_commands(number, model)]
    return "\n".join([*lines, *([f"- [its run]({facts.link})"] if facts.link else [])])


def _state(row: BoardRow, changes: Sequence[Change]) -> str:
    by = f" by {changes[-1].by}" if changes else ""
    return f"{_name(row.state)} since {_time(row.changed_at)}{by}: {lead(row.why)}"


def _judged(row: BoardRow, facts: RunFacts) -> str:
    found = facts.metrics
    length = found.get(f"{GATE}judged_accept_length")
    if length is None:
        return facts.params.get("gate_reason", "unknown: the gate judged nothing")
    against = f"draft {facts.params['judged_against']}" if "judged_against" in facts.params else "the reference"
    text = f"accept length {length:.2f} against {found[f'{GATE}reference_accept_length']:.2f} of {against}"
    if f"{GATE}gain_low" in found:
        text += (
            f"; gain {found[f'{GATE}gain']:+.3f} ({found[f'{GATE}gain_low']:+.3f} to {found[f'{GATE}gain_high']:+.3f})"
        )
    parent = row.version.parent
    return f"{text}; its parent is {'no draft' if parent is None else f'draft {parent}'}"


def _predicted(scores: Mapping[str, float]) -> str:
    length = scores.get(PREDICTED_SCORE)
    standard_error = scores.get(PREDICTED_STANDARD_ERROR)
    if length is None or standard_error is None:
        return "unknown: it was not to serve, or too few requests waited"
    return f"accept length {length:.2f} ± {Z_95 * standard_error:.2f}"


def _served(scores: Mapping[str, float], found: Mapping[str, float]) -> str:
    length = found.get(f"{SERVED}accept_length")
    if length is None:
        return "unknown: it has not served enough rounds yet, or no server sent counters"
    low = found.get(f"{SERVED}accept_length_low")
    high = found.get(f"{SERVED}accept_length_high")
    interval = "too few requests for an interval" if low is None else f"95 % interval {low:.2f} to {high:.2f}"
    counts = f"{found[f'{SERVED}requests']:.0f} requests, {found[f'{SERVED}rounds']:.0f} rounds"
    predicted = scores.get(PREDICTED_SCORE)
    error = scores.get(PREDICTED_STANDARD_ERROR)
    text = f"accept length {length:.2f} ({interval}, {counts})"
    if predicted is None:
        return text
    return f"{text}; {length - predicted:+.2f}{_noise(found, error)} against what was predicted"


def _noise(found: Mapping[str, float], error: float | None) -> str:
    """Half of the 95 % interval of served minus predicted, by both samples; empty where one is not known."""
    high = found.get(f"{SERVED}accept_length_high")
    if high is None or error is None:
        return ""
    return f" ± {math.hypot(high - found[f'{SERVED}accept_length'], Z_95 * error):.2f}"


def _traffic(tags: Mapping[str, str] | None) -> str:
    if tags is None:
        return "unknown: no learner recorded it"
    if not int(tags["paceline.requests"]):
        return "no request"
    ends = [tags.get(f"paceline.{end}") for end in ("first_at", "last_at")]
    times = " to ".join(_time(float(end)) for end in ends if end is not None) or "times unknown"
    return (
        f"{tags['paceline.traces']} traces of {tags['paceline.requests']} requests, {times}; {tags['paceline.labels']}"
    )


def _cost(facts: RunFacts) -> str:
    if facts.started_at is None or facts.ended_at is None or f"{FIT}seconds" not in facts.metrics:
        return "unknown: no learner recorded it"
    steps = facts.metrics[f"{FIT}steps"]
    skipped = facts.metrics[f"{FIT}skipped_steps"]
    took = f"{facts.ended_at - facts.started_at:.1f} s, of them {facts.metrics[f'{FIT}seconds']:.1f} s of training"
    return f"{took}, {steps:.0f} optimiser steps ({skipped:.0f} skipped), on {facts.params.get('device', 'unknown')}"


def _history(changes: Sequence[Change]) -> list[str]:
    if not changes:
        return ["History: unknown"]
    said = [sentence(change.why) for change in changes]
    rows = [
        (_time(change.at), _name(change.state), change.by, "as above" if why == before else why)
        for before, why, change in zip(["", *said], said, changes, strict=False)
    ]
    return [
        "| when | state | who | why |",
        "|---|---|---|---|",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
    ]


def _commands(number: int, model: str) -> list[str]:
    return [
        f"- fit it again and compare: `paceline reproduce {number}`",
        f"- bring its weights back to the servers' disk: `paceline restore {number}`",
        f'- load it: `mlflow.pyfunc.load_model("models:/{model}@draft-{number}")`',
    ]


def _name(state: VersionState) -> str:
    return _STATES.get(state, state.value)


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _cell(text: str) -> str:
    """One line, in which nothing is markup: no cell ends early, and no tag begins."""
    escaped = "".join(f"\\{char}" if char in r"\`*_[]<>|~#!" else char for char in text)
    return " ".join(escaped.split())
