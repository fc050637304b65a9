"""The canary test: right formulas, few false alarms over all looks together, and a dead draft found at once."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from paceline.buffer.board.reason import ReasonCode
from paceline.policies.acceptance import Tally
from paceline.policies.canary import (
    Arm,
    Basis,
    CanaryDecision,
    CanaryRules,
    CanaryTest,
    CanaryVerdict,
    anytime_half_width,
)
from scipy import integrate

ERROR = 0.05


def feed(test: CanaryTest, arm: Arm, name: str, rounds: list[int], window: int = 4) -> None:
    """One request, reported `window` rounds at a time."""
    for begin in range(0, len(rounds), window):
        part = rounds[begin : begin + window]
        test.observe(arm, name, Tally(sum(part), len(part)), ended=begin + window >= len(rounds))


def requests_of_unequal_ease(rng: np.random.Generator, count: int, rounds: int = 24) -> Iterator[list[int]]:
    """Accepted drafts of 5; ease is drawn once per request, so rounds of one request are much alike."""
    for ease in rng.beta(1.2, 1.5, count):
        yield np.minimum(rng.geometric(1.0 - 0.9 * ease, rounds) - 1, 5).tolist()


def filled(canary: list[list[int]], live: list[list[int]], window: int = 1, **rules: float) -> CanaryTest:
    test = CanaryTest(CanaryRules(**rules))
    for arm, requests in ((Arm.LIVE, live), (Arm.CANARY, canary)):
        for number, rounds in enumerate(requests):
            feed(test, arm, f"{arm}-{number}", rounds, window)
    return test


@pytest.mark.parametrize(("variance", "error", "effect"), [(0.01, 0.03, 0.1), (0.0004, 0.05, 0.1), (0.002, 0.01, 0.3)])
def test_the_interval_ends_where_the_mixed_likelihood_ratio_reaches_one_over_the_error(
    variance: float, error: float, effect: float
) -> None:
    half = anytime_half_width(variance, error, effect)

    def ratio(gain: float) -> float:
        """Likelihood of the estimate under `gain` against none, weighed by the prior."""
        prior = math.exp(-(gain**2) / (2 * effect**2)) / (effect * math.sqrt(2 * math.pi))
        return prior * math.exp((gain * half - gain**2 / 2) / variance)

    mixed, _ = integrate.quad(ratio, -10 * effect, 10 * effect, points=[0.0, half])
    assert mixed == pytest.approx(1.0 / error, rel=1e-6)


def test_the_interval_is_that_of_the_pooled_ratios_with_requests_as_units() -> None:
    rng = np.random.default_rng(0)
    arms = [list(requests_of_unequal_ease(rng, 40, rounds)) for rounds in (12, 20)]
    verdict = filled(*arms).verdict()
    lengths, variance = [], 0.0
    for requests in arms:
        accepted, rounds = np.array([sum(r) for r in requests]), np.array([len(r) for r in requests])
        ratio = accepted.sum() / rounds.sum()
        linear = (accepted - ratio * rounds) / rounds.mean()
        variance += linear.var(ddof=1) / len(requests)
        lengths.append(1.0 + ratio)
    half = anytime_half_width(variance, ERROR * 0.6, 0.1)
    gain = lengths[0] - lengths[1]
    assert verdict.gain == pytest.approx(gain)
    assert verdict.interval == pytest.approx((gain - half, gain + half))
    assert (verdict.canary.rounds, verdict.live.rounds) == (480, 800)


def test_windows_of_any_size_add_up_to_the_same_verdict() -> None:
    requests = list(requests_of_unequal_ease(np.random.default_rng(1), 80))
    verdicts = []
    for window in (1, 8):
        test = CanaryTest(CanaryRules())
        for number, rounds in enumerate(requests):
            feed(test, Arm.CANARY if number % 2 else Arm.LIVE, str(number), rounds, window)
        verdicts.append(test.verdict())
    assert verdicts[0] == verdicts[1]


def looks_at(test: CanaryTest, canary: list[list[int]], live: list[list[int]]) -> Iterator[tuple[CanaryVerdict, int]]:
    """Requests of both arms in turn; a verdict after every one, with the canary's rounds until then."""
    rounds = 0
    for number, (ours, theirs) in enumerate(zip(canary, live, strict=True)):
        feed(test, Arm.LIVE, f"live-{number}", theirs)
        feed(test, Arm.CANARY, f"canary-{number}", ours)
        rounds += len(ours)
        yield test.verdict(), rounds


def test_equal_drafts_are_accused_in_at_most_a_twentieth_of_canaries_over_every_look() -> None:
    # 150 requests whose ease differs much; judged after every one of them.
    rng, trials, accused, missed = np.random.default_rng(3), 80, 0, 0
    for _ in range(trials):
        test = CanaryTest(CanaryRules(harm_share=0.5))
        drawn = [list(requests_of_unequal_ease(rng, 150)) for _ in Arm]
        ends = [(v.decision, v.interval) for v, _ in looks_at(test, *drawn)]
        accused += any(decision is not CanaryDecision.WAIT for decision, _ in ends)
        missed += any(not low <= 0.0 <= high for _, (low, high) in ends)
    # At the full error 4 would be expected of 80, and more than 8 seldom.
    assert accused <= 8
    assert missed <= 8


