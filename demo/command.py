"""`paceline demo`: its options. What it needs is imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from ..dashboards.commands.access import read_settings
from ..dashboards.terminal import fail, needing_extra, one_line_errors


def demo(
    requests: Annotated[int, typer.Option(min=8, help="Requests to send, both domains together.")] = 480,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=8, help="New tokens per request.")] = 96,
    prompts: Annotated[Path | None, typer.Option(help='Your prompts: a file of {"text": ..., "domain": ...}.')] = None,
    data_dir: Annotated[Path, typer.Option(help="Folder of the trained target, and of this run.")] = Path(".paceline"),
    keep_running: Annotated[bool, typer.Option(help="Keep the services running until Ctrl-C.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws the initial draft and, without --prompts, the prompts.")] = 0,
) -> None:
    """Watch a random draft learn from live traffic until the server accepts its tokens; no GPU needed.

    Exit code 1: a request failed, an answer differs from plain decoding, or a trace is unaccounted for.
    """
    with one_line_errors():
        with needing_extra("demo"):
            from .report import faults
            from .run import DemoOptions, run_demo
        read_settings()
        options = DemoOptions(requests, concurrency, max_tokens, prompts, data_dir, keep_running, json, seed)
        found = faults(run_demo(options))
        if found:
            fail("; ".join(found))
