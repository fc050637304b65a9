"""`python -m paceline.demo.grpo`: what `make rollouts` runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ...dashboards.terminal import needing_extra, one_line_errors

Target = Literal["tiny", "smollm2"]


def _main(
    *,
    target: Annotated[Target, typer.Option(help="The small target, or the chat model.")] = "tiny",
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps, each on new completions, 64 or 16.")] = 12,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of rollouts and training.")] = 0.5,
    rejection: Annotated[bool, typer.Option("--rejection", help="Accept drafts by rejection sampling.")] = False,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Of the target, constant.")] = 1e-4,
    taught_at: Annotated[
        float | None, typer.Option(min=0.0, help="Temperature of what taught the first draft; default: --temperature.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts, sampling and training.")] = 0,
    data_dir: Annotated[Path, typer.Option(help="Folder of target, first draft, and this run.")] = Path(".paceline"),
    json: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
    record: Annotated[Path | None, typer.Option(help="Keep rollouts, drafts and targets in this new folder.")] = None,
) -> None:
    """Train a target with TRL's GRPO on rollouts of a server whose draft learns along; no GPU needed.

    The small target is rewarded for digits, the chat model for right answers to questions of arithmetic and logic.
    """
    with one_line_errors():
        with needing_extra("rl"):
            from .run import GrpoOptions, run_grpo  # noqa: PLC0415 - torch and TRL, which --help does without
        options = GrpoOptions(
            is_chat=target == "smollm2",
            steps=steps,
            temperature=temperature,
            rejection=rejection,
            learning_rate=learning_rate,
            taught_at=taught_at,
            seed=seed,
            data_dir=data_dir,
            json=json,
            record=record,
        )
        run_grpo(options)


if __name__ == "__main__":
    typer.run(_main)
