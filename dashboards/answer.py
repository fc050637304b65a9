"""The whole answer of `paceline status`: five sentences, a sixth while something waits for MLflow, and its members."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..buffer.finding import Finding, Level, exit_code
from ..buffer.plain_text import utc_time
from ..policies.guard import AlarmName
from .alarm_lines import AlarmLine, alarms_table, standing_and_recent
from .by_start import by_start_line
from .cells import cell
from .headline import faster, fresh, wrong
from .loop_answers import last_swap, loop
from .member_rows import MemberRow, member_rows, members_table
from .mlflow_link import mlflow_waits
from .served import Served, served_now
from .snapshot import Snapshot

STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.WRONG: "bold red", Level.UNKNOWN: "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one snapshot says."""

    seen: Snapshot
    findings: Sequence[Finding]
    alarms: Sequence[AlarmLine]
    rows: Sequence[MemberRow]
    served: Served

    @property
    def code(self) -> int:
        """Exit code of the command."""
        return exit_code(self.findings)

    def as_json(self) -> dict[str, object]:
        """As JSON values."""
        return {
            "speculator": self.seen.speculator,
            "at": self.seen.at,
            "when": utc_time(self.seen.at),
            "exit_code": self.code,
            "answers": [asdict(finding) for finding in self.findings],
            "alarms": [line.as_json() for line in self.alarms],
            "members": [row.as_json() for row in self.rows],
            "readings": [asdict(reading) for reading in self.served.readings()],
            "by_replica": {name: asdict(reading) for name, reading in self.served.by_replica.items()},
            "by_output": {bucket: asdict(reading) for bucket, reading in self.served.by_output.items()},
            "by_context": {bucket: asdict(reading) for bucket, reading in self.served.by_context.items()},
        }

    def view(self) -> RenderableType:
        """For a terminal."""
        title = Text(f"{self.seen.speculator}, {utc_time(self.seen.at)}", style="bold")
        active = [line for line in self.alarms if line.at is None]
        tables = [alarms_table(active)] if active else []
        by_start = by_start_line(self.served.by_output, self.served.by_context)
        lines = [cell(by_start)] if by_start else []
        members = members_table(self.rows) if self.rows else Text()
        return Group(title, findings_grid(self.findings), *lines, *tables, members)


def answer(seen: Snapshot) -> Answer:
    """Judge what was seen."""
    served = served_now(seen)
    alarms = standing_and_recent(seen)
    silent = frozenset(line.member for line in alarms if line.name == AlarmName.MEMBER_SILENT)
    findings = (
        faster(seen, served),
        fresh(seen, served.move),
        last_swap(seen, served.lengths()),
        loop(seen, served),
        wrong(seen, alarms),
        *filter(None, [mlflow_waits(seen)]),
    )
    rows = member_rows(seen, silent, served.by_replica)
    return Answer(seen=seen, findings=findings, alarms=alarms, rows=rows, served=served)


def findings_grid(findings: Sequence[Finding]) -> Table:
    """Their words, topics and sentences in columns."""
    grid = Table.grid(padding=(0, 1))
    for finding in findings:
        style = STYLES[finding.level]
        grid.add_row(cell(finding.level, style), cell(finding.topic, "bold"), cell(finding.sentence))
    return grid


def finding_text(finding: Finding) -> Text:
    """Its word in colour, then the sentence, in which only the colour is left out."""
    line = finding.line()
    word = len(finding.level)
    return Text.assemble(cell(line[:word], STYLES[finding.level]), cell(line[word:]))
