"""`python -m paceline.demo.fleet`: what `make fleet` runs."""

from pathlib import Path
from typing import Annotated

import typer

from ...dashboards.terminal import fail, needing_extra, one_line_errors


def _main(
    *,
    requests: Annotated[int, typer.Option(min=8, help="Requests to send, both domains together.")] = 240,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 9,
    max_tokens: Annotated[int, typer.Option(min=8, help="New tokens per request.")] = 64,
    replicas: Annotated[int, typer.Option(min=2, max=9, help="Servers behind the router.")] = 3,
    data_dir: Annotated[Path, typer.Option(help="Folder of the trained target, and of this run.")] = Path(".paceline"),
    json: Annotated[
        Path | None, typer.Option(help="The report goes here, its picture beside it; else into the run's folder.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws the initial draft and the prompts.")] = 0,
    python_of_one: Annotated[
        Path | None,
        typer.Option(exists=True, help="Interpreter of the last server, for one of another SGLang."),
    ] = None,
) -> None:
    """Watch the drafts of several servers behind SGLang's router follow one learner through S3; no GPU needed.

    Redis is a primary and a replica behind Sentinels; the primary is killed after three quarters of the requests.
    Exit code 1: a request failed, an answer differs from plain decoding, or a trace is unaccounted for.
    """
    with one_line_errors():
        with needing_extra("fleet"):
            import sglang_router  # noqa: F401, PLC0415 - else it is missed when the servers have started

            from .report import faults  # noqa: PLC0415 - torch, which --help does without
            from .run import FleetOptions, run_fleet  # noqa: PLC0415 - same
        options = FleetOptions(
            requests=requests,
            concurrency=concurrency,
            max_tokens=max_tokens,
            replicas=replicas,
            data_dir=data_dir,
            json=json,
            seed=seed,
            python_of_one=python_of_one,
        )
        found = faults(run_fleet(options))
        if found:
            fail("; ".join(found))


if __name__ == "__main__":
    typer.run(_main)
