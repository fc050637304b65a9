"""When the target moves, acceptance may fall: whose fault that is, and that a dead draft is found all the same."""

from collections.abc import Sequence

import numpy as np
import pytest
from fleet import publish, version
from paceline.buffer.board.version import VersionState
from paceline.buffer.stream.trace import FeatureDtype
from paceline.policies.canary import CanaryRules
from paceline.policies.guard import GuardLimits
from paceline.policies.verdict_words import alarm_sentence
from paceline.serving.watch.canary_trial import READ_S
from paceline.serving.watch.draft_monitor import DraftMonitor
from paceline.serving.wire.request_forward import NO_FEATURES, Commit, RequestVerify
from said import said_by
from twins.memory_board import MemoryVersionBoard

USUAL = 50  # rounds, of five requests
DEAD, LOW, GOOD = 0, 1, 2


def verify(request_id: str, draft: int, target: str, accepted: int, finish: str) -> RequestVerify:
    ids = np.zeros((4, 0), np.int32)
    return RequestVerify(
        request_id, draft, target, 3, 7, np.array((0, 1, 2), np.int32), accepted, ids, ids.astype(np.float16),
        NO_FEATURES, FeatureDtype.FLOAT32, Commit(1, (5,) * (accepted + 1), finish),
    )  # fmt: skip


class Replica:
    """One server with drafts 0, 1, 2, of which the newest is live."""

    def __init__(self, *, alternates: bool = False) -> None:
        self.now, self.requests = 1000.0, 0
        self.board = MemoryVersionBoard(lambda: self.now)
        publish(self.board, 0, 1, 2)
        self.board.register(version(3), "l", "new")
        limits = GuardLimits(min_rounds=USUAL)
        self.monitor = DraftMonitor(self.board, "rep", CanaryRules(max_requests=60), limits, alternates=alternates)

    def serve(self, draft: int, target: str, accepted: Sequence[int]) -> None:
        """Requests of up to ten rounds, one after the other; the monitor decides after each."""
        for begin in range(0, len(accepted), 10):
            rounds = accepted[begin : begin + 10]
            for number, kept in enumerate(rounds, 1):
                finish = "length" if number == len(rounds) else ""
                self.monitor.add(verify(f"r{self.requests}", draft, target, kept, finish))
            self.requests += 1
            self.now += READ_S
            self.monitor.turn(self.now)

    @property
    def live(self) -> int | None:
        return self.board.read().live

    @property
    def alarms(self) -> list[tuple[str, str]]:
        """Action and text of each."""
        told = said_by(self.monitor).alarms
        return [(alarm.action, alarm_sentence(alarm.name, alarm.figures)) for alarm in told]


@pytest.fixture
def replica() -> Replica:
    return Replica()


def test_a_draft_that_only_the_targets_move_has_killed_is_reported_and_stays(replica) -> None:
    replica.serve(2, "7", [GOOD] * USUAL)
    replica.serve(2, "8", [DEAD] * (USUAL - 10))
    assert replica.alarms == []
    replica.serve(2, "8", [DEAD] * 10)
    said = f"accept length 1.000 over {USUAL} rounds, 3.000 before; the target moved from 7 to 8 meanwhile"
    assert (replica.live, replica.alarms) == (2, [("tell", said)])
    replica.serve(2, "8", [DEAD] * 3 * USUAL)
    assert (replica.live, len(replica.alarms)) == (2, 1)  # that is the level now


@pytest.mark.guarantee("alarm-silent-death")
@pytest.mark.parametrize(
    "before",
    [
        [(1, "7", GOOD, 50), (1, "8", GOOD, 50)],  # the level under the new target is known
        [(1, "7", GOOD, 50), (1, "8", GOOD, 20)],  # the target moved just before
        [(1, "7", GOOD, 50)],  # with it
        [(1, "7", GOOD, 50), (2, "7", DEAD, 20)],  # just after
        [(1, "7", GOOD, 50), (1, "8", LOW, 50)],
    ],
)
def test_a_dead_draft_is_out_within_its_usual_rounds_of_the_change(replica, before) -> None:
    for draft, target, accepted, rounds in before:
        replica.serve(draft, target, [accepted] * rounds)
    replica.serve(2, "8", [DEAD] * (USUAL - 10))
    assert replica.live == 2
    replica.serve(2, "8", [DEAD] * 10)
    assert replica.live == 1
    ((action, said),) = replica.alarms
    assert action == "roll_back"
    is_known = len(before) == 2 and before[1][3] == 50
    assert said.endswith("before" if is_known else "3.000 before; the target moved from 7 to 8 meanwhile")


