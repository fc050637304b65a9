"""What becomes of a candidate, with the figures of its round: lengths, their interval, and what is not known."""

from itertools import product

import numpy as np
import pytest
from paceline.buffer.board.reason import ReasonCode, because
from paceline.policies.acceptance import Tally
from paceline.policies.line_delivery import Delivery, DeliveryRules, Ground, LineDelivery
from paceline.policies.paired import Paired
from paceline.policies.promotion import Measured, Verdict, judge, measure

CONFIDENCE = 0.9


def pairs_of(line: list[Tally], reference: list[Tally]) -> list[Paired]:
    return [Paired("", *both) for both in zip(line, reference, strict=True)]


def compare(line: list[Tally], reference: list[Tally], seed: int = 0) -> Measured:
    return measure(pairs_of(line, reference), confidence=CONFIDENCE, rng=np.random.default_rng(seed))


DECIDED = because(ReasonCode.PROVEN, odds=12.0)


def decided(ground: Ground) -> Delivery:
    verdict = LineDelivery(DeliveryRules(), 0).decide(1, 0, is_ruined=False).verdict
    return Delivery(1, ground, DECIDED, verdict)


def tallies(*pairs: tuple[int, int]) -> list[Tally]:
    return [Tally(*pair) for pair in pairs]


def every_resample(candidate: list[Tally], live: list[Tally]) -> list[float]:
    """Gains over all n ** n ways to draw n requests with replacement, the same requests for both drafts."""
    gains = []
    for drawn in product(range(len(candidate)), repeat=len(candidate)):
        ours, theirs = Tally(), Tally()
        for i in drawn:
            ours, theirs = ours + candidate[i], theirs + live[i]
        gains.append(ours.accept_length - theirs.accept_length)
    return gains


@pytest.mark.parametrize(
    ("candidate", "live"),
    [
        (tallies((9, 3), (4, 4), (8, 5)), tallies((6, 4), (3, 5), (9, 5))),
        (tallies((9, 3), (14, 5), (8, 4), (3, 3)), tallies((1, 6), (2, 9), (3, 7), (2, 4))),
        (tallies((0, 5), (2, 6), (1, 7), (4, 5), (3, 9)), tallies((1, 5), (5, 5), (1, 6), (4, 6), (2, 9))),
    ],
)
def test_the_interval_is_that_of_all_resamples(candidate: list[Tally], live: list[Tally]) -> None:
    gains = np.sort(every_resample(candidate, live))
    low, high = compare(candidate, live).interval
    # A share of the resamples, not a value: with few requests the gains lie far apart.
    for end, share in ((low, 0.05), (high, 0.95)):
        below, up_to = np.mean(gains < end - 1e-9), np.mean(gains <= end + 1e-9)
        assert below - 0.02 <= share <= up_to + 0.02


@pytest.mark.parametrize(
    ("ground", "verdict"),
    [
        (Ground.PROOF, Verdict.PROMOTE),
        (Ground.TRUST, Verdict.PROMOTE),
        (Ground.NOTHING_YET, Verdict.REFUSE),
        (Ground.RUINED, Verdict.REFUSE),
        (Ground.HARM, Verdict.REFUSE),
    ],
)
def test_the_verdict_is_that_of_the_delivery_with_the_figures_of_the_round(ground: Ground, verdict: Verdict) -> None:
    pairs = pairs_of(tallies(*[(20, 10)] * 12), tallies(*[(10, 12)] * 12))
    promotion = judge(decided(ground), pairs, 7, confidence=CONFIDENCE, rng=np.random.default_rng(0))
    assert (promotion.verdict, promotion.ground, promotion.reference, promotion.serves) == (verdict, ground, 7, 1)
    measured = promotion.measured
    assert (measured.line_accept_length, measured.reference_accept_length) == (3.0, 1.0 + 10 / 12)
    assert measured.gain == pytest.approx(2.0 - 10 / 12)
    assert measured.interval == pytest.approx((measured.gain, measured.gain))
    assert promotion.reason == DECIDED.but(confidence=CONFIDENCE, **measured.figures)
    assert promotion.reason.figures["measured_requests"] == 12


@pytest.mark.parametrize(
    ("rows", "told"), [([], {}), ([(0, 0)] * 9, {}), ([(5, 2)], {"accept_length": 3.5, "measured_requests": 1})]
)
def test_what_could_not_be_measured_is_not_told(rows: list[tuple[int, int]], told: dict[str, float]) -> None:
    pairs = pairs_of(tallies(*rows), tallies(*rows))
    promotion = judge(decided(Ground.TRUST), pairs, 0, confidence=CONFIDENCE, rng=np.random.default_rng(0))
    counted = sum(rounds > 0 for _, rounds in rows)
    assert {**DECIDED.figures, **told}.items() <= promotion.reason.figures.items()
    assert "gain_low" not in promotion.reason.figures
    assert (promotion.measured is None) == (counted == 0)
    assert counted == 0 or promotion.measured.interval == (-np.inf, np.inf)


def test_lengths_are_pooled_over_rounds_and_not_averaged_over_requests() -> None:
    found = compare(tallies((1, 1), (0, 99)), tallies((0, 1), (1, 99)))
    assert found.line_accept_length == found.reference_accept_length == 1.01


def test_drafts_that_are_equal_everywhere_have_an_empty_interval() -> None:
    for same in (tallies((3, 5), (0, 4), (9, 9)), tallies((0, 5), (0, 4))):
        found = compare(same, same)
        assert (found.gain, found.interval) == (0.0, (0.0, 0.0))


def test_requests_without_a_round_on_one_side_are_not_compared() -> None:
    with_gap = compare(tallies((5, 2), (7, 3), (9, 1)), tallies((1, 2), (2, 3), (0, 0)))
    assert with_gap == compare(tallies((5, 2), (7, 3)), tallies((1, 2), (2, 3)))


def test_the_same_generator_gives_the_same_interval() -> None:
    candidate, live = tallies((9, 3), (4, 4), (8, 5)), tallies((6, 4), (3, 5), (9, 5))
    assert compare(candidate, live, seed=3) == compare(candidate, live, seed=3)


def test_between_equal_drafts_the_interval_covers_zero_as_often_as_it_says() -> None:
    # A/A: both sides draw from one distribution, with requests that differ in difficulty and length.
    rng = np.random.default_rng(11)
    covered, trials = 0, 300
    for trial in range(trials):
        ease, rounds = rng.beta(2, 2, 40), rng.integers(4, 30, 40)
        drafts = [
            [Tally(int(a), int(r)) for a, r in zip(rng.binomial(3 * rounds, ease), rounds, strict=True)] for _ in "ab"
        ]
        found = compare(*drafts, seed=trial)
        covered += found.interval[0] <= 0 <= found.interval[1]
    # 90 % +- three standard errors, less 2 points that a percentile interval of 40 requests may lack.
    assert 0.83 <= covered / trials <= 0.95
