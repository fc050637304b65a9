"""What a verdict was judged on: how many requests, how old, of which labels, beside the newest traffic.

A verdict on old requests, or on others than are served now, says little of what a draft will do next. However the
requests were chosen, this says what they were.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..buffer.board.version import OTHER_LABELS, JudgedOn
from ..buffer.stream.trace import DraftTrace

#: Labels counted by name; a client may invent any number, and a version is on the board for ever.
MAX_LABELS = 6
#: Requests that stand for the newest traffic, at most.
NEWEST_REQUESTS = 200


def judged_on(judged: Sequence[DraftTrace], newest: Sequence[DraftTrace], now_s: float) -> JudgedOn:
    """Count the requests of `judged`, and of `newest`, the newest traffic, oldest first; `now_s` is unix seconds.

    Of the newest traffic NEWEST_REQUESTS count: more would hide that it has just moved.
    A request is as old as the first of its traces. A trace without a time, or of a time after `now_s`, has no known
    age. Of the labels of both the MAX_LABELS most frequent are counted by name.
    """
    labels = _by_label(judged)
    newest_labels = _by_label(_latest(newest))
    frequent = sorted((labels + newest_labels).items(), key=lambda pair: (-pair[1], pair[0]))
    named = {"", *[label for label, _ in frequent if label][:MAX_LABELS]}
    ages_s = _ages_s(judged, now_s)
    known_s = [age_s for age_s in ages_s if age_s is not None]
    return JudgedOn(
        labels=_pooled(labels, named),
        newest_labels=_pooled(newest_labels, named),
        median_age_s=statistics.median(known_s) if known_s else None,
        oldest_age_s=max(known_s, default=None),
        undated=len(ages_s) - len(known_s),
        targets=_by_target(judged),
        drafts=_by_draft(judged),
    )


def sentence(judged: JudgedOn) -> str:
    """`judged` for people; "unknown" stands for every age and label that is not known."""
    text = f"judged on {judged.requests} requests, {_age_text(judged)}, {_label_text(judged)}"
    return f"{text}{_target_text(judged)}"


def figures(judged: JudgedOn) -> dict[str, float]:
    """The numbers of `judged`, without those that are not known."""
    found = {
        "judged_requests": float(judged.requests),
        "judged_median_age_s": judged.median_age_s,
        "judged_oldest_age_s": judged.oldest_age_s,
    }
    return {name: number for name, number in found.items() if number is not None}


def shown_label(label: str) -> str:
    """The label as people read it."""
    return {"": "unknown", OTHER_LABELS: "others"}.get(label, label)


def _latest(newest: Sequence[DraftTrace]) -> list[DraftTrace]:
    """The traces of the last NEWEST_REQUESTS requests."""
    latest = {*list(dict.fromkeys(trace.request_id for trace in reversed(newest)))[:NEWEST_REQUESTS]}
    return [trace for trace in newest if trace.request_id in latest]


def _by_label(traces: Iterable[DraftTrace]) -> Counter[str]:
    return Counter({trace.request_id: trace.label for trace in traces}.values())


def _by_target(traces: Iterable[DraftTrace]) -> dict[str, int]:
    """Requests by target version, in the order these come; one that went on over an update counts for each."""
    return dict(Counter(version for _, version in dict.fromkeys((t.request_id, t.target_version) for t in traces)))


def _by_draft(traces: Iterable[DraftTrace]) -> dict[int, int]:
    """Requests by the version that drafted them, newest first; one that went on over a swap counts for each."""
    counts = Counter(version for _, version in {(trace.request_id, trace.draft_version) for trace in traces})
    return dict(sorted(counts.items(), reverse=True))


def _pooled(counts: Mapping[str, int], named: set[str]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for label, count in counts.items():
        found[label if label in named else OTHER_LABELS] += count
    return dict(found)


def _ages_s(traces: Iterable[DraftTrace], now_s: float) -> list[float | None]:
    """Age of every request; None where no trace of it has a time that may be true."""
    ages: dict[str, float | None] = {}
    for trace in traces:
        known = math.isfinite(trace.born_at) and 0.0 < trace.born_at <= now_s
        before = ages.get(trace.request_id)
        ages[trace.request_id] = max(now_s - trace.born_at, before or 0.0) if known else before
    return list(ages.values())


def _age_text(judged: JudgedOn) -> str:
    if judged.median_age_s is None or judged.oldest_age_s is None:
        return "age unknown"
    text = f"median age {judged.median_age_s:.0f} s, oldest {judged.oldest_age_s:.0f} s"
    return f"{text}, {judged.undated} of unknown age" if judged.undated else text


def _label_text(judged: JudgedOn) -> str:
    """Shares of the judged requests, the largest first, each with that of the newest traffic."""
    ours = judged.labels
    newest = judged.newest_labels
    found = sorted({*ours, *newest}, key=lambda label: (-ours.get(label, 0), -newest.get(label, 0), label))
    if not set(found) - {""}:
        return "labels unknown"
    shares = (f"{shown_label(label)} {_share(ours, label)} ({_share(newest, label)})" for label in found)
    return f"labels and in brackets those of the newest traffic: {', '.join(shares)}"


def _target_text(judged: JudgedOn) -> str:
    """The versions of the target that verified the requests, with their numbers where there are several."""
    if len(judged.targets) <= 1:
        return "".join(f", target version {version}" for version in judged.targets)
    counts = (f"{version} ({requests})" for version, requests in judged.targets.items())
    return f", target versions and in brackets their requests: {', '.join(counts)}"


def _share(counts: Mapping[str, int], label: str) -> str:
    total = sum(counts.values())
    count = counts.get(label, 0)
    if not total:
        return "unknown"
    return "<1%" if 0 < count < total / 100 else f"{count / total:.0%}"