# Accept lengths of about 1.5 and 2.4. One request at a time, 200 rounds are three requests: enough only for the latter.
@pytest.mark.parametrize(("live_ease", "slots"), [(0.35, 8), (0.35, 16), (0.6, 1), (0.6, 8), (0.6, 16)])
def test_a_dead_draft_is_out_within_200_rounds_whatever_the_requests(live_ease: float, slots: int) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        test = CanaryTest(CanaryRules())
        eases = np.clip(rng.normal(live_ease, 0.15, 200), 0.02, 0.95)
        for number, ease in enumerate(eases):
            feed(test, Arm.LIVE, f"live-{number}", np.minimum(rng.geometric(1 - ease, 30) - 1, 5).tolist())
        rounds = 0
        # Requests of 60 rounds side by side, one round each at a time.
        while test.verdict().decision is CanaryDecision.WAIT:
            for slot in range(slots):
                name = f"{slot}-{rounds // slots // 60}"
                test.observe(Arm.CANARY, name, Tally(int(rng.random() < 0.02), 1), ended=False)
            rounds += slots
        verdict = test.verdict()
        assert (verdict.decision, verdict.basis) == (CanaryDecision.ROLL_BACK, Basis.HARM)
        assert rounds <= 200


def test_a_better_draft_is_promoted_with_its_figures_and_a_worse_one_rolled_back() -> None:
    strong, weak = [[1, 3, 3, 3]] * 40, [[1, 2, 1, 1], [1, 1, 1, 1]] * 20
    verdict = filled(strong, weak).verdict()
    assert (verdict.decision, verdict.basis) == (CanaryDecision.PROMOTE, Basis.INTERVAL)
    assert verdict.gain == pytest.approx(1.375)
    assert verdict.reason.code is ReasonCode.CANARY_GAINS
    expected = {"canary_accept_length": 3.5, "canary_requests": 40, "canary_rounds": 160, "gain": 1.375}
    expected |= {"live_accept_length": 2.125, "live_requests": 40, "live_rounds": 160, "confidence": 0.95}
    expected |= {"gain_low": verdict.interval[0], "gain_high": verdict.interval[1]}
    assert verdict.reason.figures == pytest.approx(expected)
    assert (verdict.canary_requests, verdict.live_requests) == (40, 40)
    back = filled(weak, strong, early_rounds=(1,)).verdict()  # they begin alike
    assert (back.decision, back.basis) == (CanaryDecision.ROLL_BACK, Basis.INTERVAL)
    assert back.reason.code is ReasonCode.CANARY_LOSES


def drawn(rng: np.random.Generator, length: float, count: int) -> list[list[int]]:
    """Requests whose accepted drafts per round differ as recorded ones do, with so many accepted on average."""
    shares = rng.beta(3.0, 3.0 * (4.0 - length) / length, count)
    return [rng.binomial(4, share, 12).tolist() for share in shares]


@pytest.mark.parametrize(("loss", "least", "most"), [(0.0, 0.6, 1.0), (0.1, 0.0, 0.1)])
def test_at_its_limit_most_equal_canaries_stay_and_hardly_one_that_loses_the_margin(loss, least, most) -> None:
    rng, kept = np.random.default_rng(11), 0
    for _ in range(40):
        live, canary = drawn(rng, 1.0, 400), drawn(rng, 1.0 - loss, 400)
        verdict = filled(canary, live, window=12, max_requests=400).verdict()
        kept += verdict.decision is CanaryDecision.PROMOTE
    assert least <= kept / 40 <= most


@pytest.mark.parametrize(("margin", "decision"), [(0.5, CanaryDecision.PROMOTE), (0.0, CanaryDecision.ROLL_BACK)])
def test_at_its_limit_an_undecided_canary_stays_only_if_a_loss_beyond_the_margin_is_excluded(
    margin: float, decision: CanaryDecision
) -> None:
    requests = [[1, 2, 1], [2, 1, 1], [1, 1, 1]] * 40
    verdict = filled(requests, requests, max_requests=120, non_inferiority=margin).verdict()
    assert (verdict.decision, verdict.basis, verdict.gain) == (decision, Basis.LIMIT, 0.0)
    assert verdict.reason.code is (ReasonCode.CANARY_EQUAL if margin else ReasonCode.CANARY_UNPROVEN)
    assert (verdict.reason.figures["limit"], verdict.reason.figures["margin"]) == (120, margin)
    assert (verdict.reason.figures["bound"] > -margin) == bool(margin)


def test_too_few_requests_say_nothing_and_requests_without_rounds_are_none() -> None:
    test = filled([[2, 2]] * 29, [[0, 1]] * 40)
    test.observe(Arm.CANARY, "empty", Tally(), ended=True)
    verdict = test.verdict()
    assert (verdict.decision, verdict.interval) == (CanaryDecision.WAIT, (-math.inf, math.inf))
    assert (verdict.basis, verdict.canary_requests) == (Basis.NOTHING_YET, 29)


@pytest.mark.parametrize(
    "wrong",
    [
        {"confidence": 1.0},
        {"harm_share": 0.0},
        {"min_effect": 0.0},
        {"non_inferiority": -0.1},
        {"min_requests": 1},
        {"max_requests": 10},
        {"early_rounds": ()},
        {"early_rounds": (0, 8)},
    ],
)
def test_rules_out_of_range_are_a_mistake(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="got"):
        CanaryRules(**wrong)
