"""One draft in full: where it comes from, what it was judged on, what it served, and who did what to it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..buffer.board.audit import entry_time
from ..buffer.board.version import JUDGED_SCORE, PREDICTED_SCORE, PREDICTED_STANDARD_ERROR, BoardEvent, BoardRow
from ..buffer.plain_text import utc_time
from ..policies import judged_on
from ..policies.readings.ratio_sums import Z_95, RatioSums
from ..policies.readings.served_drafts import ServedDraft
from ..policies.readings.traffic_move import traffic_move
from ..policies.verdict_words import figures, lead, sentence, spelt
from .cells import UNKNOWN, ago, cell, error, interval, label_word, length
from .tables import VersionLine

_REFERENCE_SCORE = "reference_accept_length"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCard:
    """Everything that is known of one draft."""

    line: VersionLine
    row: BoardRow
    events: Sequence[BoardEvent]  # of this draft, oldest first
    served: ServedDraft
    by_label: Mapping[str, RatioSums]

    def facts(self) -> dict[str, str]:
        """Heading -> what is known, in words."""
        version = self.row.version
        line = self.line
        return {
            "state": f"{line.state.value} since {utc_time(line.changed_at)}: {lead(self.row.why)}",
            "parent": "the draft that the server was started with" if line.parent is None else f"draft {line.parent}",
            "traffic learnt from": traffic_window(version.trained_on),
            "objective": version.objective,
            "target": f"{version.target}, version {version.target_version or UNKNOWN}",
            "trained on targets": ", ".join(version.trained_targets) or UNKNOWN,
            "judged (no quality)": _judged(version.scores),
            "predicted (no quality)": predicted(version.scores),
            "served": served_text(self.line),
            "error of prediction": error(line.prediction_error, line.error_half_width, UNKNOWN) + self._moved(),
            "weights": f"{version.weights_uri}, sha256 {version.sha256[:12]}",
        }

    def gate(self) -> dict[str, str]:
        """Heading -> figure: what the gate measured of the line and of its reference, and on what; "-" is not known."""
        scores = self.row.version.scores
        on = self.row.version.judged_on
        low = scores.get("gain_low")
        high = scores.get("gain_high")
        gain = scores.get("gain")
        median_s, oldest_s = (None, None) if on is None else (on.median_age_s, on.oldest_age_s)
        return {
            "line": length(scores.get(JUDGED_SCORE)),
            "reference": length(scores.get(_REFERENCE_SCORE)),
            "gain": error(gain, None),
            "interval": interval(None if low is None or high is None else (low, high)),
            "requests": "-" if on is None else str(on.requests),
            "median age": "-" if median_s is None else ago(median_s),
            "oldest": "-" if oldest_s is None else ago(oldest_s),
        }

    def verdicts(self) -> list[str]:
        """Every reason that says more than its lead, in full, each once."""
        return list(dict.fromkeys(sentence(e.why) for e in self.events if sentence(e.why) != lead(e.why)))

    def _moved(self) -> str:
        """Why an error may be none of the draft's: it served other requests than there were when it was judged."""
        on = self.row.version.judged_on
        requests = {label: sums.requests for label, sums in self.by_label.items()}
        if on is None or not (move := traffic_move(on.newest_labels, requests)).has_moved:
            return ""
        then = f"{move.was:.0%} when it was judged"
        served = f"{move.now:.0%} of what it served"
        return f"; traffic moved: {label_word(move.label)} {then}, {served}"

    def as_json(self) -> dict[str, object]:
        """As JSON values."""
        return {
            "number": self.line.number,
            "facts": self.facts(),
            "gate": self.gate(),
            "scores": dict(self.row.version.scores),
            "served": {label: sums_json(sums) for label, sums in self.by_label.items()},
            "positions": [{"reached": reached, "accepted": accepted} for reached, accepted in _positions(self.served)],
            "history": [
                {"at": event.at, "state": event.state.value, "by": event.by, **spelt(event.why)}
                for event in self.events
            ],
        }

    def view(self) -> RenderableType:
        """For a terminal."""
        return Group(
            Text(f"draft {self.line.number}", style="bold"),
            self._facts(),
            *self._gate(),
            *self._served(),
            *self._history(),
        )

    def _facts(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for heading, text in self.facts().items():
            style = "dim" if heading.endswith("(no quality)") else ""
            table.add_row(cell(heading, "bold"), cell(text, style))
        return table

    def _gate(self) -> Iterator[Table]:
        if JUDGED_SCORE in self.row.version.scores:
            table = Table(title="what the gate measured (no quality)", title_justify="left", expand=False)
            for heading in self.gate():
                table.add_column(heading, justify="right")
            table.add_row(*map(cell, self.gate().values()))
            yield table

    def _served(self) -> Iterator[Table]:
        if self.by_label:
            yield _sums_table("served by label", "label", self.by_label)
        if self.served.tried:
            yield _positions_table(self.served)

    def _history(self) -> Iterator[RenderableType]:
        table = Table(title="history", title_justify="left", expand=False)
        for heading in ("when", "state", "by", "why", "figures"):
            table.add_column(heading, overflow="fold")
        for event in self.events:
            told = event.state.value, event.by, lead(event.why), figures(event.why)
            table.add_row(*map(cell, (utc_time(event.at), *told)))
        yield table
        for why in self.verdicts():
            yield cell("")
            yield cell(why)
        if (on := self.row.version.judged_on) is not None:
            yield cell(judged_on.sentence(on))


def traffic_window(trained_on: tuple[str, str]) -> str:
    """First and last time at which Redis took in a trace that this draft learnt from, by its own stream ids."""
    if not all(trained_on):
        return "none named"
    first, last = (utc_time(entry_time(entry_id)) for entry_id in trained_on)
    return f"{first} .. {last}"


def _judged(scores: Mapping[str, float]) -> str:
    line = scores.get(JUDGED_SCORE)
    reference = scores.get(_REFERENCE_SCORE)
    if line is None:
        return f"{UNKNOWN}: the gate measured nothing"
    return length(line) if reference is None else f"{length(line)} against {length(reference)} of the reference"


def predicted(scores: Mapping[str, float]) -> str:
    """Accept length with its 95 % interval."""
    mean = scores.get(PREDICTED_SCORE)
    standard_error = scores.get(PREDICTED_STANDARD_ERROR)
    if mean is None or standard_error is None:
        return f"{UNKNOWN}: it was not to serve, or too few requests waited"
    noise = Z_95 * standard_error
    return f"{mean:.2f} (95 % over requests {interval((max(mean - noise, 1.0), mean + noise))})"


def served_text(line: VersionLine) -> str:
    """Accept length with its interval and what it rests on."""
    if line.served_accept_length is None:
        return "unknown: no request that it served is counted"
    ends = interval(line.served_interval)
    return (
        f"{line.served_accept_length:.2f} (95 % over requests {ends}, {line.requests} requests, {line.rounds} rounds)"
    )


def _sums_table(title: str, heading: str, found: Mapping[str, RatioSums]) -> Table:
    table = Table(title=title, title_justify="left", expand=False)
    for name in (heading, "accept length", "95 %", "requests", "rounds"):
        table.add_column(name, justify="left" if name == heading else "right")
    for name, sums in sorted(found.items(), key=lambda item: -item[1].rounds):
        figures = length(sums.accept_length), interval(sums.interval), str(sums.requests), str(sums.rounds)
        table.add_row(*map(cell, (label_word(name), *figures)))
    return table


def _positions(served: ServedDraft) -> list[tuple[int, int]]:
    return list(zip(served.tried, served.stood, strict=True))


def _positions_table(served: ServedDraft) -> Table:
    table = Table(title="accepted by position, of the rounds that reached it", title_justify="left", expand=False)
    for name in ("position", "reached", "accepted", "share"):
        table.add_column(name, justify="right")
    for number, (tried, stood) in enumerate(_positions(served), start=1):
        share = "-" if not tried else f"{stood / tried:.0%}"
        table.add_row(*map(cell, (str(number), str(tried), str(stood), share)))
    return table


def sums_json(sums: RatioSums) -> dict[str, object]:
    """What was served, as JSON values."""
    named = {"accept_length": sums.accept_length, "interval": sums.interval}
    return {**named, "requests": sums.requests, "rounds": sums.rounds}
