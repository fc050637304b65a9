"""The tables of the bench as Markdown."""

from collections.abc import Iterable, Sequence

from .arms import MEANING, PACELINE, PLAIN, STATIC
from .figures import PHASES, RECOVERED, accepted, break_even, differing, has_holds, speed, token_ms
from .recorded import Run

UNKNOWN = "-"


def markdown(command: str, runs: Sequence[Run]) -> str:
    """All tables of runs made under equal conditions but their seeds; at least one run, each with a block."""
    parts = [
        _heading(command, runs),
        "## Tokens per second over a server without a draft",
        *(_speeds(runs, phase) for phase in PHASES),
        "## paceline over the first draft alone",
        _over_static(runs),
        "## Time per token",
        _times(runs),
        "## Accept length",
        _accept_lengths(runs),
        "## When the learner has paid for itself",
        _break_even(runs),
        "## Lossless",
        lossless(runs),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def lossless(runs: Sequence[Run]) -> str:
    """How many answers are those of the server without a draft, and the first that are not."""
    wrong, compared = differing(runs)
    named = f"; others: {', '.join(wrong[:5])}" if wrong else ""
    return f"{compared - len(wrong)} of {compared} answers have every token of the server without a draft{named}."


def _heading(command: str, runs: Sequence[Run]) -> str:
    run = runs[0]
    known = run.conditions
    chunks = sorted({(block.chunk, block.domain) for block in run.blocks})
    domains = ", ".join(f"{n} of {name}" for name, n in _counts(domain for _, domain in chunks).items())
    code = ", ".join(sorted({each.conditions.commit for each in runs}))
    return (
        f"# Serving speed, learner {known.mode}\n\n`{command}`\n\n"
        f"{len(runs)} run(s) of {len(chunks)} chunks ({domains}), {known.max_tokens} tokens per answer; "
        f"target {known.target} deepened to {known.layers} layers; code {code}; "
        f"{', '.join(f'{name} {value}' for name, value in known.machine.items())}.\n\n"
        "Ratios are of blocks asked of all servers one after the other in random order: geometric means with 95 % "
        "t-intervals over blocks."
    )


def _speeds(runs: Sequence[Run], phase: str) -> str:
    arms = [arm for arm in runs[0].conditions.arms if arm != PLAIN]
    rows = [
        [arm, MEANING[arm], *(_ratio(runs, arm, PLAIN, concurrency=c, phase=phase) for c in _concurrencies(runs))]
        for arm in arms
    ]
    return f"{phase}:\n\n{_table(['arm', 'what it is', *_at(runs)], rows)}"


def _over_static(runs: Sequence[Run]) -> str:
    rows = [
        [phase, *(_ratio(runs, PACELINE, STATIC, concurrency=c, phase=phase) for c in _concurrencies(runs))]
        for phase in PHASES
    ]
    return _table(["phase", *_at(runs)], rows)


def _times(runs: Sequence[Run]) -> str:
    rows = [
        [arm, *(_p50_p99(token_ms(runs, arm, concurrency, RECOVERED)) for concurrency in _concurrencies(runs))]
        for arm in runs[0].conditions.arms
    ]
    said = f"Milliseconds {RECOVERED}, p50 / p99 over tokens; the tokens of a chunk share the wait for it equally."
    return f"{said}\n\n{_table(['arm', *_at(runs)], rows)}"


def _accept_lengths(runs: Sequence[Run]) -> str:
    rows = []
    for arm in runs[0].conditions.arms:
        if arm != PLAIN:
            tallies = [accepted(runs, arm, phase) for phase in PHASES]
            rows.append([arm, *(f"{tally.accept_length:.2f}" if tally.rounds else UNKNOWN for tally in tallies)])
    said = "Tokens per verify round, all concurrencies together; a paced arm drafts as much as pays, which may be none."
    return f"{said}\n\n{_table(['arm', *PHASES], rows)}"


def _break_even(runs: Sequence[Run]) -> str:
    held = [run for run in runs if has_holds(run)]
    if not held:
        return "The learner shared the cores: what it took is in the tokens per second."
    rows = []
    for run in held:
        for concurrency in run.concurrencies:
            found = break_even(run, concurrency)
            at = UNKNOWN if found.requests is None else f"{found.requests} requests, {found.seconds:.0f} s"
            rest = UNKNOWN if found.expected_requests is None else f"{found.expected_requests:.0f} requests"
            sums = f"{found.saved_s:.0f} s", f"{found.spent_s:.0f} s"
            rows.append([str(run.conditions.seed), str(concurrency), *sums, at, rest])
    heads = ["seed", "concurrency", "saved over static", "the learner took", "paid for after", "else expected after"]
    return _table(heads, rows)


def _ratio(runs: Sequence[Run], arm: str, over: str, *, concurrency: int, phase: str) -> str:
    found = speed(runs, arm, over, concurrency=concurrency, phase=phase)
    if found is None:
        return UNKNOWN
    low, high = found.interval
    return f"{found.mean:.2f}" + (f" ({low:.2f} .. {high:.2f})" if found.pairs > 1 else " (one block)")


def _p50_p99(found: tuple[float, float] | None) -> str:
    return UNKNOWN if found is None else f"{found[0]:.1f} / {found[1]:.1f}"


def _concurrencies(runs: Sequence[Run]) -> list[int]:
    return sorted({concurrency for run in runs for concurrency in run.concurrencies})


def _at(runs: Sequence[Run]) -> list[str]:
    return [f"concurrency {concurrency}" for concurrency in _concurrencies(runs)]


def _counts(names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
