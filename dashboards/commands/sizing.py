"""`paceline size`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ...buffer.errors import ConfigError
from ...policies.sizing_constants import FeatureForm
from .access import AsJson, read_settings

sizing = typer.Typer()

#: Hidden size of targets that have a name here: of Llama-3.1-8B, Llama-3.1-70B, and DeepSeek-V3.
PRESETS = {"8b": 4096, "70b": 8192, "moe": 7168}


@sizing.command()
def size(
    target: Annotated[str, typer.Option(help="8b, 70b, moe, or the folder of a model, for its hidden size.")],
    tokens_per_s: Annotated[float, typer.Option(min=0.001, help="Output tokens per second of one server.")],
    *,
    replicas: Annotated[list[int], typer.Option(min=1, help="Servers; repeatable.")] = [1, 8, 64, 1000],  # noqa: B006
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of a request, the mean.")] = 512,
    output_tokens: Annotated[int, typer.Option(min=1, help="Of a request, the mean.")] = 256,
    features: Annotated[FeatureForm, typer.Option(help="How traces hold hidden states.")] = FeatureForm.CAPTURED,
    sample_rate: Annotated[
        float | None, typer.Option(min=0.0001, max=1.0, help="Share of requests captured; else PACELINE_SAMPLE_RATE.")
    ] = None,
    keep_s: Annotated[float, typer.Option(min=1.0, help="Seconds that a trace is to stay in Redis.")] = 300.0,
    learned_tokens_per_s: Annotated[
        float | None, typer.Option(min=0.001, help="Tokens of traces that one GPU of a learner learns per second.")
    ] = None,
    gpu_hour: Annotated[float | None, typer.Option(min=0.0, help="Price of such a GPU for an hour.")] = None,
    as_json: AsJson = False,
) -> None:
    """Calculate what a fleet needs beside its servers, before there is one: Redis, cores, GPUs of learners, money.

    Asks nobody and starts nothing. docs/sizing.md has the constants with the command that measures each. What no bench
    has measured and no option gives is shown as unknown.
    """
    from rich.console import Console

    from ...policies.sizing import USUAL_CLAIM, Fleet
    from ..sizing_table import as_fields, sizing_view

    found = read_settings()
    fleets = [
        Fleet(
            replicas=count,
            tokens_per_s=tokens_per_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            hidden=hidden_size(target),
            form=features,
            sample_rate=found.value("SAMPLE_RATE") if sample_rate is None else sample_rate,
            keep_s=keep_s,
            trace_tokens=found.value("TRACE_TOKENS"),
            stagger_s=found.value("STAGGER_S"),
            round_traces=max(USUAL_CLAIM, found.value("MIN_NEW_TRACES")),
            round_interval_s=found.value("ROUND_INTERVAL_S"),
            learned_tokens_per_s=learned_tokens_per_s,
            gpu_hour=gpu_hour,
        )
        for count in sorted(replicas)
    ]
    if as_json:
        typer.echo(json.dumps([as_fields(fleet) for fleet in fleets], indent=2))
        return
    Console().print(sizing_view(fleets))


def hidden_size(target: str) -> int:
    """Of a preset, or as the config.json of a folder says. ConfigError where it says none."""
    if target in PRESETS:
        return PRESETS[target]
    file = Path(target) / "config.json"
    try:
        config: Any = json.loads(file.read_text(encoding="utf-8"))
        text: Any = config.get("text_config", config)
        found = text["hidden_size"]
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        names = ", ".join(PRESETS)
        raise ConfigError(
            f"--target {target}: got no hidden_size from {file} ({type(error).__name__}), expected {names}, or a "
            "model's folder"
        ) from error
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ConfigError(f"{file}: got hidden_size {found!r}, expected a whole number above 0")
    return found
