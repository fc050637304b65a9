"""The line's test: a capital of many bets, fair under equal drafts at every look, soon large for a line that gains."""

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from paceline.policies.acceptance import Tally
from paceline.policies.paired import Paired
from paceline.policies.prequential import (
    STAKES,
    Capital,
    LineFinding,
    PrequentialRules,
    PrequentialTest,
    Whose,
    is_ruined,
)

RULES = PrequentialRules()


def pair(line_rounds: int, live_rounds: int, tenant: str = "") -> Paired:
    """A request of 60 tokens served in so many rounds by either draft."""
    return Paired(tenant, Tally(60 - line_rounds, line_rounds), Tally(60 - live_rounds, live_rounds))


def found(rules: PrequentialRules, *blocks: list[Paired]) -> LineFinding:
    test = PrequentialTest(rules)
    for block in blocks:
        test.observe(block)
    return test.verdict().finding


def capital_by_hand(blocks: list[list[float]], largest_loss: float, redealt_share: float) -> float:
    """One purse per stake, in plain numbers."""
    start = [0.2, *[0.8 / (len(STAKES) - 1)] * (len(STAKES) - 1)]
    purses = list(start)
    for block in blocks:
        for gain in block:
            purses = [purse * (1 + stake / largest_loss * gain) for purse, stake in zip(purses, STAKES, strict=True)]
        pot = redealt_share * sum(purses)
        purses = [purse * (1 - redealt_share) + pot * share for purse, share in zip(purses, start, strict=True)]
    return sum(purses)


@pytest.mark.parametrize("redealt_share", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("largest_loss", [0.25, 1.0])
def test_the_capital_is_that_of_purses_kept_by_hand(redealt_share: float, largest_loss: float) -> None:
    rng = np.random.default_rng(0)
    blocks = [rng.uniform(-largest_loss, largest_loss, int(n)).tolist() for n in rng.integers(0, 9, 12)]
    capital = Capital(largest_loss, redealt_share)
    assert capital.log == pytest.approx(0.0, abs=1e-12)
    for block in blocks:
        capital.bet(block)
    assert math.exp(capital.log) == pytest.approx(capital_by_hand(blocks, largest_loss, redealt_share))


def test_between_equal_drafts_every_bet_is_fair() -> None:
    # All outcomes of four blocks of three requests whose gains are drawn from a lopsided fair game.
    outcomes = [(-0.1, 2 / 3), (0.2, 1 / 3)]
    expected = 0.0
    for drawn in product(outcomes, repeat=6):
        capital = Capital(0.25, 0.3)
        for begin in (0, 3):
            capital.bet([gain for gain, _ in drawn[begin : begin + 3]])
        expected += math.prod(chance for _, chance in drawn) * math.exp(capital.log)
    assert expected == pytest.approx(1.0)


def test_a_limited_capital_keeps_how_it_is_divided() -> None:
    capital = Capital(0.25, 0.0)
    capital.bet([0.25] * 9)
    before = capital.logs.copy()
    capital.limit(2.0)
    assert capital.log == pytest.approx(2.0)
    assert np.ptp(capital.logs - before) == pytest.approx(0.0, abs=1e-12)
    capital.limit(3.0)
    assert capital.log == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("line", "live", "gain"),
    [
        (Tally(40, 20), Tally(30, 30), 0.2),
        (Tally(30, 30), Tally(40, 20), -0.2),
        (Tally(10.5, 4.5), Tally(10.0, 5.0), (15 / 4.5 - 3) / (15 / 4.5 + 3)),  # expected, not counted
        (Tally(10, 5), Tally(10, 5), 0.0),
        (Tally(), Tally(9, 5), 0.0),
        (Tally(9, 5), Tally(), 0.0),
    ],
)
def test_a_gain_is_the_share_of_rounds_saved_as_accept_lengths_give_it(line: Tally, live: Tally, gain: float) -> None:
    assert Paired("", line, live).gain == pytest.approx(gain)


