"""Accept length by where rounds began, for people: by output token, and by tokens of prompt and output so far."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ..buffer.board.counters import CONTEXT_STARTS, OUTPUT_STARTS
from ..policies.readings.definitions import Reading
from ..policies.readings.served_drafts import ServedDraft


def _words(starts: Sequence[int]) -> list[str]:
    return [*(f"{start}-{after - 1}" for start, after in pairwise(starts)), f"{starts[-1]}+"]


#: Buckets as they are shown.
OUTPUT_BUCKETS = _words(OUTPUT_STARTS)
CONTEXT_BUCKETS = _words(CONTEXT_STARTS)


def by_start_line(by_output: Mapping[str, Reading], by_context: Mapping[str, Reading]) -> str:
    """One line; empty while nothing can be compared: all rounds began in one bucket of either kind, or none did."""
    found = {"output token": by_output, "tokens of context": by_context}
    said = [f"by {name}: {text}" for name, readings in found.items() if (text := _compared(readings))]
    return f"accept length {'; '.join(said)}" if said else ""


def _compared(readings: Mapping[str, Reading]) -> str:
    known = [
        f"{name} {each.value:.2f} ({each.count} rounds)" for name, each in readings.items() if each.value is not None
    ]
    return ", ".join(known) if len(known) > 1 else ""


def by_start_rows(served: ServedDraft) -> list[dict[str, object]]:
    """Of one draft, the buckets where rounds began; none of a kind of which all began in one."""
    found = {"output": (OUTPUT_BUCKETS, served.by_output), "context": (CONTEXT_BUCKETS, served.by_context)}
    rows: list[dict[str, object]] = []
    for name, (buckets, sums) in found.items():
        known: list[dict[str, object]] = [
            {"start": f"{name} {bucket}", "accept_length": each.accept_length, "rounds": each.rounds}
            for bucket, each in zip(buckets, sums, strict=False)
            if each.rounds
        ]
        rows += known if len(known) > 1 else []
    return rows
