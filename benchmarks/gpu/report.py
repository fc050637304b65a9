"""What a run found: a JSON file, rewritten after every stage, and tables on the terminal."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from ...rig.runs import machine
from .checks import Finding
from .learning import Learned


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything measured so far; a stage that did not run is absent from the JSON, not zero."""

    settings: Mapping[str, object]
    target: Mapping[str, object] = field(default_factory=dict)
    server: Mapping[str, object] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    learned: Learned | None = None
    seconds: dict[str, float] = field(default_factory=dict)  # stage -> duration; the stages that ended

    def as_json(self) -> dict[str, object]:
        """Plain values; spreads are median, low and high."""
        values: dict[str, object] = {
            "machine": machine() | {"gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None},
            "settings": dict(self.settings),
            "target": dict(self.target),
            "server": dict(self.server),
            "findings": [asdict(finding) for finding in self.findings],
            "seconds": {stage: round(seconds, 1) for stage, seconds in self.seconds.items()},
        }
        if self.learned is not None:
            values["learned"] = _learned(self.learned)
        return values

    def write(self, file: Path) -> None:
        """Write the JSON file, replacing an earlier one."""
        file.write_text(json.dumps(self.as_json(), indent=2, default=str) + "\n", encoding="utf-8")

    @property
    def is_right(self) -> bool:
        """Whether every check so far passed, of those that require something."""
        return all(finding.is_right is not False for finding in self.findings)


def _learned(learned: Learned) -> dict[str, object]:
    fit = learned.fit
    return {
        "accept_length": {"before": learned.before, "after": learned.after},
        "traces": learned.traces,
        "training": {"steps": fit.steps, "skipped_steps": fit.skipped_steps, "seconds": fit.seconds},
        "loss": {"first": fit.losses[0], "last": fit.losses[-1]} if fit.losses else {},
        "version": learned.version,
    }


def print_report(console: Console, report: Report) -> None:
    """Print the checks, and how they ended."""
    console.print(_findings(report.findings))


def _findings(findings: Sequence[Finding]) -> Table:
    table = _table("capture", "check", "found", "wanted", "")
    verdicts = {True: "[green]ok[/]", False: "[bold red]FAILED[/]", None: "reported"}
    for finding in findings:
        table.add_row(finding.name, finding.found, finding.wanted, verdicts[finding.is_right])
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading)
    return table