def test_a_line_that_gains_is_found_with_its_figures() -> None:
    test = PrequentialTest(RULES)
    test.observe([pair(20, 30)] * 20)
    verdict = test.verdict()
    odds = capital_by_hand([[0.2] * 20], RULES.most_gain, RULES.redealt_share)
    assert (verdict.finding, verdict.requests) == (LineFinding.GAINS, 20)
    assert verdict.odds == pytest.approx(odds)
    assert verdict.figures == {"odds": verdict.odds, "needed": 10.0, "requests": 20}
    assert found(PrequentialRules(error=1e-6), [pair(20, 30)] * 20) is LineFinding.NOTHING_YET


@pytest.mark.parametrize("gain", [0.3, 1.0])
def test_no_request_counts_for_more_than_the_most_that_one_may_gain(gain: float) -> None:
    far = PrequentialTest(PrequentialRules(most_gain=gain * 0.5))
    far.observe([pair(10, round(10 * (1 + gain) / max(1 - gain, 0.05)))])
    assert far.verdict().odds == pytest.approx(capital_by_hand([[1.0]], 1.0, 0.1))
    assert far.verdict().finding is LineFinding.NOTHING_YET


def test_requests_without_rounds_say_nothing() -> None:
    test = PrequentialTest(RULES)
    test.observe([Paired("", Tally(), Tally(9, 5))] * 50)
    assert (test.verdict().requests, test.verdict().odds) == (0, pytest.approx(1.0))


def test_a_gain_too_small_to_pay_does_not_count() -> None:
    blocks = [[pair(28, 30)] * 40] * 10  # saves one round in thirty: 0.034
    assert found(PrequentialRules(), *blocks) is LineFinding.GAINS
    assert found(PrequentialRules(least_gain=0.04), *blocks) is LineFinding.NOTHING_YET


def test_a_line_that_was_good_and_is_ruined_harms_until_it_has_recovered() -> None:
    good, ruined = [pair(20, 30)] * 20, [pair(55, 30)] * 10
    assert found(RULES, good, ruined) is LineFinding.HARMS
    recovering = PrequentialTest(RULES)
    for block in [ruined] * 20 + [good] * 4:
        recovering.observe(block)
    assert recovering.verdict().finding is LineFinding.GAINS


def test_the_heaviest_tenant_cannot_buy_a_draft_that_the_others_lose_by() -> None:
    heavy, others = [pair(20, 30, "mallory")] * 28, [pair(40, 30, name) for name in ("ada", "bob", "cy") * 4]
    assert found(RULES, heavy + others) is LineFinding.HARMS
    assert losers(heavy + others) is Whose.OTHERS
    assert found(RULES, heavy + [pair(30, 30, "ada")] * 12) is LineFinding.GAINS
    assert found(RULES, heavy) is LineFinding.GAINS


def answers(tenant: str, prompts: int, each: int, line_rounds: int) -> list[Paired]:
    return [
        replace(pair(line_rounds, 30, tenant), prompt=f"{tenant}-{prompt}")
        for prompt in range(prompts)
        for _ in range(each)
    ]


@pytest.mark.parametrize(
    "bought", [answers("mallory", 8, 8, 20), answers("mallory", 28, 1, 20) + answers("decoy", 1, 200, 30)]
)
def test_neither_few_prompts_with_many_answers_nor_a_decoy_with_more_of_them_hides_who_buys(bought) -> None:
    victims = [pair(40, 30, "ada")] * 12
    assert found(RULES, bought + victims) is LineFinding.HARMS
    assert losers(bought + victims) is Whose.OTHERS


def losers(block: list[Paired]) -> Whose:
    test = PrequentialTest(RULES)
    test.observe(block)
    return test.verdict().losers


