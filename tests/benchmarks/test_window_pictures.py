"""When the page is photographed: once it tells the whole story, and at the end of the time anyway."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from paceline.benchmarks.window_pictures import LOOK_EVERY_S, missing, turned_at, watch

TIMES = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


def panel(
    pooled: Sequence[float | None] = (1.0, 2.0, 2.4, 1.5, 1.6, 2.3),
    marks: Sequence[tuple[str, float]] = (("swap", 12.0), ("swap", 22.0), ("refused", 45.0), ("swap", 52.0)),
    prose_from: int = 3,
) -> dict[str, Any]:
    """Code, and prose from the time of that index on."""
    py = [value if index < prose_from else None for index, value in enumerate(pooled)]
    prose = [value if index >= prose_from else None for index, value in enumerate(pooled)]
    return {
        "times": TIMES,
        "pooled": list(pooled),
        "labels": [{"label": "prose", "values": prose}, {"label": "py", "values": py}],
        "marks": [{"kind": kind, "at": at} for kind, at in marks],
    }


def test_a_page_that_shows_everything_lacks_nothing() -> None:
    assert missing(panel()) == []


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        (
            {"marks": [("swap", 12.0), ("refused", 45.0), ("swap", 52.0)]},
            ["two drafts that went live before the traffic"],
        ),
        ({"marks": [("swap", 12.0), ("swap", 22.0), ("swap", 52.0)]}, ["a draft that was refused"]),
        ({"marks": [("swap", 12.0), ("swap", 22.0), ("refused", 45.0)]}, ["a draft that went live later"]),
        ({"pooled": (1.0, 2.0, 2.4, 1.5, 1.6, 1.7)}, ["accept length that is back"]),
        ({"pooled": (1.0, 2.0, 2.4, 2.3, 2.3, 2.3)}, ["accept length that fell"]),
        ({"pooled": (1.0, 2.0, 2.4, 1.5, 2.3, None)}, []),
        (
            {"prose_from": 6},
            [
                "traffic that turned",
                "accept length that fell",
                "a draft that went live later",
                "accept length that is back",
            ],
        ),
    ],
)
def test_what_a_page_does_not_show_yet_is_named(changes: dict, lacks: list[str]) -> None:
    found = missing(panel(**changes))
    assert len(found) == len(lacks)
    assert all(name.startswith(start) for name, start in zip(found, lacks, strict=True))


def test_a_page_without_traffic_has_no_turn() -> None:
    assert turned_at(panel(pooled=[None] * 6)) is None
    assert turned_at(panel()) == 40.0


def test_watching_ends_when_the_story_is_told() -> None:
    looks: list[Mapping[str, Any] | None] = [None, panel(marks=[]), panel()]
    waits: list[float] = []
    assert watch(lambda: looks.pop(0), 1000.0, waits.append) == []
    assert (looks, waits) == ([], [LOOK_EVERY_S] * 2)


def test_when_the_time_is_up_the_last_look_says_what_was_missing() -> None:
    waits: list[float] = []
    told = panel(marks=[("swap", 12.0), ("swap", 22.0), ("swap", 52.0)])
    assert watch(lambda: told, 3 * LOOK_EVERY_S, waits.append) == ["a draft that was refused"]
    assert len(waits) == 3
    assert watch(lambda: None, 0.0, waits.append) == ["a page that answers"]
