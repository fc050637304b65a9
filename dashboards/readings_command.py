"""`paceline readings`: what every figure means."""

import typer

from ..policies.readings.page import readings_markdown


def readings() -> None:
    """Say what every figure means: unit, formula, who counts it and how old it may be. Prints docs/readings.md."""
    typer.echo(readings_markdown(), nl=False)
