"""Is a version far worse? A conformal test on how requests begin, fast enough to end a dead draft's canary at once.

Under equal drafts on steady traffic the begins of both arms are exchangeable; canary_begins.py has what to do when
traffic changes. Then the place of each new one in the order of all before
it is uniform and independent of the order so far, whatever the distribution and however rounds of a request depend on
each other (Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2022, ch. 8). Bets on that place, chosen
from the order so far, make a capital that starts at 1 and ever reaches 1 / a with a chance of at most a (Ville 1939),
over every look together. No bet is placed on the live arm.
"""

import math
from bisect import bisect_left, bisect_right, insort
from hashlib import blake2b

#: Shares of the live begins that count as low; each is a bet of its own.
_LOW_SHARES = (0.03, 0.1)

#: Exponents kappa of the bets kappa p^(kappa - 1) on the rank p itself, for drafts that are worse and not dead.
_EXPONENTS = tuple(tenth / 10 for tenth in range(1, 10))

Begin = tuple[float, bytes]


class HarmTest:
    """Do the canary's requests begin lower than the live ones did, over their first `rounds` rounds?

    Equal begins are ordered by a digest of the request's id, a coin toss that is the same for both arms.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.highest_log_capital = 0.0
        self._begins: list[Begin] = []  # ascending, both arms
        self._live: list[Begin] = []
        self._low = [_LowBet(share) for share in _LOW_SHARES]
        self._rank_logs = [0.0] * len(_EXPONENTS)

    def add_live(self, request_id: str, accepted_per_round: float) -> None:
        """How a request of the live version began."""
        begin = accepted_per_round, _coin(request_id)
        insort(self._begins, begin)
        insort(self._live, begin)

    def add_canary(self, request_id: str, accepted_per_round: float) -> None:
        """How a request of the canary began; moves the capital. Nothing is bet before there is a live one."""
        begin = accepted_per_round, _coin(request_id)
        if self._live:
            self._bet(begin)
        insort(self._begins, begin)

    def _bet(self, begin: Begin) -> None:
        for bet in self._low:
            bet.place(begin, self._begins, self._live)
        log_p = math.log((bisect_left(self._begins, begin) + 1) / (len(self._begins) + 1))
        self._rank_logs = [
            log + math.log(k) + (k - 1) * log_p for log, k in zip(self._rank_logs, _EXPONENTS, strict=True)
        ]
        capital = log_mean_exp([log_mean_exp(self._rank_logs), *(bet.log_capital for bet in self._low)])
        self.highest_log_capital = max(self.highest_log_capital, capital)


class _LowBet:
    """Bets that the canary begins among the lowest `share` of the live begins more often than its place explains."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.log_capital = 0.0
        self._hits = 0
        self._tries = 0

    def place(self, begin: Begin, begins: list[Begin], live: list[Begin]) -> None:
        """Pays at most fair odds: a new begin is below the m-th lowest of n with a chance of m / (n + 1)."""
        edge = live[math.ceil(self._share * len(live)) - 1]
        fair = bisect_right(begins, edge) / (len(begins) + 1)
        # Opens at 4 to 1 for a dead draft, then says what has been seen, and never bets that the canary is better.
        chance = max((self._hits + 2.0) / (self._tries + 2.5), fair)
        is_low = begin < edge
        self.log_capital += math.log(chance / fair) if is_low else math.log((1.0 - chance) / (1.0 - fair))
        self._hits += is_low
        self._tries += 1


def log_mean_exp(logs: list[float]) -> float:
    """Logarithm of the mean of exp(logs), without leaving the range of floats."""
    highest = max(logs)
    return highest + math.log(sum(math.exp(log - highest) for log in logs) / len(logs))


def _coin(request_id: str) -> bytes:
    return blake2b(request_id.encode(), digest_size=8).digest()
