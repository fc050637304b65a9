"""What is seen of labels, sampling and drafts in two periods: the evidence for a change of accept length, in words."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .amounts import Amounts, Rounds, ServedKey
from .length_parts import MIN_ROUNDS
from .wording import draft_name, label_name, length, share

#: Below it a draft is as good as none; the alarm `silent_death` draws the line there too.
DEAD_LENGTH = 1.05


def labels_evidence(before: Amounts, now: Amounts) -> str:
    """Which labels gained and lost, and what one draft served on both."""
    return _mix(before, now, lambda key: key.label, label_name)


def sampling_evidence(before: Amounts, now: Amounts) -> str:
    """Which kinds of sampling gained and lost, and what one draft served on both."""
    return _mix(before, now, lambda key: key.kind, str)


def draft_evidence(before: Amounts, now: Amounts) -> str:
    """Which draft drafts more than before, and what it and one that drafts less served on one label.

    Of those that draft less, the one that lost most among those of which a label is known in common.
    """
    shares = _tokens(before, lambda key: key.draft), _tokens(now, lambda key: key.draft)
    gains = _gains(*shares)
    gained, _ = _most_moved(*shares)
    if gained is None:
        return f"{_named(shares[1], draft_name)} drafted in both periods"
    text = _share_text(gained, *shares, draft_name)
    both = added_cells(before, now)
    own = _known_of(both, gained)
    for lost in sorted((draft for draft in gains if gains[draft] < 0.0), key=gains.__getitem__):
        other = _known_of(both, lost)
        common = [key for key in own if key in other]
        if common:
            key = max(common, key=lambda key: own[key].tokens)
            served = f"it served {length(own[key])}, {draft_name(lost)} {length(other[key])}"
            dead = "; hardly a token of it is accepted" if own[key].accept_length < DEAD_LENGTH else ""
            return f"{text}; on {label_name(key[0])} ({key[1]}) {served}{dead}"
    return f"{text}; no label was served by both it and a draft that drafts less now"


def _known_of(cells: Mapping[ServedKey, Rounds], draft: int) -> dict[tuple[str, str], Rounds]:
    """What a draft served by label and kind of sampling, as far as it is known."""
    return {(key.label, key.kind): cell for key, cell in cells.items() if key.draft == draft and _is_known(cell)}


def stale_evidence(before: Amounts, now: Amounts) -> str:
    """The draft, label and kind of sampling that both periods know and that moved the most."""
    known = [key for key in before.served if _is_known(before.served[key]) and _is_known(now.served.get(key, Rounds()))]
    if not known:
        return "no draft served the same label and kind of sampling in both periods"
    key = max(known, key=lambda key: _moved(before.served[key], now.served[key]))
    lengths = f"{length(before.served[key])} before, {length(now.served[key])} now"
    return f"{draft_name(key.draft)} on {label_name(key.label)} ({key.kind}): {lengths}; {_targets(before, now)}"


def uncaptured_evidence(before: Amounts, now: Amounts) -> str:
    """How much of what was decoded was captured."""
    texts = (share(period.all_rounds.tokens, period.all_steps.tokens) for period in (before, now))
    return "tokens of captured requests among all that were timed: {1}, {0} before".format(*texts)


def added_cells(*periods: Amounts) -> dict[ServedKey, Rounds]:
    """What was served in all of them, by cell."""
    found: dict[ServedKey, Rounds] = {}
    for key, cell in (item for period in periods for item in period.served.items()):
        found[key] = found.get(key, Rounds()) + cell
    return found


def _mix(before: Amounts, now: Amounts, of: Callable[[ServedKey], str], name: Callable[[str], str]) -> str:
    shares = _tokens(before, of), _tokens(now, of)
    gained, lost = _most_moved(*shares)
    if gained is None or lost is None:
        return f"{_named(shares[1], name)}: as before"
    both = added_cells(before, now)
    seen = _one_draft_on_both(both, of, (lost, gained))
    text = _share_text(gained, *shares, name)
    if seen is None:
        return f"{text}; no draft served both {name(lost)} and {name(gained)}: draft and traffic cannot be told apart"
    draft, lengths = seen
    served = f"{length(lengths[0])} on {name(lost)} and {length(lengths[1])} on {name(gained)}"
    return f"{text}; {draft_name(draft)} itself served {served}"


def _one_draft_on_both(
    cells: Mapping[ServedKey, Rounds], of: Callable[[ServedKey], str], values: tuple[str, str]
) -> tuple[int, tuple[Rounds, Rounds]] | None:
    """The draft that served most of the rarer of two values, if it is known on both."""
    found = {}
    for draft in {key.draft for key in cells}:
        sides = [
            sum((cell for key, cell in cells.items() if key.draft == draft and of(key) == value), Rounds())
            for value in values
        ]
        if all(map(_is_known, sides)):
            found[draft] = (sides[0], sides[1])
    best = max(found, key=lambda draft: min(side.rounds for side in found[draft]), default=None)
    return None if best is None else (best, found[best])


def _tokens(period: Amounts, of: Callable[[ServedKey], Any]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for key, cell in period.served.items():
        found[of(key)] += cell.tokens
    return found


def _gains(before: Counter[Any], now: Counter[Any]) -> dict[Any, float]:
    return {
        value: now[value] / max(now.total(), 1) - before[value] / max(before.total(), 1) for value in {*before, *now}
    }


def _most_moved(before: Counter[Any], now: Counter[Any]) -> tuple[Any, Any]:
    """What gained the most share and what lost the most; None where no share moved by 1 %."""
    gains = _gains(before, now)
    gained = max(gains, key=gains.__getitem__, default=None)
    lost = min(gains, key=gains.__getitem__, default=None)
    if gained is None or gains[gained] < 0.01:
        return None, None
    return gained, lost


def _share_text(value: Any, before: Counter[Any], now: Counter[Any], name: Callable[[Any], str]) -> str:
    return (
        f"{name(value)} {share(now[value], now.total())} of the tokens, {share(before[value], before.total())} before"
    )


def _named(shares: Counter[Any], name: Callable[[Any], str]) -> str:
    return ", ".join(f"{name(value)} {share(count, shares.total())}" for value, count in shares.most_common(3))


def _is_known(cell: Rounds) -> bool:
    return cell.rounds >= MIN_ROUNDS


def _moved(before: Rounds, now: Rounds) -> float:
    return abs(now.accept_length - before.accept_length) * min(before.tokens, now.tokens)


def _targets(before: Amounts, now: Amounts) -> str:
    def text(versions: Iterable[str]) -> str:
        return ", ".join(sorted(versions)) or "unknown"

    if before.targets == now.targets:
        return f"the target is the same ({text(now.targets)}), so the traffic inside the label moved"
    return f"the target was {text(before.targets)} and is {text(now.targets)}"
