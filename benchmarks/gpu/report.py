"""What a run found: a JSON file, rewritten after every stage, and tables on the terminal."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from ...rig.machine import machine
from ..measure.stalls import Stalls
from .checks import Finding
from .learning import Learned
from .overhead import Overhead


@dataclass(slots=True)
class Report:
    """Everything measured so far; a stage that did not run is absent from the JSON, not zero."""

    settings: Mapping[str, object]
    target: Mapping[str, object] = field(default_factory=dict)
    server: Mapping[str, object] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    overhead: list[Overhead] = field(default_factory=list)
    stalls: Stalls | None = None
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
        if self.overhead:
            values["overhead"] = [asdict(overhead) for overhead in self.overhead]
        if self.stalls is not None:
            values["stalls"] = asdict(self.stalls)
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
    """Print a table for each stage that ran."""
    console.print(_findings(report.findings))
    if report.overhead:
        console.print(_overhead(report.overhead))
    if report.stalls is not None:
        console.print(_stalls(report.stalls))


def _findings(findings: Sequence[Finding]) -> Table:
    table = _table("capture", "check", "found", "wanted", "")
    verdicts = {True: "[green]ok[/]", False: "[bold red]FAILED[/]", None: "reported"}
    for finding in findings:
        table.add_row(finding.name, finding.found, finding.wanted, verdicts[finding.is_right])
    return table


def _overhead(rows: Sequence[Overhead]) -> Table:
    table = _table("tokens per second", "batch", "captured", "opted out", "ratio, paired", "accept length", "dropped")
    for row in rows:
        dropped = ", ".join(f"{reason} {n}" for reason, n in row.dropped.items())
        first, second, ratio = row.captured.text(0), row.opted_out.text(0), row.ratio.spread.text(3)
        table.add_row(f"{row.batch}", first, second, ratio, f"{row.accept_length:.2f}", dropped or "none")
    return table


def _stalls(stalls: Stalls) -> Table:
    title = f"longest wait for a token, ms ({stalls.plan.repeats} repeats, {stalls.void} void)"
    table = _table(title, "way", "median [low .. high]")
    for way, wait_ms in stalls.waits_ms.items():
        table.add_row(way, wait_ms.text(1))
    table.add_row("paceline / stock HTTP, paired", stalls.ratio.text(2))
    table.add_row("commit in the scheduler", stalls.commit_ms.text(2))
    table.add_row("staging in its own thread", stalls.stage_ms.text(0))
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading)
    return table
