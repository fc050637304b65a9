"""Two replicas on one board, one with a canary: their monitors, fed round by round."""

import numpy as np
from fleet import version
from paceline.buffer.board.version import VersionState
from paceline.buffer.stream.trace import FeatureDtype
from paceline.policies.canary import CanaryRules
from paceline.policies.guard import GuardLimits
from paceline.serving.watch.canary_trial import READ_S
from paceline.serving.watch.draft_monitor import DraftMonitor
from paceline.serving.wire.request_forward import NO_FEATURES, Commit, RequestVerify
from said import said_by
from twins.memory_board import MemoryVersionBoard

RULES = CanaryRules(max_requests=60)
DEAD = 0
GOOD = 2


def verify(request_id, version, accepted, finish="", drafted=(0, 1, 2), text=5):
    drafted = np.array(drafted, np.int32)
    ids = np.zeros((4, 0), np.int32)
    commit = Commit(1, (text,) * (accepted + 1), finish)
    return RequestVerify(
        request_id, version, "0", 3, 7, drafted, accepted, ids, ids.astype(np.float16), NO_FEATURES,
        FeatureDtype.FLOAT32, commit,
    )  # fmt: skip


class Fleet:
    """A board with version 0 live and 1 as canary on `rep`, with `other` to compare it with."""

    def __init__(self, limits=None):
        self.now = 1000.0
        self.board = MemoryVersionBoard(lambda: self.now)
        for number in range(2):
            self.board.register(version(number), "l", "new")
        self.board.move(0, VersionState.LIVE, "l", "start")
        self.limits = limits or GuardLimits()
        self.monitor = self.new("rep")
        self.other = self.new("other")

    def new(self, replica, **more):
        return DraftMonitor(self.board, replica, RULES, self.limits, **more)

    def start_canary(self):
        self.board.move(1, VersionState.CANARY, "l", "won the gate", replica="rep")

    def turn(self):
        self.now += READ_S
        self.board.beat("replica:other", said_by(self.other), 60.0)
        self.monitor.turn(self.now)

    @property
    def state(self):
        return self.board.read()


def serve(monitor, name, version, lengths):
    for number, accepted in enumerate(lengths):
        monitor.add(verify(name, version, accepted, "length" if number == len(lengths) - 1 else ""))


def lengths_of(rng, mean):
    return rng.binomial(3, mean / 3, 24).tolist()
