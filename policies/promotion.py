"""May a candidate draft replace the live one? Judged on the held-out requests both were replayed on.

The number compared is the pooled accept length, 1 + sum(accepted) / sum(rounds). Requests, not rounds, are the
unit of chance: rounds of one request resemble each other, so a bootstrap over rounds would promise too much.
The pairing keeps what makes a request easy or hard out of the difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from ..buffer.version import JudgedOn
from .acceptance import Tally
from .judged_on import sentence

Floats = npt.NDArray[np.float64]

#: Resamples of an interval; its ends then move by under 2 % of its width from one seed to the next.
RESAMPLES = 4_999

#: Resampled counts held at once (four arrays of this many float64), so that a large holdout costs time, not memory.
_BATCH_COUNTS = 1_000_000


class Verdict(StrEnum):
    """What the gate decides; WAIT asks for more held-out requests, UNJUDGED leaves the decision to the canary."""

    PROMOTE = "promote"
    REFUSE = "refuse"
    WAIT = "wait"
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True)
class Promotion:
    """What the gate decided, and the figures it decided on."""

    verdict: Verdict
    reason: str  # one sentence with figures, for people
    gain: float  # accept length of the candidate minus that of the live draft
    interval: tuple[float, float]  # of the gain; (-inf, inf) while waiting or unjudged
    candidate_accept_length: float  # pooled, bonus token included
    live_accept_length: float
    requests: int  # paired requests that had a verify round
    judged_on: JudgedOn | None = None  # what these requests were; None while waiting or unjudged, or not known


def judge(
    candidate: Sequence[Tally],
    live: Sequence[Tally],
    *,
    min_requests: int,
    confidence: float,
    rng: np.random.Generator,
    judged_on: JudgedOn | None = None,
) -> Promotion:
    """Compare two drafts; row i of both is the same held-out request.

    Promotes only when the lower end of the paired percentile-bootstrap interval (two-sided, `confidence`) of the
    gain is above zero. Requests without a round on either side do not count. Fewer than `min_requests` (never
    under two) leave the verdict at wait. Drafts that are equal everywhere are refused with the interval (0, 0).
    `judged_on` is what those that count were; it becomes part of the verdict and changes nothing in it.
    Draws from `rng`; changes nothing else. ValueError when the rows do not pair.
    """
    if len(candidate) != len(live):
        raise ValueError(f"paired tallies: got {len(candidate)} and {len(live)} requests, expected the same ones")
    counts = _counts(candidate, live)
    requests, needed = counts.shape[1], max(min_requests, 2)
    lengths = _accept_length(counts[0], counts[1]), _accept_length(counts[2], counts[3])
    gain = lengths[0] - lengths[1]
    if requests < needed:
        reason = f"{requests} held-out requests with verify rounds, {needed} needed: nothing is judged yet"
        return Promotion(Verdict.WAIT, reason, gain, (-np.inf, np.inf), *lengths, requests)
    low, high = _interval(counts, confidence, rng)
    verdict = Verdict.PROMOTE if low > 0 else Verdict.REFUSE
    figures = f"accept length {lengths[0]:.3f} against {lengths[1]:.3f} live on {requests} held-out requests"
    spread = f"gain {gain:+.3f}, {confidence:.0%} interval {low:+.3f} to {high:+.3f}"
    verb = "lies" if verdict is Verdict.PROMOTE else "does not lie"
    reason = f"{figures}: {spread} {verb} above zero" + (f"; {sentence(judged_on)}" if judged_on else "")
    return Promotion(verdict, reason, gain, (low, high), *lengths, requests, judged_on)


def no_judgement(verdict: Verdict, reason: str) -> Promotion:
    """WAIT or UNJUDGED, without figures."""
    return Promotion(verdict, reason, 0.0, (-np.inf, np.inf), 1.0, 1.0, 0)


def _counts(candidate: Sequence[Tally], live: Sequence[Tally]) -> Floats:
    """float64[4, N]: accepted and rounds of the candidate, then of the live draft; pairs with rounds only."""
    rows = [(c.accepted, c.rounds, o.accepted, o.rounds) for c, o in zip(candidate, live, strict=True)]
    paired = [row for row in rows if row[1] and row[3]]
    return np.array(paired, dtype=np.float64).reshape(-1, 4).T


def _accept_length(accepted: Floats, rounds: Floats) -> float:
    return 1.0 + float(accepted.sum() / rounds.sum()) if len(rounds) else 1.0


def _interval(counts: Floats, confidence: float, rng: np.random.Generator) -> tuple[float, float]:
    # Percentile, not BCa: BCa has no answer (NaN and a warning) where drafts agree on every request.
    found: Any = stats.bootstrap(
        tuple(counts),
        _pooled_gain,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, _BATCH_COUNTS // counts.shape[1]),
        confidence_level=confidence,
        method="percentile",
        rng=rng,
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _pooled_gain(
    accepted: Floats, rounds: Floats, live_accepted: Floats, live_rounds: Floats, axis: int = -1
) -> Floats:
    ours = accepted.sum(axis=axis) / rounds.sum(axis=axis)
    theirs = live_accepted.sum(axis=axis) / live_rounds.sum(axis=axis)
    gain: Floats = ours - theirs
    return gain
