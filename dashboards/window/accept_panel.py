"""Panel 2: accept length over time, drafts that went live, what was predicted, refusals, drift, moved traffic."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from ...buffer.board.version import PREDICTED_SCORE, VersionState
from ...policies.readings.accept_series import NOTHING, AcceptStretch, accept_series, length_of
from ...policies.readings.definitions import DEFINITIONS
from ...policies.readings.tables import CellSums
from ...policies.readings.traffic_move import MIN_REQUESTS, traffic_move
from ...policies.verdict_words import lead, sentence
from ..cells import ago, label_word, length
from ..headline import nobody_serves
from .drift_shades import drift_shades
from .lives import Lives, Stay
from .look import Look

#: Seconds that can be shown -> width of a stretch in them.
SPANS: Mapping[int, float] = {300: 10.0, 900: 15.0, 3600: 60.0}
#: Labels with a line of their own, those with most rounds.
_LINES = 4
#: Of a label in a stretch; with fewer rounds its line would show how one request began or ended.
_LEAST_ROUNDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that became of a draft, on the chart."""

    kind: str  # swap, returned, or refused
    at: float  # unix seconds
    number: int
    by: str
    lead: str
    why: str  # the long form
    text: str


def accept_panel(look: Look, span_s: int) -> dict[str, object]:
    """The last `span_s` seconds, one of SPANS, as columns of equal length; None where nothing was served."""
    width_s = SPANS[span_s]
    until = math.ceil(look.seen.at / width_s) * width_s
    stretches = accept_series(look.seen.histories.values(), until, width_s, round(span_s / width_s))
    shown = marks(look.lives, until - span_s, until)
    drifted = drift_shades(look, until - span_s, look.seen.at)
    sums = [stretch.sums for stretch in stretches]
    intervals = [stretch.interval or (None, None) for stretch in stretches]
    return {
        "from": until - span_s,
        "until": until,
        "born": min((stays[0].since for stays in look.lives.stays.values()), default=None),
        "width_s": width_s,
        "times": [stretch.at for stretch in stretches],
        "pooled": [length_of(each) for each in sums],
        "low": [low for low, _ in intervals],
        "high": [high for _, high in intervals],
        "rounds": [each.rounds for each in sums],
        "requests": [each.requests for each in sums],
        "draft": [stretch.draft for stretch in stretches],
        "labels": label_lines(stretches),
        "predicted": [_predicted(look, stretch.at) for stretch in stretches],
        "marks": [asdict(mark) for mark in shown],
        "drifted": drifted,
        "moved": _moved(look, stretches, width_s),
        "summary": _summary(stretches, shown, len(drifted), span_s),
        "definition": DEFINITIONS["accept_length"].formula,
        "why_unknown": _why_unknown(look, stretches),
    }


def marks(lives: Lives, since: float, until: float) -> list[Mark]:
    """Drafts that went live, came back or were put out between two times, oldest first."""
    found = [mark for number, stays in lives.stays.items() for mark in _marks_of(number, stays)]
    return sorted((mark for mark in found if since <= mark.at <= until), key=lambda mark: mark.at)


def _marks_of(number: int, stays: Sequence[Stay]) -> Iterator[Mark]:
    before: VersionState | None = None
    for stay in stays:
        kind, text = _kind(stay.state, before)
        if kind:
            yield Mark(
                kind=kind,
                at=stay.since,
                number=number,
                by=stay.by,
                lead=lead(stay.why),
                why=sentence(stay.why),
                text=f"draft {number} {text}",
            )
        before = stay.state


def _kind(state: VersionState, before: VersionState | None) -> tuple[str, str]:
    """What a change of state is on the chart; empty where the lane alone shows it."""
    if state is VersionState.LIVE:
        was_out = before in {VersionState.RETIRED, VersionState.ROLLED_BACK}
        return ("returned", "was brought back") if was_out else ("swap", "went live")
    if state is VersionState.REFUSED:
        return "refused", "was refused"
    if state is VersionState.ROLLED_BACK and before is VersionState.CANARY:
        return "refused", "was rolled back from its canary"
    return "", ""


def label_lines(stretches: Sequence[AcceptStretch]) -> list[dict[str, object]]:
    """A line for each of the most frequent labels; none where requests name no label, since the pooled line is it."""
    rounds: Counter[str] = Counter()
    for stretch in stretches:
        rounds.update({label: sums.rounds for label, sums in stretch.by_label.items()})
    if not set(rounds) - {""}:
        return []
    shown = sorted(label for label, _ in rounds.most_common(_LINES))
    return [
        {"label": label_word(label), "values": [_line(s.by_label.get(label, NOTHING)) for s in stretches]}
        for label in shown
    ]


def _line(sums: CellSums) -> float | None:
    return length_of(sums) if sums.rounds >= _LEAST_ROUNDS else None


def _predicted(look: Look, at: float) -> float | None:
    live = look.lives.live_at(at)
    return None if live is None else look.seen.state.rows[live].version.scores.get(PREDICTED_SCORE)


def _moved(look: Look, stretches: Sequence[AcceptStretch], width_s: float) -> list[tuple[float, float]]:
    """Times whose labels differ from those of the newest traffic when the draft that was live then was judged."""
    found: list[tuple[float, float]] = []
    for index, stretch in enumerate(stretches):
        live = look.lives.live_at(stretch.at)
        judged_on = None if live is None else look.seen.state.rows[live].version.judged_on
        now = _recent_labels(stretches[: index + 1])
        if judged_on is None or not now or not traffic_move(judged_on.newest_labels, now).has_moved:
            continue
        start = stretch.at - width_s
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, stretch.at))
    return found


def _recent_labels(stretches: Sequence[AcceptStretch]) -> dict[str, int]:
    """Ended requests by label of the newest stretches that have enough of them; empty where the newest has none."""
    found: Counter[str] = Counter()
    for stretch in reversed(stretches):
        if not stretch.by_label:
            break
        found.update({label: sums.requests for label, sums in stretch.by_label.items()})
        if found.total() >= MIN_REQUESTS:
            break
    return dict(found)


def _summary(stretches: Sequence[AcceptStretch], shown: Sequence[Mark], drifts: int, span_s: int) -> str:
    kinds = Counter(mark.kind for mark in shown)
    known = [length_of(stretch.sums) for stretch in stretches if stretch.by_label]
    now = f"Now {length(known[-1])}, at first {length(known[0])}" if known else "Unknown"
    words = {"swap": "went live", "refused": "refused", "returned": "brought back"}
    came = ", ".join(f"{kinds[kind]} {word}" for kind, word in words.items() if kinds[kind]) or "none came or went"
    meaning = DEFINITIONS["accept_length"].meaning
    drift = f" Drift tests that fired: {drifts}." if drifts else ""
    return f"{meaning} Plain decoding commits 1. {now}, in the last {ago(span_s)}; drafts: {came}.{drift}"


def _why_unknown(look: Look, stretches: Sequence[AcceptStretch]) -> str:
    if any(stretch.by_label for stretch in stretches):
        return ""
    if not any(entry.served for history in look.seen.histories.values() for entry in history):
        return nobody_serves(look.seen) or "no server has sent counters yet"
    return nobody_serves(look.seen) or "no verify round was captured in this time"
