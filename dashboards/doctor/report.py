"""Prints findings as they come."""

import json
from collections.abc import Iterable
from dataclasses import asdict

from rich.console import Console

from ...buffer.finding import Finding, exit_code
from ..answer import finding_text


def say_findings(findings: Iterable[Finding], *, as_json: bool) -> int:
    """Print each finding on a line of its own, as JSON or for people; return the exit code."""
    console = Console(soft_wrap=True)
    said = []
    for finding in findings:
        console.file.write(json.dumps(asdict(finding)) + "\n") if as_json else console.print(finding_text(finding))
        said.append(finding)
    return exit_code(said)
