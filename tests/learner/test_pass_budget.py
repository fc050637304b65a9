"""How many passes a learning round has time for."""

import pytest
from paceline.learner.delivery.pending_registrations import PendingRegistrations, read_record
from paceline.learner.training.plan import PassBudget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def begun(clock: Clock, share: float = 0.6, most: int = 4) -> PassBudget:
    """After a first learning round in which a pass over a trace took 0.1 s."""
    budget = PassBudget(most, share, clock)
    assert budget.begin(10) == most
    budget.end(10, most, most * 10 * 0.1)
    return budget


@pytest.mark.parametrize(
    ("since_s", "traces", "passes"),
    [
        (100.0, 40, 4),  # 60 s are enough for 15 passes of 4 s
        (20.0, 40, 3),  # 12 s
        (20.0, 48, 2),  # 12 s for passes of 4.8 s
        (20.0, 50, 2),
        (20.0, 400, 1),  # not even one of 40 s
        (20.0, 29, 4),
    ],
)
def test_training_takes_its_share_of_the_time_since_the_learning_round_before(since_s, traces, passes):
    clock = Clock()
    budget = begun(clock)
    clock.now += since_s
    assert budget.begin(traces) == passes


def test_without_a_share_every_learning_round_passes_as_often():
    clock = Clock()
    budget = begun(clock, share=0.0)
    assert budget.begin(1000) == 4


def test_time_is_counted_from_the_last_learning_round_and_speed_is_that_of_the_last_one():
    clock = Clock()
    budget = begun(clock)
    clock.now += 100.0
    assert budget.begin(40) == 4
    budget.end(40, 4, 4 * 40 * 0.2)  # twice as slow
    clock.now += 20.0
    assert budget.begin(40) == 2  # 12 s for passes of 8 s: 1.5, and half is rounded to even


def claimed(share: float, arrival_s: float, pass_s: float, other_s: float) -> list[int]:
    """Traces of every learning round of a learner that takes up the next one at once, simulated."""
    clock, found, waiting = Clock(), [], 20.0
    budget = PassBudget(4, share, clock)
    for _ in range(60):
        traces = int(waiting)
        found.append(traces)
        passes = budget.begin(traces)
        budget.end(traces, passes, traces * passes * pass_s)
        took_s = traces * passes * pass_s + other_s
        clock.now += took_s
        waiting = waiting - traces + took_s / arrival_s
    return found


def test_a_learner_that_keeps_up_with_its_traces_only_just_claims_fewer_of_them():
    # 4 passes take 0.36 s a trace and one comes every 0.4 s: what is beside training adds up to ten times as much.
    unbounded, bounded = claimed(0.0, 0.4, 0.09, 3.0), claimed(0.6, 0.4, 0.09, 3.0)
    assert 70 <= unbounded[-1] <= 76
    assert max(bounded[5:]) <= 30


def test_a_learner_that_cannot_keep_up_with_four_passes_does_so_with_fewer():
    unbounded, bounded = claimed(0.0, 0.3, 0.09, 3.0), claimed(0.6, 0.3, 0.09, 3.0)
    assert unbounded[-1] > 500
    assert max(bounded[5:]) <= 40


def test_a_learning_round_trains_and_is_recorded_with_its_passes(house, monkeypatch):
    asked, told = [], []
    monkeypatch.setattr(PassBudget, "begin", lambda _, traces: asked.append(traces) or 1)
    monkeypatch.setattr(PassBudget, "end", lambda _, *given: told.append(given))
    house.send()
    report = house.learner(learn="always", passes=3).learn_once()
    assert asked == [report.outcomes["learned"]]
    assert told == [(asked[0], 1, report.fit.seconds)]
    first, second = (asked[0] + 1) // 2, asked[0] // 2
    assert report.fit.steps == -(-first // 4) + -(-second // 2)  # the second block is trained with replay
    (file,) = PendingRegistrations(house.pending).files()
    record = read_record(file)
    assert record.params["passes"] == "1"
    assert record.evidence["refit"]["plan"]["passes"] == 1


def test_a_learner_passes_less_often_over_what_came_while_it_trained(house):
    learner = house.learner(learn="always", passes=20, training_share=0.01)
    house.send()
    first = learner.learn_once()
    house.send()
    second = learner.learn_once()
    assert second.fit.steps < first.fit.steps / 5
