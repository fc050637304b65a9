"""Which traces a run sees, and in which order: mixed domains, then the shifted one; some are kept for tuning."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...buffer.stream.trace import DraftTrace

#: One in so many requests of a domain is kept for tuning the learning rate and is in no stream.
TUNING_EVERY = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many requests a run sees and how often it trains; a run never trains across the shift."""

    before_shift: int
    after_shift: int
    cadence: int  # requests of a chunk


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Traces in the order a run sees them; from number `shift_at` on all are of the shifted domain."""

    traces: tuple[DraftTrace, ...]
    shift_at: int

    def chunks(self, cadence: int) -> Iterator[tuple[DraftTrace, ...]]:
        """Consecutive traces, `cadence` at a time; a last chunk may be smaller, on either side of the shift."""
        for side in (self.traces[: self.shift_at], self.traces[self.shift_at :]):
            for begin in range(0, len(side), cadence):
                yield side[begin : begin + cadence]


def domain_of(request_id: str) -> str:
    """The domain that the id begins with, as rig/prompts.py names requests."""
    return request_id.partition("-")[0]


def is_tuning(trace: DraftTrace) -> bool:
    """Tell if the request is kept for tuning, by its number within its domain."""
    return int(trace.request_id.rpartition("-")[2]) % TUNING_EVERY == TUNING_EVERY - 1


def make_stream(traces: Sequence[DraftTrace], shifted: str, sizes: Sizes, seed: int, *, tuning: bool = False) -> Stream:
    """The stream of one seed: the same traces and seed give the same order, whatever order `traces` came in.

    Domains before the shift come in equal numbers, shuffled together. SystemExit when there are too few traces.
    """
    kept = sorted((trace for trace in traces if is_tuning(trace) is tuning), key=lambda trace: trace.request_id)
    by_domain: dict[str, list[DraftTrace]] = {}
    for trace in kept:
        by_domain.setdefault(domain_of(trace.request_id), []).append(trace)
    usual = sorted(set(by_domain) - {shifted})
    draw = random.Random(f"{seed} {tuning}")
    each = -(-sizes.before_shift // max(len(usual), 1))
    before = [trace for domain in usual for trace in _drawn(draw, by_domain[domain], each, domain)]
    draw.shuffle(before)
    after = _drawn(draw, by_domain.get(shifted, []), sizes.after_shift, shifted)
    return Stream((*before[: sizes.before_shift], *after), sizes.before_shift)


def needed_per_domain(domains: int, sizes: Sizes, tuning: Sizes) -> int:
    """Requests of every domain that have to be recorded for streams and for tuning."""
    before = -(-sizes.before_shift // (domains - 1))
    after = sizes.after_shift
    tune = max(-(-tuning.before_shift // (domains - 1)), tuning.after_shift)
    in_stream = -(-max(before, after) * TUNING_EVERY // (TUNING_EVERY - 1))
    return max(in_stream, tune * TUNING_EVERY) + TUNING_EVERY


def _drawn(draw: random.Random, traces: Sequence[DraftTrace], count: int, domain: str) -> list[DraftTrace]:
    if len(traces) < count:
        raise SystemExit(f"domain {domain!r}: got {len(traces)} traces, expected {count}; record more of them")
    return draw.sample(list(traces), count)
