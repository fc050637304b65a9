"""Rejection sampling: how many drafts of any draft would have been accepted on recorded text, without bias.

The server draws x ~ q and accepts it with min(1, p(x) / q(x)), else it commits a draw from max(p - q, 0) instead. So a
token x is accepted with the chance q(x) min(1, p(x) / q(x)) = min(p(x), q(x)), and committed, accepted or not, with
p(x) whatever q is. For a draft q that served the recorded text, or any other:

1. P(accepted | x committed) = min(p, q)(x) / p(x) = min(1, q(x) / p(x)), given that the chain got as far as x;
2. along a chain the factors multiply: over x ~ p the mean of prod min(1, q / p) is the sum over all drafted paths of
   prod q min(1, p / q), the chance that so many drafts are accepted, since the p of the text cancels in every factor;
3. so the text alone says with which chance a round ends where, and with it where the next begins: `expected_walk`.

With chances of 0 and 1, that is `acceptance.walk`. The drafts before position i of a chain are the committed tokens, so
q is what the draft gives along the recorded text, at the temperature that SGLang's draft samples at: the request's own.

Axes: T tokens, S drafts per round, R recorded rounds, N nodes of a round.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..buffer.stream.trace import DraftTrace, Float32s, VerdictRule
from .acceptance import Tally, proposed_drafts

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EstimatedRounds:
    """Served verify rounds beside what was to be expected of the draft that served them; adds up over traces."""

    rounds: int = 0
    accepted: int = 0  # as served, as far as the trace shows it
    expected: float = 0.0  # of the same rounds, given their text
    variance: float = 0.0  # of `accepted` about it: what the server's coins make of the same text

    def __add__(self, other: "EstimatedRounds") -> "EstimatedRounds":
        return EstimatedRounds(
            self.rounds + other.rounds,
            self.accepted + other.accepted,
            self.expected + other.expected,
            self.variance + other.variance,
        )


def why_not_estimated(trace: DraftTrace) -> str:
    """Why this trace does not tell what another draft would have had accepted under `rejection`; empty where it does.

    Left out are requests whose logits were edited, which no draft is told of, and traces without the target's chance
    of every token that a verify round committed: SGLang does not hand out what top-k or top-p left of it. That of a
    round without drafts may be missing, and no chain goes over its token.
    """
    if trace.verdict_rule is not VerdictRule.REJECTION:
        return f"got the rule {trace.verdict_rule.value}"
    if trace.sampling.edited:
        return "edited logits"
    is_known_T = np.isfinite(target_logprobs(trace))
    is_needed_T = np.zeros(len(is_known_T), np.bool_)
    if len(trace.rounds):
        is_needed_T[int(trace.rounds.starts[0]) + 1 :] = True
        is_needed_T[[at for _, at in _undrafted(trace)]] = False
    is_told = trace.sampling.temperature > 0.0 and bool(is_known_T[is_needed_T].all())
    return "" if is_told else "target's chances not recorded"


def target_logprobs(trace: DraftTrace) -> Float32s:
    """Natural logarithm of the chance that the target gave each token, float32[T]; NaN where it was not recorded."""
    found_T = np.full(len(trace.tokens), np.nan, np.float32)
    chances_RN2 = trace.rounds.committed_logprobs
    if chances_RN2 is None:
        return found_T
    depth_N = np.arange(chances_RN2.shape[1])
    judged_RN = trace.rounds.starts[:, None] + 1 + depth_N
    is_committed_RN = (depth_N <= trace.rounds.accepted[:, None]) & (judged_RN < len(trace.tokens))
    found_T[judged_RN[is_committed_RN]] = chances_RN2[..., 0][is_committed_RN]
    return found_T


def expected_tally(trace: DraftTrace, logq_TS: Float32s) -> Tally:
    """What the draft of `logq_TS` is expected to have had accepted from the trace's first round on; no whole numbers.

    `logq_TS[s, j]` is log q of tokens[s + 1 + j] as draft j of a round rooted at tokens[s], NaN where there is no such
    token or no feature to draft from. Counts rounds as `acceptance.replayed_tally` does; a token of which the target's
    chance is not known ends the text, and after it another one begins. Only for a trace of which `why_not_estimated` is
    empty.
    """
    can_draft_T = _can_draft(logq_TS)
    logp_T = target_logprobs(trace)
    roots = trace.rounds.starts[can_draft_T[trace.rounds.starts]]
    if not len(roots):
        return Tally()
    first = int(roots[0])
    beyond = np.flatnonzero(~can_draft_T[first:])
    last = first + int(beyond[0]) - 1 if len(beyond) else len(trace.tokens) - 2
    chances_TS = accept_chances(logq_TS, logp_T)
    walked = np.flatnonzero(np.isfinite(logp_T[first + 1 : last + 2])) + first  # roots followed by a known token
    texts = np.split(walked, np.flatnonzero(np.diff(walked) > 1) + 1)
    return sum((expected_walk(chances_TS, int(text[0]), int(text[-1])) for text in texts if len(text)), Tally())


def served_beside_expected(trace: DraftTrace, logq_TS: Float32s) -> EstimatedRounds:
    """The rounds that served the trace, beside what the draft of `logq_TS` would have had accepted in each of them.

    Where that is the draft that served, the two differ by chance alone. `logq_TS` as for `expected_tally`, with at
    least as many steps as the server drafted. Rounds without drafts, or without a feature to draft from, are left out,
    and so are as many rounds as there are steps before a token of which the target's chance is not known: their drafts
    may reach it. However many of these were accepted they are left out, or those that remain would have been chosen by
    their luck.
    """
    logp_T = target_logprobs(trace)
    proposed_R = proposed_drafts(trace)
    chances_TS = accept_chances(logq_TS, logp_T)
    is_compared_R = (proposed_R > 0) & _can_draft(logq_TS)[trace.rounds.starts]
    for round_, at in _undrafted(trace):
        if np.isnan(logp_T[at]):
            is_compared_R[max(round_ - logq_TS.shape[1], 0) : round_] = False
    is_proposed_RS = np.arange(logq_TS.shape[1]) < proposed_R[:, None]
    survives_RS = (chances_TS[trace.rounds.starts] * is_proposed_RS).cumprod(axis=1)[is_compared_R]
    means_R = survives_RS.sum(axis=1)
    # E[k^2] is the sum of P(k >= j) (2 j - 1) over j.
    squares_R = survives_RS @ (2.0 * np.arange(logq_TS.shape[1]) + 1.0)
    accepted = int(trace.visible_accepted()[is_compared_R].sum())
    variance = float((squares_R - means_R**2).sum())
    return EstimatedRounds(int(is_compared_R.sum()), accepted, float(means_R.sum()), variance)


def accept_chances(logq_TS: Float32s, logp_T: Float32s) -> Floats:
    """min(1, q / p) of every draft of every round, float64[T, S], given that those before it were accepted.

    0 where either is NaN: no chain goes on there.
    """
    at_TS = np.arange(len(logp_T))[:, None] + 1 + np.arange(logq_TS.shape[1])
    logp_TS = np.where(at_TS < len(logp_T), logp_T[np.minimum(at_TS, len(logp_T) - 1)], np.nan)
    is_known_TS = ~np.isnan(logq_TS) & ~np.isnan(logp_TS)
    log_ratios_TS = np.subtract(logq_TS, logp_TS, where=is_known_TS, out=np.full(logq_TS.shape, -np.inf))
    chances_TS: Floats = np.exp(np.minimum(log_ratios_TS, 0.0))
    return chances_TS


def expected_walk(chances_TS: Floats, first_root: int, last_root: int) -> Tally:
    """Serve along the committed text in expectation: accepted drafts and rounds with roots up to `last_root`.

    A round at root s has exactly k drafts accepted with the chance that the first k are and draft k + 1 is not; the
    next root is s + k + 1. Every root counts with the chance that a round begins there.
    """
    survives_TS = chances_TS.cumprod(axis=1)
    steps = chances_TS.shape[1]
    ends_TK = -np.diff(survives_TS, axis=1, prepend=1.0, append=0.0)
    begins_T = np.zeros(len(chances_TS) + steps + 1)
    begins_T[first_root] = 1.0
    for root in range(first_root, last_root + 1):
        begins_T[root + 1 : root + steps + 2] += begins_T[root] * ends_TK[root]
    roots = slice(first_root, last_root + 1)
    return Tally(float(begins_T[roots] @ survives_TS[roots].sum(axis=1)), float(begins_T[roots].sum()))


def _undrafted(trace: DraftTrace) -> list[tuple[int, int]]:
    """Every round without drafts, and which of the trace's tokens it committed."""
    starts = trace.rounds.starts
    rounds = np.flatnonzero(proposed_drafts(trace) == 0)
    return [(int(each), int(starts[each]) + 1) for each in rounds if starts[each] + 1 < len(trace.tokens)]


def _can_draft(logq_TS: Float32s) -> npt.NDArray[np.bool_]:
    """bool[T]: whether a round rooted at the token drafts one that the text shows."""
    return ~np.isnan(logq_TS[:, 0])
