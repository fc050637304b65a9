"""The first screen says what will be seen and about when, and promises no turn of traffic where there is none."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from paceline.demo.opening import CHECK_MIN, SPEED_MIN, START_MIN, Plan, print_opening, sights
from rich.console import Console

PLAN = Plan(requests=480, concurrency=4, max_tokens=96, prompts=None, most_per_step=4)


def printed(plan: Plan, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_opening(console, plan)
    return console.file.getvalue()


def test_it_fits_a_terminal_of_80_columns_and_24_rows() -> None:
    lines = printed(PLAN, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24


def test_the_time_it_takes_grows_with_the_tokens_that_are_served() -> None:
    half = Plan(requests=240, concurrency=4, max_tokens=96, prompts=None, most_per_step=4)
    whole = Plan(requests=240, concurrency=8, max_tokens=192, prompts=None, most_per_step=4)
    assert whole.traffic_min == tuple(2 * each for each in half.traffic_min) == PLAN.traffic_min
    assert PLAN.total_min == tuple(
        sum(each) for each in zip(START_MIN, PLAN.traffic_min, CHECK_MIN, SPEED_MIN, strict=True)
    )
    assert "for 1 min" in printed(Plan(requests=8, concurrency=1, max_tokens=8, prompts=None, most_per_step=4))


def test_without_the_last_comparison_it_is_shorter_and_promises_none() -> None:
    short = replace(PLAN, skips_speed=True)
    longer = [a - b for a, b in zip(PLAN.total_min, short.total_min, strict=True)]
    assert longer == pytest.approx(SPEED_MIN)
    assert "tokens per second" in printed(PLAN)
    assert "tokens per second" not in printed(short)


def test_of_ones_own_target_and_draft_it_says_what_is_started_and_how_long_it_takes_here() -> None:
    own = replace(PLAN, target="my/model", tokens_per_s=(60.0, 20.0))
    assert own.traffic_min == (480 * 96 / 60 / 60, 480 * 96 / 20 / 60)
    told = printed(own)
    assert "a server of my/model starts, with a draft of random weights" in told
    assert "explanations of code first, summaries from half-way on" in told
    assert "here, by the speed of this processor and the size of the target" in told
    given = printed(replace(own, draft=Path("drafts/mine")))
    assert "starts, with drafts/mine" in given
    assert "random weights" not in given


def test_prompts_of_ones_own_turn_nowhere() -> None:
    told = sights(Plan(requests=480, concurrency=4, max_tokens=96, prompts=Path("mine.jsonl"), most_per_step=4))
    assert [when for when, _ in told] == ["first", "then", "1 or 2 min in", "at the end"]
    assert "those of mine.jsonl" in told[1][1]
    assert "prose" not in printed(
        Plan(requests=480, concurrency=4, max_tokens=96, prompts=Path("mine.jsonl"), most_per_step=4)
    )
