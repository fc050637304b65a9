"""The answer in a few sentences: faster or slower, the first cause, whether it was a swap, what the gate refused."""

import math
from collections.abc import Iterable, Mapping

from ....buffer.board.version import BoardRow, VersionState
from ..definitions import Reading
from .explanation import Effect, Explanation, Finding
from .parts import Cause, Factor, factor_of, parts_of
from .wording import label_name, share, times

_OF_LENGTH = {cause for cause in Cause if all(factor_of(part) is Factor.ACCEPT_LENGTH for part in parts_of(cause))}


def answer(found: Explanation, rows: Mapping[int, BoardRow], plain_before: Reading, plain_now: Reading) -> list[str]:
    """Sentences, the most important first.

    `rows` are the board's versions by number; the two readings are the speed over plain decoding in the two periods.
    """
    if found.request_speed is None:
        return ["Why serving is faster or slower cannot be told.", *found.unknown]
    sentences = [_speed(found, found.request_speed) + _over_plain(plain_before, plain_now), *_replicas(found)]
    first = found.first
    if first is None:
        return [*sentences, *_nothing(found.likeliest)]
    sentences += [_first(first, found), *_length(first, found), f"{first.evidence}."]
    sentences += _not_the_swap(first, found)
    refused = _refused(rows.values(), found)
    remedy = [f"What would change it: {_remedy(first, refused)}"] if first.effect.log < 0.0 else []
    return [*sentences, *refused, *remedy]


def _speed(found: Explanation, speed: Effect) -> str:
    word = "As fast as before, as far as can be told" if speed.is_noise else "Faster" if speed.log > 0.0 else "Slower"
    now = found.now
    before = found.before
    rates = [period.amounts.request_tokens_per_second for period in (now, before)]
    if found.total is None or rates[0] is None or rates[1] is None:
        lengths = [f"{period.amounts.all_rounds.accept_length:.2f} {period.name}" for period in (now, before)]
        text = f"{word}: accept length {lengths[0]}, {lengths[1]} ({_factor(speed)})"
        return f"{text}; of step times too little is known."
    text = f"{word}: a request gets {rates[0]:.1f} tokens per second {now.name}, {rates[1]:.1f} {before.name}"
    totals = [f"{period.amounts.tokens_per_second:.0f}" for period in (now, before)]
    served = f"a replica serves {totals[0]} tokens per second in all, {totals[1]} before"
    return f"{text} ({_factor(speed)}); {served} ({_factor(found.total)})."


def _replicas(found: Explanation) -> list[str]:
    """Where not the same replicas served, since all figures are of one replica."""
    before, now = (period.amounts.replicas for period in (found.before, found.now))
    if before == now:
        return []
    return [f"Not the same replicas served: {_listed(now - before)} joined, {_listed(before - now)} left."]


def _listed(members: frozenset[str]) -> str:
    return ", ".join(sorted(members)) or "none"


def _over_plain(before: Reading, now: Reading) -> str:
    """Nothing where it is unknown: that is said with its reason among what cannot be told."""
    if now.value is None:
        return ""
    bounds = "" if now.low is None or now.high is None else f" ({now.low:.2f} .. {now.high:.2f})"
    earlier = "" if before.value is None else f", {before.value:.2f} times before"
    lose = "; drafts cost more than they save" if (now.high or now.value) < 1.0 else ""
    return f" That is {now.value:.2f}{bounds} times the speed of plain decoding{earlier}{lose}."


def _factor(effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return f"{times(effect.log)}, no interval: too few entries of history"
    return f"{times(effect.log)}, 95 % {math.exp(effect.low):.2f} .. {math.exp(effect.high):.2f}"


def _first(first: Finding, found: Explanation) -> str:
    part = "" if first.share is None else f", {first.share:.0%} of the change".replace("%", " %")
    others = sum(not finding.effect.is_noise for finding in found.findings) - 1
    further = f"; {others} more below" if others else ""
    return f"First cause: {first.cause}, {times(first.effect.log)}{part}{further}."


def _nothing(likeliest: Finding | None) -> list[str]:
    if likeliest is None:
        return ["Nothing stands out: no cause contributes more than the noise."]
    sure = f"No cause is certain. Likeliest: {likeliest.cause}, {_factor(likeliest.effect)} by itself."
    return [sure, f"{likeliest.evidence}."]


def _length(first: Finding, found: Explanation) -> list[str]:
    if first.cause not in _OF_LENGTH:
        return []
    lengths = [period.amounts.all_rounds.accept_length for period in (found.before, found.now)]
    return [f"Accept length {lengths[0]:.2f} before, {lengths[1]:.2f} now."]


def _not_the_swap(first: Finding, found: Explanation) -> list[str]:
    """Where another draft drafts now and it is not to blame, that is said: it is what people suspect first."""
    drafts = [{key.draft for key in period.amounts.served} for period in (found.before, found.now)]
    swap = next((finding for finding in found.findings if finding.cause is Cause.DRAFT), None)
    if first.cause not in _OF_LENGTH or drafts[0] == drafts[1] or swap is None or not swap.effect.is_noise:
        return []
    return [f"Not the swap ({times(swap.effect.log)}, below the noise)."]


def _refused(rows: Iterable[BoardRow], found: Explanation) -> list[str]:
    """Candidates refused since the compared time began, and how much of the newest traffic's main label judged them."""
    since_s = found.before.began_s
    until_s = found.now.ended_s
    refused = [row for row in rows if row.state is VersionState.REFUSED and since_s <= row.changed_at <= until_s]
    if not refused:
        return []
    count = f"{len(refused)} candidate{'s' if len(refused) > 1 else ''} refused since"
    judged = max(refused, key=lambda row: row.changed_at).version.judged_on
    newest = judged.newest_labels if judged else {}
    if judged is None or not newest:
        return [f"{count}; what judged them is unknown."]
    label = max(newest, key=lambda name: newest[name])
    shares = share(judged.labels.get(label, 0), judged.requests), share(newest[label], sum(newest.values()))
    return [f"{count}: the gate's requests were {shares[0]} {label_name(label)}, the newest traffic {shares[1]}."]


def _remedy(first: Finding, refused: list[str]) -> str:
    if refused and first.cause in {Cause.LABELS, Cause.STALE}:
        return "a gate that judges on traffic as young as the change, or `paceline promote` of a refused draft."
    return first.remedy[0].lower() + first.remedy[1:]
