"""The tap is bounded and remembers whom it lost."""

import numpy as np
from paceline.buffer.trace import FeatureDtype, Sampling, VerdictRule
from paceline.serving.steps import NO_FEATURES, Commit, PrefillStep, RequestFacts
from paceline.serving.tap import Tap


def step(name):
    facts = RequestFacts("", Sampling(), VerdictRule.GREEDY)
    return PrefillStep(name, 0, facts, 0, np.zeros(1, np.int32), NO_FEATURES, FeatureDtype.FLOAT32, Commit(0, (), ""))


def names(batches):
    return [[s.request_id for s in batch] for batch in batches]


def test_batches_come_out_in_order_and_a_full_tap_marks_the_requests_it_lost():
    tap = Tap(max_batches=2)
    assert [tap.offer([step("a")]), tap.offer([step("b"), step("c")]), tap.offer([step("d"), step("a")])] == [
        True,
        True,
        False,
    ]
    batches, lost = tap.take(wait_s=0.0)
    assert (names(batches), lost) == ([["a"], ["b", "c"]], {"d", "a"})
    assert tap.take(wait_s=0.0) == ([], set())


def test_lost_requests_are_told_only_when_their_earlier_steps_are_out():
    tap = Tap(max_batches=4)
    for name in ("a", "b", "c", "d", "e"):
        tap.offer([step(name)])
    first, second = tap.take(0.0, max_batches=3), tap.take(0.0, max_batches=3)
    assert (names(first[0]), first[1]) == ([["a"], ["b"], ["c"]], set())
    assert (names(second[0]), second[1]) == ([["d"]], {"e"})
