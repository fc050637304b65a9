"""The timeline of report and picture: accept length stretch by stretch, and what became of the drafts."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise

from ..buffer.board.version import VersionState
from ..dashboards.tables import VersionLine
from ..policies.readings.ratio_sums import RatioSums
from ..rig.reader import Swap
from ..rig.traffic import Served

#: Requests that a stretch of accept length is pooled over, at least; a domain with fewer has one stretch of all.
STRETCH_REQUESTS = 12
#: States of drafts that did not stay in service -> their key in the timeline.
ENDS: Mapping[VersionState, str] = {VersionState.REFUSED: "refused", VersionState.ROLLED_BACK: "rolled_back"}


def timeline(
    results: Sequence[Served],
    swaps: Iterable[Swap],
    versions: Iterable[VersionLine],
    *,
    began_at: float | None = None,
) -> dict[str, object]:
    """The contents of `timeline` in --json; every time is in seconds after `began_at`, unix seconds.

    Without it, after the first request was sent: `results` then holds one at least. A draft that went live again after
    it had been refused or rolled back is no longer listed as that: the board keeps the last change of each.
    """
    if began_at is None:
        began_at = min(result.sent_at for result in results)
    lines = list(versions)
    return {
        "domains": _turns(results, began_at),
        "accept_length": _stretches(results, began_at),
        "swaps": [{"number": swap.number, "at_s": round(swap.at - began_at, 1)} for swap in swaps],
        **{name: [_end(line, began_at) for line in lines if line.state is state] for state, name in ENDS.items()},
    }


def _turns(results: Iterable[Served], began_at: float) -> list[dict[str, object]]:
    """Since when each domain was sent; empty where they took turns more than once, as traffic then turns nowhere."""
    ordered = sorted(results, key=lambda result: result.sent_at)
    turns = [(domain, next(iter(group)).sent_at) for domain, group in groupby(ordered, lambda r: r.prompt.domain)]
    if len(turns) > len({domain for domain, _ in turns}):
        return []
    return [{"domain": domain, "from_s": round(at - began_at, 1)} for domain, at in turns]


def _stretches(results: Iterable[Served], began_at: float) -> list[dict[str, object]]:
    """Requests of one domain that ended one after another; those without a verify round, which failed, are left out."""
    by_domain: dict[str, list[Served]] = {}
    for result in sorted((each for each in results if each.tally.rounds), key=lambda each: each.done_at):
        by_domain.setdefault(result.prompt.domain, []).append(result)
    return [_stretch(domain, part, began_at) for domain, ended in by_domain.items() for part in _parts(ended) if part]


def _parts(ended: Sequence[Served]) -> list[Sequence[Served]]:
    """All of them, in parts that differ by one at most."""
    count = max(1, len(ended) // STRETCH_REQUESTS)
    cuts = [len(ended) * part // count for part in range(count + 1)]
    return [ended[first:last] for first, last in pairwise(cuts)]


def _stretch(domain: str, part: Sequence[Served], began_at: float) -> dict[str, object]:
    """`at_s` is the mean of the times at which its requests ended."""
    sums = sum((RatioSums.of(int(each.tally.rounds), int(each.tally.accepted)) for each in part), RatioSums())
    at_s = sum(each.done_at for each in part) / len(part) - began_at
    low, high = sums.interval or (None, None)
    return {
        "domain": domain,
        "at_s": round(at_s, 1),
        "accept_length": _rounded(sums.accept_length),
        "low": _rounded(low),
        "high": _rounded(high),
        "requests": sums.requests,
    }


def _end(line: VersionLine, began_at: float) -> dict[str, object]:
    return {"number": line.number, "at_s": round(line.changed_at - began_at, 1), "reason": line.reason}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
