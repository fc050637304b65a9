"""Canary and live version take turns by the clock, the canary first."""

import math

import pytest
from paceline.serving.swap.canary_turns import CanaryTurns


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def test_turns_begin_with_the_canary_and_say_how_long_they_last():
    clock = Clock()
    windows = CanaryTurns(20.0, clock)
    seen = []
    for passed_s in (0.0, 19.0, 20.0, 39.0, 40.0, 65.0):
        clock.now_s = 1000.0 + passed_s
        seen.append((windows.is_its_turn(5), windows.left_s()))
    assert [turn for turn, _ in seen] == [True, True, False, False, True, False]
    assert [left for _, left in seen] == pytest.approx([20.0, 1.0, 20.0, 1.0, 20.0, 15.0])


def test_another_canary_begins_anew():
    clock = Clock()
    windows = CanaryTurns(20.0, clock)
    windows.is_its_turn(5)
    clock.now_s += 25.0
    assert windows.is_its_turn(6)
    assert windows.left_s() == 20.0
    windows.over()
    assert windows.left_s() == math.inf
    clock.now_s += 25.0
    assert windows.is_its_turn(6)


def test_without_windows_it_is_always_the_canarys_turn():
    clock = Clock()
    windows = CanaryTurns(0.0, clock)
    for _ in range(3):
        assert windows.is_its_turn(5)
        clock.now_s += 30.0
    assert windows.left_s() == math.inf
