"""Does the line of drafts in training gain on a reference draft? A test by betting, on traces before they are learnt.

Before a learning round trains on new traces, the line's newest weights and the reference are both replayed on them
(prequential evaluation: Dawid 1984). What is judged on is then today's traffic, every request of it, and none of it was
trained on. line_delivery.py decides by it which version serves.

Each prompt bets, once a block. Its gain x, of the mean over its requests (paired.py), is bounded, and under the null
hypothesis, "on what comes next the line accepts no more than the reference", its expectation given the past is at most
zero. (Given one answer to a prompt, that of the next one is not: answers to one prompt resemble each other, and bets on
each would win too often.) So a capital that grows by 1 + fraction * x is a test supermartingale: it ever reaches 1 / a
with a chance of at most a, over every look together (Ville 1939). Constant fractions are mixed (Robbins 1970; for
bounded means Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting"), among them 0,
cash. A line changes as it learns, so at the end of every block a share of the capital is dealt out again (Herbster and
Warmuth 1998, "Tracking the best expert"): that moves money and makes none, and a plateau or a bad spell does not ruin
the fractions that will win afterwards.

Two tests of harm are the same with -x: one on all requests, one without the tenant who sends most of a block, who could
otherwise buy a draft that only they gain from. They guard every delivery, so they start over whenever their capital is
below 1, as a CUSUM does, and remember little more than what speaks against a draft.

Looked for on PyPI before writing this: the libraries that canary.py names; confseq bets on bounded means, but needs
Boost and a C++ compiler to install, and deals nothing out again.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from .paired import Bet, Paired, bets_of

Floats = npt.NDArray[np.float64]

#: Bets of a fully stretched gain lose so much of the capital; 0 is cash.
STAKES = (0.0, 0.2, 0.5, 0.9)
#: Capital that starts as cash.
_CASH_SHARE = 0.2
#: Of harm, from which on nothing is bet on gains. A bet that depends on the past alone leaves every game fair.
_SUSPICIOUS_ODDS = 2.0
#: What a test of harm gives away before every block: a line that is level again is soon free of old suspicion.
_HARM_FORGOTTEN = 0.1


class LineFinding(StrEnum):
    """What the requests so far show."""

    GAINS = "gains"
    NOTHING_YET = "nothing_yet"
    HARMS = "harms"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineVerdict:
    """What was found, and the figures that show it."""

    finding: LineFinding
    odds: float  # capital of the test of gain, against 1 at its start
    needed: float  # of these odds, for a proof
    harm_odds: float  # the higher capital of the tests of harm
    losers: "Whose"  # the test of harm that has it
    is_suspected: bool  # of harm: nothing is taken for a gain until it is cleared
    requests: int  # compared
    prompts: int  # that these requests were answers to: so many bets were made

    @property
    def figures(self) -> dict[str, float | str]:
        """For a reason: those of harm where they count."""
        found: dict[str, float | str] = {"odds": self.odds, "needed": self.needed, "requests": self.requests}
        if self.prompts < self.requests:
            found["prompts"] = self.prompts
        if self.is_suspected or self.finding is LineFinding.HARMS:
            found |= {"harm_odds": self.harm_odds, "losers": self.losers.value}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PrequentialRules:
    """The numbers of the test. ValueError when one is out of its range."""

    error: float = 0.1  # chance that a line that never gains is ever said to
    harm_error: float = 0.2  # chance that an equal line is said to harm, from one fresh start of a test on
    most_gain: float = 0.25  # of one request; more counts as that much
    least_gain: float = 0.0  # gain per request that pays for a swap; the null hypothesis is that much or less
    redealt_share: float = 0.1  # share of the capital, at the end of every block

    def __post_init__(self) -> None:
        errors = (self.error, self.harm_error)
        if not all(0.0 < error < 1.0 for error in errors):
            raise ValueError(f"error, harm_error: got {errors}, expected within (0, 1)")
        if not 0.0 <= self.least_gain < self.most_gain <= 1.0:
            raise ValueError(
                f"least_gain, most_gain: got {self.least_gain}, {self.most_gain}, expected 0 <= least < most <= 1"
            )
        if not 0.0 <= self.redealt_share < 1.0:
            raise ValueError(f"redealt_share: got {self.redealt_share}, expected within [0, 1)")


class Whose(StrEnum):
    """Whose requests a test of harm looks at."""

    ALL = "all requests"
    OTHERS = "requests of all but the heaviest tenant of their block"


class Capital:
    """The money of one test: bets that gains are positive on average, mixed over STAKES."""

    def __init__(self, largest_loss: float, redealt_share: float) -> None:
        """No bet may meet a gain below -`largest_loss`."""
        stakes = np.array(STAKES)
        self._fractions = stakes / largest_loss
        self._prior = np.where(stakes > 0.0, (1.0 - _CASH_SHARE) / (len(stakes) - 1), _CASH_SHARE)
        self._redealt_share = redealt_share
        self.logs: Floats = np.log(self._prior)

    @property
    def log(self) -> float:
        """Logarithm of the whole capital; 0 at the start."""
        return float(np.logaddexp.reduce(self.logs))

    def bet(self, gains: Sequence[float]) -> None:
        """Bet on each gain of a block, then deal part of the capital out again."""
        grown = np.log1p(np.outer(np.asarray(gains, np.float64), self._fractions)).sum(0)
        self.logs = self.logs + grown
        if self._redealt_share:
            kept = math.log1p(-self._redealt_share)
            dealt = math.log(self._redealt_share) + self.log
            self.logs = np.logaddexp(self.logs + kept, np.log(self._prior) + dealt)

    def limit(self, log: float) -> None:
        """Give away what is above `log`, of every fraction alike."""
        self.logs = self.logs - max(self.log - log, 0.0)


class PrequentialTest:
    """Collects blocks of paired requests and says what they show of the line, against one reference.

    Deterministic: the same calls give the same verdicts.
    """

    def __init__(self, rules: PrequentialRules) -> None:
        self._rules = rules
        self._gain = Capital(rules.most_gain + rules.least_gain, rules.redealt_share)
        self._harm = {Whose.ALL: self._no_harm(), Whose.OTHERS: self._no_harm()}
        self._requests = self._prompts = 0

    def _no_harm(self) -> Capital:
        return Capital(self._rules.most_gain, self._rules.redealt_share)

    def observe(self, block: Sequence[Paired]) -> None:
        """Add the requests of one block, replayed with the same two drafts; requests without rounds do not count.

        All answers to a prompt belong in one block: over two blocks they would bet twice.
        """
        rules = self._rules
        bets = bets_of(block, rules.most_gain)
        self._requests += sum(bet.requests for bet in bets)
        self._prompts += len(bets)
        if not self._is_suspected():  # what some gain while others seem to lose speaks for nothing
            self._gain.bet([bet.gain for bet in bets_of(block, rules.most_gain, rules.least_gain)])
        self._watch(Whose.ALL, [bet.gain for bet in bets])
        self._watch(Whose.OTHERS, _without_the_heaviest(bets))

    def forget_gains(self) -> None:
        """Give away what the test of gain has won; what it has lost stays lost, or it would start over for nothing."""
        self._gain.limit(0.0)

    def _watch(self, whose: "Whose", gains: Sequence[float]) -> None:
        if self._harm[whose].log < 0.0:
            self._harm[whose] = self._no_harm()
        self._harm[whose].limit(self._harm[whose].log + math.log1p(-_HARM_FORGOTTEN))
        self._harm[whose].bet([-gain for gain in gains])
        self._harm[whose].limit(0.5 - math.log(self._rules.harm_error))

    def verdict(self) -> LineVerdict:
        """What the blocks so far show. Changes nothing."""
        odds = self._gain.log
        whose = max(Whose, key=lambda name: self._harm[name].log)
        harm = self._harm[whose].log
        finding = LineFinding.NOTHING_YET
        if harm >= -math.log(self._rules.harm_error):
            finding = LineFinding.HARMS
        elif odds >= -math.log(self._rules.error) and not self._is_suspected():
            finding = LineFinding.GAINS
        return LineVerdict(
            finding=finding,
            odds=math.exp(min(odds, 700.0)),
            needed=1.0 / self._rules.error,
            harm_odds=math.exp(harm),
            losers=whose,
            is_suspected=self._is_suspected(),
            requests=self._requests,
            prompts=self._prompts,
        )

    def _is_suspected(self) -> bool:
        return max(capital.log for capital in self._harm.values()) > math.log(_SUSPICIOUS_ODDS)

    def state(self) -> dict[str, object]:
        """What continuing needs, as JSON values; a restored test finds what this one would."""
        harm = {whose.value: capital.logs.tolist() for whose, capital in self._harm.items()}
        gain = self._gain.logs.tolist()
        return {"requests": self._requests, "prompts": self._prompts, "gain": gain, "harm": harm}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; an empty one changes nothing."""
        if not state:
            return
        self._requests = int(state["requests"])
        self._prompts = int(state["prompts"])
        self._gain.logs = np.array(state["gain"], np.float64)
        for whose, logs in state["harm"].items():
            self._harm[Whose(whose)].logs = np.array(logs, np.float64)


def is_ruined(pairs: Sequence[Paired], rules: PrequentialRules) -> bool:
    """Whether a few requests that were held out show a draft to be far worse than the reference.

    One look and one bet, of the largest stake: what is looked for is a draft that training has just ruined.
    """
    gains = [bet.gain for bet in bets_of(pairs, rules.most_gain)]
    return sum(math.log1p(-STAKES[-1] * gain / rules.most_gain) for gain in gains) >= -math.log(rules.harm_error)


def _without_the_heaviest(bets: Sequence[Bet]) -> list[float]:
    """The gains of all but the tenant whose bets weigh most, a bet on n answers sqrt(n), as it is scaled.

    By prompts alone, a tenant with many answers to few of them could buy a draft that one with more prompts loses by.
    By answers alone, one with thousands to a single prompt would take the place of the one who buys.
    """
    weights: defaultdict[str, float] = defaultdict(float)
    for bet in bets:
        weights[bet.tenant] += math.sqrt(bet.requests)
    heaviest = max(weights, key=weights.__getitem__, default=None)
    return [bet.gain for bet in bets if bet.tenant != heaviest]
