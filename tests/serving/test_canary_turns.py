"""Canary and live version take turns by the clock, the canary first."""

import math

import pytest
from paceline.serving.swap.swapper import CanaryTurns


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def test_turns_begin_with_the_canary_and_report_how_long_they_last():
    clock = Clock()
    turns = CanaryTurns(20.0, clock)
    seen = []
    for passed_s in (0.0, 19.0, 20.0, 39.0, 40.0, 65.0):
        clock.now_s = 1000.0 + passed_s
        seen.append((turns.is_its_turn(5), turns.left_s()))
    assert [turn for turn, _ in seen] == [True, True, False, False, True, False]
    assert [left for _, left in seen] == pytest.approx([20.0, 1.0, 20.0, 1.0, 20.0, 15.0])


def test_another_canary_starts_with_a_turn_of_its_own():
    clock = Clock()
    turns = CanaryTurns(20.0, clock)
    turns.is_its_turn(5)
    clock.now_s += 25.0
    assert turns.is_its_turn(6)
    assert turns.left_s() == 20.0
    turns.end()
    assert turns.left_s() == math.inf
    clock.now_s += 25.0
    assert turns.is_its_turn(6)


def test_without_turns_the_canary_always_drafts():
    clock = Clock()
    turns = CanaryTurns(0.0, clock)
    for _ in range(3):
        assert turns.is_its_turn(5)
        clock.now_s += 30.0
    assert turns.left_s() == math.inf
