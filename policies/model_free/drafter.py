"""The contract of a drafter without a model, and its replay.

Its drafts depend on committed tokens alone, so they have no probabilities: the server would accept one exactly when the
target commits that token. What it commits does not depend on the drafter under any rule that keeps the target's
distribution: at temperature 0 replay gives the very rounds that would have been served, above it an unbiased count.
"""

from collections.abc import Sequence
from typing import Protocol

from ...buffer.stream.trace import DraftTrace, VerdictRule


class Drafter(Protocol):
    """Proposes the next tokens of one text at a time. What it may keep of earlier texts is bounded, and says so."""

    name: str

    def open(self, tokens: Sequence[int]) -> None:
        """Begin a text with the tokens that are known of it; the text before has ended."""
        ...

    def drafts(self, most: int) -> list[int]:
        """At most `most` tokens that may follow, fewer or none where it knows nothing."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """The text goes on with `tokens`."""
        ...


def is_replayable(trace: DraftTrace) -> bool:
    """Whether every round of the trace drafted, under a rule that keeps the target's distribution."""
    drafted = trace.rounds.drafted
    return bool(
        len(trace.rounds)
        and drafted.shape[1]
        and (drafted[:, 0] >= 0).all()
        and trace.verdict_rule is not VerdictRule.THRESHOLDS
    )


def mean_drafts(trace: DraftTrace) -> int:
    """Drafts per round of the trace, the mean as a whole number; its rounds must have drafted."""
    return round(int((trace.rounds.drafted >= 0).sum()) / len(trace.rounds))


def judged_tokens(trace: DraftTrace) -> int:
    """Tokens after the trace's first root: what its verify rounds, or any other drafter's, commit."""
    return len(trace.tokens) - 1 - int(trace.rounds.starts[0])


def rounds_needed(drafter: Drafter, trace: DraftTrace, most: int) -> int:
    """Verify rounds of `most` drafts in which `drafter` would have had `judged_tokens` committed. Changes `drafter`.

    What the server had cached of the prompt is in no trace with features; the drafter then knows less than it would
    have known there.
    """
    tokens = trace.tokens.tolist()
    at = int(trace.rounds.starts[0]) + 1
    drafter.open([*trace.prefix.tolist(), *tokens[:at]])
    rounds = 0
    while at < len(tokens):
        drafts = drafter.drafts(most)
        accepted = _common(drafts, tokens[at : at + len(drafts)])
        drafter.commit(tokens[at : at + accepted + 1])
        at += accepted + 1
        rounds += 1
    return rounds


def _common(drafts: Sequence[int], committed: Sequence[int]) -> int:
    """Length of their common beginning."""
    for place, (draft, token) in enumerate(zip(drafts, committed, strict=False)):
        if draft != token:
            return place
    return min(len(drafts), len(committed))
