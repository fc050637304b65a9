"""What `paceline size` shows: a column per size of the fleet, a row per figure, and what nobody knows as a word."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.table import Table

from ..policies.sizing import Fleet, Sizing, sizing
from ..policies.sizing_constants import FeatureForm
from .cells import UNKNOWN, ago, cell

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_text(count: float) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    for factor, unit in _UNITS:
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.3g} B"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _known(value: float | None) -> str:
    return UNKNOWN if value is None else _number(value)


#: Heading of a row -> its cell.
_ROWS: Mapping[str, Callable[[Fleet, Sizing], str]] = {
    "output tokens per second": lambda fleet, _: _number(fleet.served_tokens_per_s),
    "tokens of traces per second": lambda _, found: _number(found.trace_tokens_per_s),
    "traces to Redis, per second": lambda _, found: size_text(found.trace_bytes_per_s),
    "heartbeats to Redis, per second": lambda _, found: size_text(found.beat_bytes_per_s),
    "PACELINE_BUFFER_MAX_BYTES": lambda _, found: size_text(found.buffer_bytes),
    "memory of Redis": lambda _, found: size_text(found.redis_bytes),
    "cores of Redis": lambda _, found: _number(found.redis_cores),
    "cores of a courier, per server": lambda _, found: _number(found.courier_cores),
    "cores of a learner, before training": lambda _, found: _number(found.learner_cores),
    "GPUs of a learner": lambda _, found: _known(found.learner_gpus),
    "cost per million output tokens": lambda _, found: _known(found.cost_per_million),
    "a new draft is everywhere after": lambda _, found: ago(found.rollout_s),
    "largest PACELINE_SAMPLE_RATE": lambda _, found: f"{found.largest_sample_rate:.2g}",
    "limited by": lambda _, found: found.limited_by or "nothing",
}


def sizing_view(fleets: Sequence[Fleet]) -> RenderableType:
    """What is assumed, a column per fleet, and what to do about what is unknown or too much."""
    sizes = [sizing(fleet) for fleet in fleets]
    table = Table(box=None, pad_edge=False)
    table.add_column("servers", no_wrap=True)
    for fleet in fleets:
        table.add_column(f"{fleet.replicas:,}", justify="right", no_wrap=True)
    for heading, text in _ROWS.items():
        table.add_row(heading, *(cell(text(*each)) for each in zip(fleets, sizes, strict=True)))
    return Group(*map(cell, _assumed(fleets[0], sizes[0])), table, *map(cell, _notes(fleets, sizes)))


def as_fields(fleet: Fleet) -> dict[str, object]:
    """What was asked, and the figures, None where unknown; for JSON."""
    return {"fleet": asdict(fleet), "needs": asdict(sizing(fleet))}


def _assumed(fleet: Fleet, found: Sizing) -> list[str]:
    holds = {
        FeatureForm.CAPTURED: "hidden states as captured, in bfloat16",
        FeatureForm.INT8: "hidden states in int8",
        FeatureForm.TOKENS: "tokens alone",
    }[fleet.form]
    model = f"hidden size {fleet.hidden}, {fleet.layers} layers; traces hold {holds}"
    traffic = f"{fleet.prompt_tokens} tokens of prompt and {fleet.output_tokens} of output per request"
    kept = f"{fleet.sample_rate:.4g} of requests captured, kept for {ago(fleet.keep_s)}"
    return [f"{model}: {found.token_bytes:,.0f} bytes per token", f"{traffic}; {kept}", ""]


def _notes(fleets: Sequence[Fleet], sizes: Sequence[Sizing]) -> Iterator[str]:
    yield ""
    if fleets[0].learned_tokens_per_s is None:
        yield (
            "GPUs of a learner: unknown, since no bench has measured one; give what one of yours learns by "
            "--learned-tokens-per-s (docs/sizing.md)"
        )
    elif fleets[0].gpu_hour is None:
        yield "cost: unknown without --gpu-hour"
    over = [each for each, found in zip(fleets, sizes, strict=True) if found.largest_sample_rate < each.sample_rate]
    if over:
        yield (
            f"from {over[0].replicas:,} servers on: beyond the largest PACELINE_SAMPLE_RATE traces are dropped or "
            "trimmed, and counted"
        )
