"""What became of a candidate and the figures that go with it, for the board, MLflow and people.

line_delivery.py decides. The figures beside its word are measured here, on the requests of one learning round: the
pooled accept lengths, 1 + sum(accepted) / sum(rounds), of the line before it learnt them and of the reference, and a
bootstrap interval of their difference. Prompts, not rounds or requests, are the unit of chance: rounds of one request,
and the answers to one prompt, resemble each other, so a bootstrap over them would promise too much. The pairing keeps
what makes a request easy or hard out of the difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from ..buffer.board.reason import Reason
from ..buffer.board.version import JudgedOn
from .acceptance import Tally
from .line_delivery import Delivery, Ground
from .paired import Paired, by_prompt
from .prediction import Prediction

Floats = npt.NDArray[np.float64]

#: Resamples of an interval; its ends then move by under 2 % of its width from one seed to the next.
RESAMPLES = 4_999

#: Resampled counts held at once (four arrays of this many float64), so that many requests cost time, not memory.
_BATCH_COUNTS = 1_000_000

#: An interval needs two prompts: one has no spread.
_MIN_PROMPTS = 2


class Verdict(StrEnum):
    """What becomes of a candidate; WAIT publishes none, UNJUDGED leaves the decision to the canary."""

    PROMOTE = "promote"
    REFUSE = "refuse"
    WAIT = "wait"
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The line beside the reference, on the same requests."""

    gain: float  # accept length of the line minus that of the reference
    interval: tuple[float, float]  # of the gain; (-inf, inf) with fewer than two prompts
    line_accept_length: float  # pooled, bonus token included; 1.0 without requests
    reference_accept_length: float
    requests: int  # with verify rounds of both

    @property
    def figures(self) -> dict[str, float]:
        """For a reason; none without requests."""
        if not self.requests:
            return {}
        return {
            "accept_length": self.line_accept_length,
            "reference_accept_length": self.reference_accept_length,
            "measured_requests": self.requests,
            "gain": self.gain,
            "gain_low": self.interval[0],
            "gain_high": self.interval[1],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """What becomes of a candidate, and the figures of the round that trained it."""

    verdict: Verdict
    reason: Reason
    measured: Measured | None = None  # None while waiting or unjudged, and where nothing could be measured
    judged_on: JudgedOn | None = None  # what the measured requests were
    ground: Ground | None = None  # why another version serves next, or none; None while waiting or unjudged
    reference: int | None = None  # the version that the line was compared with
    serves: int | None = None  # the version that was decided to serve next
    prediction: Prediction | None = None  # of the candidate where it serves; None: it does not, or too little is known


def judge(
    decided: Delivery,
    pairs: Sequence[Paired],
    reference: int,
    *,
    confidence: float,
    rng: np.random.Generator,
    judged_on: JudgedOn | None = None,
) -> Promotion:
    """What was decided of a candidate, with the figures of the requests `pairs`, replayed beside version `reference`.

    `judged_on` is what those that have rounds were. Draws from `rng`; changes nothing else.
    """
    measured = measure(pairs, confidence=confidence, rng=rng)
    return Promotion(
        verdict=Verdict.PROMOTE if decided.ground in {Ground.PROOF, Ground.TRUST} else Verdict.REFUSE,
        reason=decided.reason.but(confidence=confidence if measured.requests else None, **measured.figures),
        measured=measured if measured.requests else None,
        judged_on=judged_on,
        ground=decided.ground,
        reference=reference,
        serves=decided.version,
    )


def measure(pairs: Sequence[Paired], *, confidence: float, rng: np.random.Generator) -> Measured:
    """Pooled accept lengths, and the paired percentile-bootstrap interval (two-sided) of their difference.

    Requests without a round on either side do not count. Drafts that are equal everywhere have the interval (0, 0).
    """
    counts = _counts(pairs)
    lengths = _accept_length(counts[0], counts[1]), _accept_length(counts[2], counts[3])
    interval = _interval(counts, confidence, rng) if counts.shape[1] >= _MIN_PROMPTS else (-np.inf, np.inf)
    requests = sum(pair.has_rounds for pair in pairs)
    return Measured(
        gain=lengths[0] - lengths[1],
        interval=interval,
        line_accept_length=lengths[0],
        reference_accept_length=lengths[1],
        requests=requests,
    )


def _counts(pairs: Sequence[Paired]) -> Floats:
    """float64[4, N], by prompt: accepted and rounds of the line, then of the reference; pairs with rounds only."""
    sums = [
        (sum((pair.line for pair in some), Tally()), sum((pair.reference for pair in some), Tally()))
        for some in by_prompt(pairs)
    ]
    rows = [(ours.accepted, ours.rounds, theirs.accepted, theirs.rounds) for ours, theirs in sums]
    return np.array(rows, dtype=np.float64).reshape(-1, 4).T


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


def _pooled_gain(  # noqa: PLR0917 - SciPy gives the samples by place
    accepted: Floats, rounds: Floats, their_accepted: Floats, their_rounds: Floats, axis: int = -1
) -> Floats:
    ours = accepted.sum(axis=axis) / rounds.sum(axis=axis)
    theirs = their_accepted.sum(axis=axis) / their_rounds.sum(axis=axis)
    gain: Floats = ours - theirs
    return gain