@pytest.mark.parametrize("rounds", [40, 50, 150])
def test_a_draft_that_came_to_a_target_on_which_the_one_before_had_died_is_not_blamed(replica, rounds: int) -> None:
    replica.serve(1, "7", [GOOD] * USUAL)
    replica.serve(1, "unrelated", [DEAD] * rounds)
    replica.serve(2, "unrelated", [DEAD] * 2 * USUAL)
    assert replica.live == 2
    assert {action for action, _ in replica.alarms} <= {"tell"}
    replica.serve(2, "unrelated", [GOOD] * USUAL)  # it has learnt
    replica.serve(3, "unrelated", [GOOD] * 10)
    replica.board.move(3, VersionState.LIVE, "l", "better")
    replica.serve(3, "unrelated", [DEAD] * (USUAL + 40))
    assert replica.live == 2
    assert replica.alarms[-1][0] == "roll_back"


def test_a_target_that_moves_without_a_fall_raises_nothing_and_its_level_is_the_next_to_compare_with(replica) -> None:
    for target in range(12):
        replica.serve(2, str(target), [GOOD - target % 2] * USUAL)
    assert replica.alarms == []
    replica.serve(2, "11", [DEAD] * USUAL)
    assert (replica.live, replica.alarms[-1][1]) == (1, f"accept length 1.000 over {USUAL} rounds, 2.000 before")


def test_targets_that_move_faster_than_rounds_come_hide_no_dead_draft(replica) -> None:
    replica.serve(1, "0", [GOOD] * USUAL)
    for target in range(1, 8):
        replica.serve(2, str(target), [DEAD] * 20)
    assert replica.live == 1
    replica = Replica()
    for target in range(20):
        replica.serve(2, str(target), [GOOD] * 20)
    assert (replica.live, replica.alarms) == (2, [])


def test_a_mixed_interval_is_of_the_target_that_it_began_under(replica) -> None:
    replica.serve(2, "5", [GOOD] * 20)
    replica.serve(2, "6", [GOOD] * 40)  # cut once since an interval was judged
    replica.serve(2, "7", [DEAD] * 10)  # of one interval with the ten rounds before
    replica.serve(2, "7", [DEAD] * 2 * USUAL)
    assert (replica.live, {action for action, _ in replica.alarms}) == (2, {"tell"})


def test_versions_that_take_turns_are_each_compared_with_their_own_turns_under_the_new_target() -> None:
    replica = Replica(alternates=True)
    replica.board.move(3, VersionState.CANARY, "l", "won", replica="rep")
    for target in ("7", "8"):
        replica.serve(2, target, [GOOD if target == "7" else DEAD] * USUAL)
    replica.serve(3, "8", [DEAD] * 20)
    replica.serve(2, "8", [DEAD] * USUAL)
    assert (replica.live, [action for action, _ in replica.alarms]) == (2, ["tell"])


def test_the_live_arms_level_under_the_old_target_kills_no_canary(replica) -> None:
    replica.board.move(3, VersionState.CANARY, "l", "won", replica="rep")
    other = DraftMonitor(replica.board, "other", CanaryRules(), GuardLimits(min_rounds=USUAL))
    for number in range(12):
        for round_ in range(10):
            other.add(verify(f"live-{number}", 2, "7", GOOD, "length" if round_ == 9 else ""))
    replica.board.beat("replica:other", said_by(other), 1e6)
    replica.serve(3, "7", [GOOD] * 2 * USUAL)
    assert replica.monitor._trial.live.rounds == 120
    replica.serve(3, "8", [GOOD])
    assert replica.monitor._trial.live.rounds == 0
