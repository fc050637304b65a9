"""Several answers to one prompt: one bet, one unit of chance, one block; and judged once, not again a claim later."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from paceline.policies.acceptance import Tally
from paceline.policies.paired import Bet, Paired, bets_of, by_prompt
from paceline.policies.prequential import LineFinding, PrequentialRules, PrequentialTest, is_ruined
from paceline.policies.promotion import measure
from scipy import stats

RUNS = 150
#: Standard deviation of one answer's gain.
SPREAD = 0.1


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Blocks of prompts with so many answers each, whose gains share a part of their variance."""

    answers: int
    shared: float
    gain: float
    prompts: int
    blocks: int
    has_keys: bool  # the gate can tell which answers are to one prompt

    def drawn(self, rng):
        for block in range(self.blocks):
            own = rng.normal(size=(self.prompts, self.answers)) * np.sqrt(1.0 - self.shared)
            common = rng.normal(size=(self.prompts, 1)) * np.sqrt(self.shared)
            names = [f"{block}-{prompt}" if self.has_keys else "" for prompt in range(self.prompts)]
            rows = zip(names, self.gain + SPREAD * (own + common), strict=True)
            yield [paired(gain, name) for name, gains in rows for gain in gains]


def paired(gain: float, prompt: str) -> Paired:
    """A request with this gain."""
    length = 2.0 * (1.0 + gain) / (1.0 - gain)
    return Paired("", Tally(max(length - 1.0, 0.0), 1), Tally(1, 1), prompt)


def proofs(traffic: Traffic, runs: int) -> int:
    """How many of so many runs end with a line that is said to gain."""
    found = 0
    for run in range(runs):
        test = PrequentialTest(PrequentialRules())
        for block in traffic.drawn(np.random.default_rng([0, run])):
            test.observe(block)
            if test.verdict().finding is LineFinding.GAINS:
                found += 1
                break
    return found


def pair(line_rounds: int, prompt: str = "", tenant: str = "") -> Paired:
    """A request of 60 tokens, served by the reference in 30 rounds."""
    return Paired(tenant, Tally(60 - line_rounds, line_rounds), Tally(30, 30), prompt)


def test_a_prompt_bets_once_on_the_mean_of_its_answers_each_cut_to_the_most_that_one_may_gain() -> None:
    block = [pair(20, "a"), pair(10, "b"), pair(40, "a"), pair(30)]  # gains of 1/5, 1/2, -1/7 and 0
    assert bets_of(block, 0.25) == [
        Bet("", pytest.approx(np.sqrt(2) * (1 / 5 - 1 / 7) / 2), 2),
        Bet("", 0.25, 1),
        Bet("", 0.0, 1),
    ]


@pytest.mark.parametrize(("rounds", "answers", "gain"), [(20, 2, 0.25), (20, 1, 0.2), (45, 3, -0.25), (29, 4, 2 / 59)])
def test_a_mean_counts_by_the_spread_that_it_has_and_is_cut_as_one_answer_is(rounds, answers, gain) -> None:
    assert bets_of([pair(rounds, "a")] * answers, 0.25) == [Bet("", pytest.approx(gain), answers)]


@pytest.mark.parametrize("answers", [1, 4])
def test_a_gain_that_does_not_pay_is_none(answers: int) -> None:
    (bet,) = bets_of([pair(20, "a")] * answers, 0.25, least_gain=0.2)
    assert bet.gain == pytest.approx(0.0)
    (most,), (least,) = (bets_of([pair(rounds, "a")] * answers, 0.25, least_gain=0.1) for rounds in (1, 600))
    assert (most.gain, least.gain) == (pytest.approx(0.15), pytest.approx(-0.35))


def test_only_answers_to_the_same_tenant_s_prompt_belong_together() -> None:
    block = [pair(20, "a", "ada"), pair(21, "a", "bob"), pair(22, "a", "ada"), pair(23), pair(24)]
    assert [[each.line.rounds for each in some] for some in by_prompt(block)] == [[20, 22], [21], [23], [24]]
    assert by_prompt([Paired("", Tally(), Tally(9, 5), "a")]) == []


