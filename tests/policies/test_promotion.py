"""The gate: promoted only on evidence, refused with figures, waiting while there is too little to say."""

from itertools import product

import numpy as np
import pytest
from paceline.policies.acceptance import Tally
from paceline.policies.promotion import Promotion, Verdict, judge

CONFIDENCE = 0.9


def decide(candidate: list[Tally], live: list[Tally], *, min_requests: int = 2, seed: int = 0) -> Promotion:
    rng = np.random.default_rng(seed)
    return judge(candidate, live, min_requests=min_requests, confidence=CONFIDENCE, rng=rng)


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
    low, high = decide(candidate, live).interval
    # A share of the resamples, not a value: with few requests the gains lie far apart.
    for end, share in ((low, 0.05), (high, 0.95)):
        below, up_to = np.mean(gains < end - 1e-9), np.mean(gains <= end + 1e-9)
        assert below - 0.02 <= share <= up_to + 0.02


def test_a_candidate_that_wins_on_every_request_is_promoted_with_its_figures() -> None:
    decision = decide(tallies(*[(20, 10)] * 12), tallies(*[(10, 12)] * 12))
    assert decision.verdict is Verdict.PROMOTE
    assert (decision.candidate_accept_length, decision.live_accept_length) == (3.0, 1.0 + 10 / 12)
    assert decision.gain == pytest.approx(2.0 - 10 / 12)
    assert decision.interval == pytest.approx((decision.gain, decision.gain))
    assert decision.reason == (
        "accept length 3.000 against 1.833 live on 12 held-out requests: "
        "gain +1.167, 90% interval +1.167 to +1.167 lies above zero"
    )


def test_lengths_are_pooled_over_rounds_and_not_averaged_over_requests() -> None:
    decision = decide(tallies((1, 1), (0, 99)), tallies((0, 1), (1, 99)))
    assert decision.candidate_accept_length == decision.live_accept_length == 1.01
    assert decision.verdict is Verdict.REFUSE


@pytest.mark.guarantee("promotion-gate")
def test_drafts_that_are_equal_everywhere_are_refused_with_an_empty_interval() -> None:
    same = tallies((3, 5), (0, 4), (9, 9))
    decision = decide(same, same)
    assert (decision.verdict, decision.gain, decision.interval) == (Verdict.REFUSE, 0.0, (0.0, 0.0))
    assert decision.reason.endswith("gain +0.000, 90% interval +0.000 to +0.000 does not lie above zero")


def test_no_accepted_draft_on_either_side_is_refused() -> None:
    none = tallies((0, 5), (0, 4))
    assert decide(none, none).verdict is Verdict.REFUSE


@pytest.mark.guarantee("promotion-gate")
@pytest.mark.parametrize("pairs", [[], [(0, 0)] * 9, [(5, 2)]])
def test_too_few_requests_leave_the_gate_waiting(pairs: list[tuple[int, int]]) -> None:
    decision = decide(tallies(*pairs), tallies(*pairs), min_requests=3)
    counted = sum(rounds > 0 for _, rounds in pairs)
    assert decision.verdict is Verdict.WAIT
    assert (decision.requests, decision.interval) == (counted, (-np.inf, np.inf))
    assert decision.reason == f"{counted} held-out requests with verify rounds, 3 needed: nothing is judged yet"


def test_requests_without_a_round_on_one_side_are_not_compared() -> None:
    with_gap = decide(tallies((5, 2), (7, 3), (9, 1)), tallies((1, 2), (2, 3), (0, 0)))
    assert with_gap == decide(tallies((5, 2), (7, 3)), tallies((1, 2), (2, 3)))


def test_one_request_is_never_evidence() -> None:
    assert decide(tallies((9, 1)), tallies((0, 1)), min_requests=1).verdict is Verdict.WAIT


def test_unpaired_rows_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="got 1 and 2 requests"):
        decide(tallies((1, 1)), tallies((1, 1), (1, 1)))


def test_the_same_generator_gives_the_same_decision() -> None:
    candidate, live = tallies((9, 3), (4, 4), (8, 5)), tallies((6, 4), (3, 5), (9, 5))
    assert decide(candidate, live, seed=3) == decide(candidate, live, seed=3)


def test_between_equal_drafts_the_interval_covers_zero_as_often_as_it_says() -> None:
    # A/A: both sides draw from one distribution, with requests that differ in difficulty and length.
    rng = np.random.default_rng(11)
    covered, promoted, trials = 0, 0, 300
    for trial in range(trials):
        ease, rounds = rng.beta(2, 2, 40), rng.integers(4, 30, 40)
        drafts = [
            [Tally(int(a), int(r)) for a, r in zip(rng.binomial(3 * rounds, ease), rounds, strict=True)] for _ in "ab"
        ]
        decision = decide(*drafts, seed=trial)
        covered += decision.interval[0] <= 0 <= decision.interval[1]
        promoted += decision.verdict is Verdict.PROMOTE
    # 90 % +- three standard errors, less 2 points that a percentile interval of 40 requests may lack.
    assert 0.83 <= covered / trials <= 0.95
    assert promoted / trials <= 0.1
