"""The courier's alarms over the rounds of a stream, with the product's rule deciding which version serves.

One replica serves every chunk, several requests at a time, and its courier counts the rounds of all of them
(serving/watch/draft_monitor.py). When it rolls a version back, the one before serves at once, and the line starts over
with it as the reference, as in the learner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...buffer.testing.memory_board import MemoryVersionBoard
from ...buffer.trace import FeatureDtype
from ...buffer.version import DraftVersion, VersionState
from ...policies.acceptance import Tally
from ...policies.canary import CanaryRules
from ...policies.guard import GuardLimits
from ...policies.line_delivery import DeliveryRules
from ...serving.watch.draft_monitor import DraftMonitor
from ...serving.wire.request_forward import NO_FEATURES, Commit, RequestVerify
from .matrix import Matrix
from .pool import COMMITTED_TOKENS, SETTING
from .prequential_rules import TrustedLine
from .view import View

#: Requests served at a time.
CONCURRENCY = 8
#: Of a verify round on a GPU, in seconds: how many fit between two heartbeats.
ROUND_S = 0.025
#: Different ones, so that no draft looks degenerate.
_DRAFTED = np.arange(SETTING.steps, dtype=np.int32)
_NO_IDS = np.zeros((SETTING.steps + 1, 0), np.int32)


@dataclass(frozen=True, slots=True)
class Guarded:
    """What was served, and the alarms that rolled a version back."""

    accepted: int
    rolled_back: tuple[int, ...]  # the chunk of each rollback
    lowest: float  # accept length of the worst interval that an alarm would have looked at


class Fleet:
    """A board in memory with the versions of a line on it; the first one is live. Time is counted in rounds."""

    def __init__(self, versions: int) -> None:
        self.now_s = 0.0
        self.board = MemoryVersionBoard(lambda: self.now_s)
        for number in range(versions):
            version = DraftVersion(number, None, "t", "0", "eagle3", f"file:///{number}", "ab", "o", ("", ""))
            self.board.register(version, "learner", "trained")
        self.board.move(0, VersionState.LIVE, "learner", "first")

    @property
    def live(self) -> int:
        """The version that serves."""
        live = self.board.read().live
        if live is None:
            raise LookupError("no version is live")
        return live

    def monitor(self, replica: str) -> DraftMonitor:
        """Another replica's."""
        return DraftMonitor(self.board, replica, CanaryRules(max_requests=400), GuardLimits())


def verify(request: int, version: int, accepted: int, *, is_last: bool) -> RequestVerify:
    """One verify round as the courier receives it."""
    commit = Commit(1, (request,) * (accepted + 1), "length" if is_last else "")
    return RequestVerify(
        str(request), version, "0", 3, 7, _DRAFTED, accepted, _NO_IDS, _NO_IDS.astype(np.float16),
        NO_FEATURES, FeatureDtype.FLOAT32, commit,
    )  # fmt: skip


class Slot:
    """Serves its requests one after the other; any version may take a request over at any token."""

    def __init__(self, matrix: Matrix, waiting: list[int]) -> None:
        self._matrix, self._waiting, self._tokens = matrix, waiting, 0

    @property
    def is_busy(self) -> bool:
        """Whether a request is left."""
        return bool(self._waiting)

    def round(self, version: int, named: int | None = None) -> RequestVerify:
        """The next round, drafted by `version` of the line; `named`: the version's number on the board, if another."""
        request = self._waiting[0]
        rounds = self._matrix.rounds(version, request)
        ends = np.cumsum([accepted + 1 for accepted in rounds])
        place = min(int(np.searchsorted(ends, self._tokens, side="right")), len(rounds) - 1)
        is_last = place == len(rounds) - 1
        self._tokens = 0 if is_last else int(ends[place])
        if is_last:
            self._waiting.pop(0)
        return verify(request, version if named is None else named, rounds[place], is_last=is_last)


def slots_of(matrix: Matrix, requests: Sequence[int]) -> list[Slot]:
    """CONCURRENCY slots that share the requests."""
    return [Slot(matrix, list(requests[slot::CONCURRENCY])) for slot in range(CONCURRENCY)]


def guarded(matrix: Matrix, *, is_on: bool = True) -> Guarded:
    """Serve a stream; with `is_on` false the alarms are not asked, for comparison."""
    fleet, accepted, rolled_back = Fleet(len(matrix.accepted_VN)), 0, []
    monitor, rule, intervals = fleet.monitor("a"), TrustedLine(DeliveryRules()), _Intervals()
    for chunk in range(matrix.chunks):
        requests = np.flatnonzero(matrix.chunk_of == chunk).tolist()
        began_with = fleet.live
        for forward in _served(matrix, fleet, requests):
            accepted += forward.accepted
            monitor.add(forward)
            intervals.add(forward)
            if is_on:
                monitor.turn(fleet.now_s)
        if fleet.live != began_with:
            rolled_back.append(chunk)
            rule = TrustedLine(DeliveryRules(), reference=fleet.live)
        if chunk < matrix.chunks - 1:
            _deliver(fleet, rule.decide(View(matrix, chunk, fleet.live)))
    return Guarded(accepted, tuple(rolled_back), intervals.lowest)


def _served(matrix: Matrix, fleet: Fleet, requests: Sequence[int]) -> Iterator[RequestVerify]:
    """Rounds in the order served; a request that runs when another version goes live is served on by that one."""
    slots = slots_of(matrix, requests)
    while any(slot.is_busy for slot in slots):
        fleet.now_s += ROUND_S
        for slot in slots:
            if slot.is_busy:
                yield slot.round(fleet.live)


def _deliver(fleet: Fleet, version: int) -> None:
    if version != fleet.live:
        fleet.board.move(version, VersionState.LIVE, "learner", "decided")


class _Intervals:
    """Accept length of every interval of as many rounds as an alarm needs."""

    def __init__(self) -> None:
        self._now, self.lowest = Tally(), float("inf")

    def add(self, forward: RequestVerify) -> None:
        self._now += Tally(forward.accepted, 1)
        if self._now.rounds == GuardLimits().min_rounds:
            self.lowest, self._now = min(self.lowest, self._now.accept_length), Tally()


def dead_before(matrix: Matrix, domain: str, first_block: int) -> Matrix:
    """The harshest shift there is: the line had nothing of `domain` accepted until it learnt block `first_block`."""
    return _silenced(matrix, np.arange(len(matrix.accepted_VN)) <= first_block, matrix.domain_N == domain)


def dead_version(matrix: Matrix, version: int) -> Matrix:
    """The line with one version that accepts nothing."""
    return _silenced(matrix, np.arange(len(matrix.accepted_VN)) == version, np.ones(len(matrix.domain_N), np.bool_))


def _silenced(matrix: Matrix, version_V: np.ndarray, request_N: np.ndarray) -> Matrix:
    hit_VN = version_V[:, None] & request_N & (matrix.rounds_VN >= 0)
    rounds_VN = np.where(hit_VN, COMMITTED_TOKENS - 1, matrix.rounds_VN).astype(np.int32)
    silent_R = np.where(np.arange(matrix.accepted_VNR.shape[2]) < COMMITTED_TOKENS - 1, 0, -1).astype(np.int8)
    return replace(
        matrix,
        accepted_VN=np.where(hit_VN, 0, matrix.accepted_VN).astype(np.int32),
        rounds_VN=rounds_VN,
        accepted_VNR=np.where(hit_VN[..., None], silent_R, matrix.accepted_VNR).astype(np.int8),
    )