def test_where_every_prompt_has_one_answer_everything_is_as_without_prompts() -> None:
    """To the last bit: the odds, the state, the interval, and the word on held-out requests."""
    rng, odds = np.random.default_rng(3), []
    plain, keyed = (PrequentialTest(PrequentialRules()) for _ in range(2))
    for block in range(30):
        some = [pair(int(rounds), tenant=str(rounds % 3)) for rounds in rng.normal(29, 3, 20)]
        named = [replace(each, prompt=f"{block}-{place}") for place, each in enumerate(some)]
        plain.observe(some)
        keyed.observe(named)
        assert (keyed.verdict(), keyed.state()) == (plain.verdict(), plain.state())
        assert is_ruined(some, PrequentialRules()) == is_ruined(named, PrequentialRules())
        first, second = (measure(each, confidence=0.9, rng=np.random.default_rng(0)) for each in (some, named))
        assert first == second
        odds.append(plain.verdict().odds)
    assert max(odds) > 10.0


@pytest.mark.parametrize(("answers", "shared"), [(1, 0.0), (8, 0.2), (8, 0.5)])
def test_a_line_that_gains_nothing_is_proven_no_more_often_than_the_test_may_err(answers: int, shared: float) -> None:
    """Ville: at most `error` of all runs, at every look. More proofs than allowed here come by chance once in 1000."""
    traffic = Traffic(answers=answers, shared=shared, gain=0.0, prompts=32 // answers, blocks=30, has_keys=True)
    allowed = stats.binom.ppf(0.999, RUNS, PrequentialRules().error)
    assert proofs(traffic, RUNS) <= allowed


def test_with_a_bet_per_answer_it_would_be_proven_far_more_often() -> None:
    """So the test before this one can fail."""
    traffic = Traffic(answers=8, shared=0.2, gain=0.0, prompts=4, blocks=30, has_keys=False)
    allowed = stats.binom.ppf(0.999, RUNS, PrequentialRules().error)
    assert proofs(traffic, RUNS) > 1.5 * allowed


def test_a_line_that_gains_is_proven_on_several_answers_too() -> None:
    traffic = Traffic(answers=8, shared=0.2, gain=0.05, prompts=4, blocks=20, has_keys=True)
    assert proofs(traffic, 50) == 50


def test_the_figures_say_how_many_prompts_the_requests_were_answers_to() -> None:
    test = PrequentialTest(PrequentialRules())
    test.observe([pair(20, "a")] * 6 + [pair(20, "b")] * 2)
    verdict = test.verdict()
    assert (verdict.figures["requests"], verdict.figures["prompts"]) == (8, 2)


def test_many_answers_to_one_prompt_hide_nobody_from_the_test_of_harm() -> None:
    block = [pair(29, "m", "mallory")] * 50 + [pair(45, str(number), "ada") for number in range(12)]
    test = PrequentialTest(PrequentialRules())
    test.observe(block)
    assert test.verdict().harm_odds > 5.0
    assert test.verdict().figures["losers"] == "all requests"


def test_an_interval_takes_the_answers_to_a_prompt_for_one_draw() -> None:
    rng = np.random.default_rng(0)
    gains = np.repeat(rng.normal(0.0, 0.1, 12), 8)
    answers = [paired(gain, str(place // 8)) for place, gain in enumerate(gains)]
    apart = [replace(each, prompt="") for each in answers]
    whole, wrong = (measure(each, confidence=0.9, rng=np.random.default_rng(1)) for each in (answers, apart))
    assert (whole.gain, whole.requests) == (pytest.approx(wrong.gain), wrong.requests)
    assert np.ptp(whole.interval) == pytest.approx(np.ptp(wrong.interval) * np.sqrt(8), rel=0.25)
    one = measure(answers[:8], confidence=0.9, rng=rng)
    assert (one.interval, one.requests) == ((-np.inf, np.inf), 8)
