"""Accept length, split into mix of labels and of sampling, the draft, what moved within, and steps chosen.

Labels are weighed by the tokens that were served, which clients ask for, and not by rounds: a draft that gets worse on
one label takes more rounds for the same tokens, and that must not read as traffic. So the mean is of rounds per token.
"""

from collections.abc import Mapping

from .amounts import Amounts, StepKey, Steps
from .levels import Key, Weighted
from .logs import log_change, split_log_change
from .parts import Part

#: Verify rounds that make the accept length of a label, a kind of sampling and a draft known; alarms ask for as many.
MIN_ROUNDS = 200
_LEVELS = (Part.LABELS, Part.SAMPLING, Part.DRAFT, Part.STALE)


def length_parts(before: Amounts, now: Amounts) -> dict[Part, float]:
    """Parts of ln(accept length); of captured requests alone without a step clock, and empty where nothing is known.

    Steps chosen: plain steps commit one token, and where drafts are shorter, fewer can be accepted. Not captured: what
    the length of all requests moved otherwise than that of the captured ones; all of it where too few are captured.
    """
    captured = _captured_parts(before, now)
    every = [_length(period.steps) for period in (before, now)]
    if not all(every):
        return captured
    drafted = [_length({key: cell for key, cell in p.steps.items() if key.draft_steps}) for p in (before, now)]
    whole = log_change(*every)
    if not all(drafted):  # one period decoded plainly
        return {Part.STEPS_LENGTH: whole}
    chosen = _steps_chosen(before, now)
    not_plain = log_change(*drafted)
    if captured:
        uncaptured = not_plain - sum(captured.values())
        captured[Part.STALE] -= chosen
    else:
        uncaptured = not_plain - chosen
    return {**captured, Part.STEPS_LENGTH: whole - not_plain + chosen, Part.UNCAPTURED: uncaptured}


def why_not_split(before: Amounts, now: Amounts) -> str:
    """Why the accept length of captured requests is not split, where it is not."""
    counts = f"{before.all_rounds.rounds} before and {now.all_rounds.rounds} now"
    return f"for too few verify rounds were captured: {counts}, of at least {MIN_ROUNDS} in each"


def _captured_parts(before: Amounts, now: Amounts) -> dict[Part, float]:
    if min(before.all_rounds.rounds, now.all_rounds.rounds) < MIN_ROUNDS:
        return {}
    logs = split_log_change(_served(before), _served(now), levels=len(_LEVELS) - 1, enough=MIN_ROUNDS)
    return {part: -log for part, log in zip(_LEVELS, logs, strict=True)}


def _served(period: Amounts) -> dict[Key, Weighted]:
    """Rounds per token, by cell."""
    return {tuple(key): Weighted(cell.tokens, cell.rounds) for key, cell in period.served.items() if cell.rounds}


def _steps_chosen(before: Amounts, now: Amounts) -> float:
    """What the mix of draft steps did to the length of drafted steps."""
    return split_log_change(_by_draft_steps(before), _by_draft_steps(now), levels=1, enough=MIN_ROUNDS)[0]


def _by_draft_steps(period: Amounts) -> dict[Key, Weighted]:
    """Tokens per request of drafted steps, by how many were drafted."""
    found: dict[Key, Weighted] = {}
    for key, cell in period.steps.items():
        if key.draft_steps and cell.requests:
            at = (key.draft_steps,)
            found[at] = found.get(at, Weighted()) + Weighted(cell.requests, cell.tokens)
    return found


def _length(steps: Mapping[StepKey, Steps]) -> float:
    """Tokens that a decode step commits for a request; 0.0 without any."""
    whole = sum(steps.values(), Steps())
    return whole.tokens / whole.requests if whole.requests else 0.0
