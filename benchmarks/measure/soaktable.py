"""A soak in Markdown: the first tenth of the swaps against the last one, and totals."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter

import numpy as np

from ...policies.acceptance import Tally
from .soaking import Sample, Soak, SwapSeen

#: First and last moment, unix seconds.
Window = tuple[float, float]


def table(soak: Soak) -> list[str]:
    """Lines of Markdown."""
    swaps = sorted(soak.swaps.values(), key=lambda swap: swap.at)
    head = ["", "| what | first tenth | last tenth | growth | per swap |", "|---|---|---|---|---|"]
    return [*head, *process_rows(soak), *swap_rows(soak, swaps), "", *totals(soak, swaps)]


def process_rows(soak: Soak) -> list[str]:
    """Memory, descriptors and threads of both processes."""
    rows = []
    first, last = tenths(soak.samples)
    apart = np.mean([sample.swaps for sample in last]) - np.mean([sample.swaps for sample in first])
    for name in ("scheduler", "courier"):
        of = attrgetter(name)
        before, after = (np.median([of(sample).rss_mib for sample in part]) for part in (first, last))
        each_kib = 1024 * (after - before) / apart
        rows.append(
            f"| {name}, resident MiB | {before:.1f} | {after:.1f} | {after - before:+.1f} | {each_kib:+.1f} KiB |"
        )
        for what in ("descriptors", "threads"):
            start, end = (int(np.median([getattr(of(sample), what) for sample in part])) for part in (first, last))
            rows.append(f"| {name}, {what} | {start} | {end} | {end - start:+d} | |")
    return rows


def swap_rows(soak: Soak, swaps: Sequence[SwapSeen]) -> list[str]:
    """What a swap cost, and the accept length."""
    tenth = max(1, len(swaps) // 10)
    parts = swaps[:tenth], swaps[-tenth:]
    written = {number: 1000.0 * seconds for number, _, seconds in soak.made}
    shown: list[tuple[str, Callable[[SwapSeen], float], str]] = [
        ("commit in the scheduler, median ms", lambda swap: swap.commit_ms, ".2f"),
        ("staging in its own thread, median ms", lambda swap: swap.stage_ms, ".1f"),
        ("register and go live on the board, median ms", lambda swap: written.get(swap.number, float("nan")), ".1f"),
    ]
    rows = []
    for name, of, form in shown:
        before, after = (float(np.nanmedian([of(swap) for swap in part])) for part in parts)
        rows.append(f"| {name} | {before:{form}} | {after:{form}} | {after - before:+{form}} | |")
    waits = [longest_waits(soak, [swap.window for swap in part]) for part in parts]
    before, after = (float(np.median(part)) for part in waits)
    rows.append(
        f"| longest wait for a token around a swap, median ms | {before:.1f} | {after:.1f} | {after - before:+.1f} | |"
    )
    share = max(1, len(soak.requests) // 10)
    lengths = [sum(part, Tally()).accept_length for part in (soak.requests[:share], soak.requests[-share:])]
    return [*rows, f"| accept length | {lengths[0]:.3f} | {lengths[1]:.3f} | {lengths[1] - lengths[0]:+.3f} | |"]


def totals(soak: Soak, swaps: Sequence[SwapSeen]) -> list[str]:
    """The whole run."""
    seconds = swaps[-1].at - swaps[0].at
    around = longest_waits(soak, [swap.window for swap in swaps])
    between = longest_waits(soak, [quiet(a, b) for a, b in pairwise(swaps) if b.window[0] > a.at])
    traces = soak.traces
    pace = f"{len(swaps)} swaps in {seconds:.0f} s, {60 * (len(swaps) - 1) / seconds:.0f} a minute"
    history = f"{soak.passed_over} versions replaced before they were swapped in; {2 * len(soak.made)} board events"
    requests = f"{len(soak.requests)} requests, {len(soak.disturbed)} failed, aborted or retracted"
    return [
        f"- {pace}; {history}",
        f"- longest wait for a token around a swap: {spread(around)}; half way between two swaps: {spread(between)}",
        f"- {requests}; {soak.unanswered} times Redis did not answer this benchmark in time",
        f"- traces captured {traces.captured}, delivered {traces.delivered}, dropped {traces.dropped}",
    ]


def spread(waits_ms: Sequence[float]) -> str:
    """Median and greatest."""
    return f"p50 {np.median(waits_ms):.1f} ms, max {max(waits_ms):.1f} ms"


def tenths(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Samples of the first and of the last tenth of the swaps; one each at least."""
    end = samples[-1].swaps
    first = [sample for sample in samples if 0 < sample.swaps <= end / 10]
    last = [sample for sample in samples if sample.swaps >= 0.9 * end]
    return first or [samples[0]], last


def quiet(swap: SwapSeen, following: SwapSeen) -> Window:
    """As long as the swap's own window, half way between it and the next one."""
    middle = (swap.at + following.window[0]) / 2
    half = (swap.at - swap.window[0]) / 2
    return middle - half, middle + half


def longest_waits(soak: Soak, windows: Sequence[Window]) -> list[float]:
    """Milliseconds, of every window in which a request streamed."""
    waits = np.concatenate(soak.waits)
    waits = waits[np.argsort(waits[:, 0])]
    reach = float((waits[:, 1] - waits[:, 0]).max())  # a wait that touches a window begins at most this long before it
    found = []
    for first, last in windows:
        low, high = np.searchsorted(waits[:, 0], (first - reach, last), side="right")
        near = waits[low:high]
        near = near[near[:, 1] >= first]
        found += [1000.0 * float((near[:, 1] - near[:, 0]).max())] if len(near) else []
    return found or [float("nan")]
