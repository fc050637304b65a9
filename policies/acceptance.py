"""Accepted length, served and replayed: how many drafts were accepted per verify round.

`runs` everywhere is int32[T] over the tokens of one trace: runs[s] says how many drafts of a round rooted at
tokens[s] would be accepted, capped by the tokens after s; -1 where the trace has no feature to draft from.

Why runs suffice: under a rule that decides by equality (VerdictRule) the server accepts a draft exactly when it equals
the token it commits, so what any drafter would have had accepted can be read off the committed tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..buffer.stream.trace import NO_DRAFT, DraftTrace, Int32s, no_tokens


@dataclass(frozen=True, slots=True)
class Tally:
    """Accepted drafts and the rounds they came from; tallies add up, lengths do not.

    Counted ones are whole numbers, expected ones (rejection.py) are not.
    """

    accepted: float = 0
    rounds: float = 0

    @property
    def accept_length(self) -> float:
        """Tokens per round as SGLang reports them, bonus token included: 1 + accepted / rounds; 1.0 without rounds."""
        return 1.0 + self.accepted / self.rounds if self.rounds else 1.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.accepted + other.accepted, self.rounds + other.rounds)


def walk(runs: Int32s, first_root: int, last_root: int) -> tuple[Int32s, Int32s]:
    """Serve along the committed text; return the roots and the accepted drafts of every round, both int32.

    A round at root s has runs[s] drafts accepted, and the next root is s + runs[s] + 1. Ends after
    `last_root`, or before a root that cannot be drafted from (runs of -1).
    """
    starts = []
    accepted = []
    run_at = runs.tolist()
    root = first_root
    while root <= last_root and run_at[root] >= 0:
        starts.append(root)
        accepted.append(run_at[root])
        root += run_at[root] + 1
    return np.array(starts, np.int32), np.array(accepted, np.int32)


def served_tally(trace: DraftTrace) -> Tally:
    """What the server accepted in this trace window, over rounds that drafted; drafts past its end are included."""
    return Tally(int(trace.rounds.accepted.sum()), int((proposed_drafts(trace) > 0).sum()))


def served_by_request(traces: Sequence[DraftTrace]) -> list[Tally]:
    """What was accepted of each request, in the order their first traces come."""
    tallies: dict[str, Tally] = {}
    for trace in traces:
        tallies[trace.request_id] = tallies.get(trace.request_id, Tally()) + served_tally(trace)
    return list(tallies.values())


def proposed_drafts(trace: DraftTrace) -> Int32s:
    """Drafts of every round, int32[R]; 0 in a round of plain decoding."""
    proposed: Int32s = (trace.rounds.drafted != NO_DRAFT).sum(axis=1, dtype=np.int32)
    return proposed


def replayed_tally(trace: DraftTrace, runs: Int32s) -> Tally:
    """What the drafter of `runs` would have had accepted from the trace's first round on.

    Empty when the trace recorded no round that can be drafted from.
    """
    accepted = replayed_rounds(trace, runs)
    return Tally(int(accepted.sum()), len(accepted))


def replayed_rounds(trace: DraftTrace, runs: Int32s) -> Int32s:
    """Accepted drafts of every round of that walk, int32[R].

    Starts at the first recorded root that can be drafted from and counts rounds with a token after them.
    """
    roots = trace.rounds.starts[runs[trace.rounds.starts] >= 0]
    if not len(roots):
        return np.zeros(0, np.int32)
    _, accepted = walk(runs, int(roots[0]), len(trace.tokens) - 2)
    return accepted


def identity(trace: DraftTrace, runs: Int32s) -> tuple[int, int]:
    """Rounds whose replay gives the served length, and rounds compared; the two are equal when replay is exact.

    `runs` must come from the weights that served the trace, replayed with at least as many steps as the
    server drafted. Nothing is compared unless the trace is `replay_exact`, nor under a rule that does not decide by
    equality with the committed token; rounds without drafts show nothing either.
    """
    replayed, served = replayed_and_served(trace, runs)
    return int((replayed == served).sum()), len(served)


def replayed_and_served(trace: DraftTrace, runs: Int32s) -> tuple[Int32s, Int32s]:
    """Accepted drafts of the rounds that `identity` compares: of the replay, and when served. int32[R] both."""
    if not trace.replay_exact or not trace.verdict_rule.decides_by_equality:
        return no_tokens(), no_tokens()
    replayed = runs[trace.rounds.starts]
    proposed = proposed_drafts(trace)
    compared = (replayed >= 0) & (proposed > 0)
    # Of a tree what was kept says nothing about its depth.
    capped = np.minimum(replayed, proposed) if trace.tree is None else replayed
    return capped[compared], trace.visible_accepted()[compared]