def test_forgotten_gains_are_gone_and_losses_are_not() -> None:
    test = PrequentialTest(RULES)
    test.observe([pair(20, 30)] * 20)
    test.forget_gains()
    assert test.verdict().odds == pytest.approx(1.0)
    test.observe([pair(33, 30)] * 20)
    before = test.verdict().odds
    assert before < 0.9
    test.forget_gains()
    assert test.verdict().odds == pytest.approx(before)


def test_while_harm_is_suspected_gains_are_not_bet_on_and_nothing_is_found() -> None:
    suspected = [pair(33, 30, "a")] * 8 + [pair(34, 30, "b")] * 7
    test = PrequentialTest(PrequentialRules(harm_error=0.001))
    for _ in range(2):
        test.observe(suspected)
    verdict = test.verdict()
    assert (verdict.finding, verdict.is_suspected) == (LineFinding.NOTHING_YET, True)
    assert verdict.figures["harm_odds"] == verdict.harm_odds
    test.observe([pair(20, 30, "a")] * 4)
    assert test.verdict().odds == verdict.odds
    for _ in range(2):
        test.observe([pair(20, 30, tenant) for tenant in "ab" * 10])
    assert (test.verdict().finding, test.verdict().is_suspected) == (LineFinding.GAINS, False)


def test_a_few_requests_show_a_ruined_draft_and_nothing_less() -> None:
    assert is_ruined([pair(55, 30)] * 3, RULES)
    assert not is_ruined([pair(55, 30)] * 2, RULES)
    assert not is_ruined([pair(32, 30)] * 8, RULES)
    assert not is_ruined([], RULES)


def noisy_blocks(rng: np.random.Generator, blocks: int, shift: float) -> list[list[Paired]]:
    """Blocks of 20 requests of unequal length and ease; the line needs about `shift` fewer of the rounds."""
    found = []
    for _ in range(blocks):
        both = rng.integers(20, 60, 20)
        line, live = (np.round(both * np.exp(rng.normal(-s, 0.1, 20))).astype(int) for s in (shift, 0.0))
        found.append([pair(int(a), int(b)) for a, b in zip(line, live, strict=True)])
    return found


def ever_found(rng: np.random.Generator, blocks: int, shift: float) -> bool:
    test = PrequentialTest(PrequentialRules(error=0.05))
    for block in noisy_blocks(rng, blocks, shift):
        test.observe(block)
        if test.verdict().finding is LineFinding.GAINS:
            return True
    return False


def test_equal_drafts_seldom_seem_better_over_a_whole_stream_and_better_ones_soon_do() -> None:
    rng = np.random.default_rng(5)
    assert sum(ever_found(rng, 30, 0.0) for _ in range(200)) <= 10  # 0.05 of them
    assert sum(ever_found(rng, 10, 0.1) for _ in range(50)) == 50


def test_a_restored_test_finds_what_the_first_one_would() -> None:
    rng = np.random.default_rng(1)
    test = PrequentialTest(PrequentialRules(error=1e-9))
    for block in noisy_blocks(rng, 6, 0.05):
        test.observe(block)
    copy = PrequentialTest(PrequentialRules(error=1e-9))
    copy.restore(json.loads(json.dumps(test.state())))
    for block in noisy_blocks(rng, 3, -0.1):
        test.observe(block)
        copy.observe(block)
        assert copy.verdict() == test.verdict()
    empty = PrequentialTest(RULES)
    empty.restore({})
    assert empty.verdict() == PrequentialTest(RULES).verdict()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"error": 0.0}, "got \\(0.0, 0.2\\)"),
        ({"error": 1.0}, "expected within \\(0, 1\\)"),
        ({"harm_error": -0.1}, "expected within \\(0, 1\\)"),
        ({"most_gain": 0.1, "least_gain": 0.1}, "least_gain, most_gain: got 0.1, 0.1"),
        ({"most_gain": 1.5}, "got 0.0, 1.5"),
        ({"redealt_share": 1.0}, "redealt_share: got 1.0"),
    ],
)
def test_a_number_out_of_its_range_is_refused(numbers: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrequentialRules(**numbers)
