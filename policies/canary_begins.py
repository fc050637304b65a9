"""Do a canary's requests begin worse than the live version's? Compared with those of now, and with its history.

A canary that is hardly accepted is found among two hundred requests of history sooner than among ten of now. But when
traffic shifts, the requests of every draft begin otherwise than those of history. So for every length of a begin there
are two tests, and two ways to accuse a canary:

- *beside* (canary_blocks.py), against live begins of the same minutes alone: fair whatever traffic does.
- *by history* (canary_harm.py), against all live begins, those of history included: fair while traffic stays what it
  was in history. It accuses only where *beside*, in the mean over the lengths, speaks against the canary as well.

Between equal drafts that draw from the same traffic, the chance of accusing is

- at most `error`, over every look together, while traffic stays what it was in history;
- at most `shift_error` at any one look, whatever traffic does: either way of accusing takes a mean of *beside* of
  1 / `shift_error`. Over every look together that is bounded by `shift_error` times the number of lengths alone, since
  the capitals of several lengths learn of a request at different times; docs/measured.md has what was measured.

Where the live version is not known to have begun any request since the canary came, there is history alone, and it
accuses by itself: the second bound does not hold there.
"""

import math
from collections.abc import Iterator, Sequence

from ..buffer.board.reason import Reason, ReasonCode, because
from .acceptance import Tally
from .canary_blocks import BlockTest
from .canary_harm import HarmTest, log_mean_exp

#: Part of the error that *by history* may spend; *beside* has the rest.
_HISTORY_SHARE = 0.8

Begin = tuple[str, float]  # id of the request, accepted drafts per round


class BeginTests:
    """Compares how requests of both arms begin, over each of `lengths` rounds. Errors are for all lengths together."""

    def __init__(self, lengths: Sequence[int], error: float, shift_error: float) -> None:
        self._tests = [_LengthTest(rounds) for rounds in lengths]
        # Every length is a test of its own, so each may spend its part of the error alone.
        self._history_bar = math.log(len(lengths) / (error * _HISTORY_SHARE))
        self._beside_bar = math.log(len(lengths) / min(error * (1.0 - _HISTORY_SHARE), shift_error))
        self._shift_bar = math.log(1.0 / shift_error)
        self._beside = 0.0  # the highest mean log capital over the lengths
        self._counted: set[tuple[int, str]] = set()  # (length, request) of the live arm
        self._before: set[str] = set()  # live requests that began before the canary came
        self.has_live = False  # whether a live request is known to have begun since

    def add_canary(self, request_id: str, before: Tally, now: Tally, *, ended: bool, at: float) -> None:
        """A request of the canary has grown from `before` to `now`, at the time `at`."""
        for test in self._due(before, now, ended=ended):
            test.canary.append((at, (request_id, _ratio(now))))

    def add_live(self, request_id: str, before: Tally, now: Tally, *, ended: bool, is_history: bool) -> None:
        """The same of the live version. What began as history stays history; a begin that is known counts once."""
        if is_history:
            self._before.add(request_id)
        for test in self._due(before, now, ended=ended):
            if (test.rounds, request_id) not in self._counted:
                self._counted.add((test.rounds, request_id))
                self._add_begin(test, (request_id, _ratio(now)))

    def compare(self, known_until: float) -> None:
        """Bet on what has come. The canary's begins from `known_until` on wait until the live arm is known so far."""
        for test in self._tests:
            test.compare(known_until)
        self._beside = max(self._beside, log_mean_exp([test.beside.log_capital for test in self._tests]))

    def accusation(self) -> Reason | None:
        """Why the canary is to go; None if it need not. Changes nothing."""
        is_shift_excluded = not self.has_live or self._beside >= self._shift_bar
        for test in self._tests:
            if test.beside.highest_log_capital >= self._beside_bar:
                return _reason(test.rounds, "beside it", test.beside.highest_log_capital)
            if is_shift_excluded and test.by_history.highest_log_capital >= self._history_bar:
                return _reason(test.rounds, "so far", test.by_history.highest_log_capital)
        return None

    def _add_begin(self, test: "_LengthTest", begin: Begin) -> None:
        if begin[0] in self._before:
            test.by_history.add_live(*begin)
        else:
            test.live.append(begin)
            self.has_live = True

    def _due(self, before: Tally, now: Tally, *, ended: bool) -> Iterator["_LengthTest"]:
        """A request that ends early is looked at with what it has; the same rule holds for both arms."""
        for test in self._tests:
            if before.rounds < test.rounds and (now.rounds >= test.rounds or ended):
                yield test


class _LengthTest:
    """Both tests on begins of `rounds` rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.beside = BlockTest()
        self.by_history = HarmTest(rounds)
        self.live: list[Begin] = []  # waiting to be compared
        self.canary: list[tuple[float, Begin]] = []  # the same, with their times

    def compare(self, known_until: float) -> None:
        if self.live and self.beside.is_full:
            self.beside.start_block()
        for request_id, ratio in self.live:
            self.by_history.add_live(request_id, ratio)
            self.beside.add(request_id, ratio, is_canary=False)
        due = [begin for at, begin in self.canary if at < known_until]
        for request_id, ratio in due:
            self.by_history.add_canary(request_id, ratio)
            self.beside.add(request_id, ratio, is_canary=True)
        if due or self.live:
            self.beside.compare()
        self.live = []
        self.canary = [(at, begin) for at, begin in self.canary if at >= known_until]


def _ratio(served: Tally) -> float:
    return served.accepted / served.rounds


def _reason(rounds: int, beside: str, log_odds: float) -> Reason:
    odds = math.exp(min(log_odds, 100.0))
    return because(ReasonCode.CANARY_HARMS, begin_rounds=rounds, beside=beside, harm_odds=odds)
