"""What the loop from traces to drafts does, as its learner counts it."""

from typing import Any

import pytest
from paceline.buffer.board.counters import Counters, LearnerCounters
from paceline.policies.readings import loop_readings as loop
from paceline.policies.readings.windows import Window, windowed

KB = 1000


def entry(at: float, boot: str = "x", **fields: Any) -> Counters:
    return Counters(at=at, boot=boot, learner=LearnerCounters(**fields))


def over(*entries: Counters, since: float = 0.0, until: float = 60.0) -> Window:
    return windowed({"learner:a": entries}, since, until)


def growing(**last: Any) -> Window:
    """100 traces a minute come and 40 leave, in a buffer of 1000 traces of 4 kB."""
    first = {"delivered": 500, "acked": {"learned": 100, "held_out": 20}, "trimmed": 5}
    then = {"delivered": 600, "acked": {"learned": 130, "held_out": 25}, "trimmed": 9, "dead_lettered": 1}
    sizes = {"entries": 50, "bytes": 200 * KB, "max_bytes": 4000 * KB, "pending": 250}
    return over(entry(0.0, **first), entry(60.0, **(then | sizes | last)))


def test_traces_in_and_out_are_rates_of_the_buffer() -> None:
    window = growing()
    assert loop.traces_in_per_second(window).value == pytest.approx(100 / 60)
    assert loop.traces_out_per_second(window).value == pytest.approx((30 + 5 + 4 + 1) / 60)
    assert loop.traces_in_per_second(window).count == 100


def test_the_buffer_is_full_when_the_backlog_has_grown_to_its_bytes() -> None:
    reading = loop.buffer_full_in_s(growing())
    # Room for 1000 traces, of which 250 wait; 60 more a minute.
    assert reading.value == pytest.approx(60.0 * (1000 - 250) / 60)
    assert reading.count == 250
    assert loop.buffer_holds_s(growing()).value == pytest.approx(1000 / 100 * 60.0)


def test_a_backlog_that_shrinks_never_fills_the_buffer() -> None:
    reading = loop.buffer_full_in_s(growing(acked={"learned": 400, "held_out": 20}))
    assert (reading.value, reading.why_unknown) == (None, "traces leave as fast as they come")


def test_without_sizes_nothing_is_said_of_room() -> None:
    for name in ("bytes", "entries"):
        assert loop.buffer_full_in_s(growing(**{name: 0})).why_unknown == "sizes of traces are not known"
    assert loop.buffer_full_in_s(growing(max_bytes=None)).value is None
    assert loop.buffer_holds_s(growing(delivered=500)).why_unknown == "no trace came in the window"


def test_ages_are_those_that_were_said_last() -> None:
    window = growing(oldest_pending_s=12.0, oldest_kept_s=340.0)
    assert (loop.oldest_unread_s(window).value, loop.oldest_kept_s(window).value) == (12.0, 340.0)
    empty = growing(pending=0, entries=0)
    assert loop.oldest_unread_s(empty).why_unknown == "no trace waits"
    assert loop.oldest_kept_s(empty).why_unknown == "the buffer is empty"
    assert loop.oldest_unread_s(growing()).why_unknown == "the learner does not say"


def test_two_learners_see_one_buffer() -> None:
    def life(shift: float) -> list[Counters]:
        return [entry(at + shift, delivered=int(10 * at)) for at in (0.0, 30.0, 59.0)]

    window = windowed({"learner:a": life(0.0), "learner:b": life(1.0)}, 0.0, 60.0)
    assert loop.traces_in_per_second(window).value == pytest.approx(10.0)


def test_a_buffer_that_lost_its_data_counts_on_from_nothing() -> None:
    window = over(entry(0.0, delivered=500, acked={"learned": 400}), entry(60.0, delivered=30, acked={}))
    assert loop.traces_in_per_second(window).value == pytest.approx(0.5)
    assert loop.traces_out_per_second(window).value == 0.0


def test_the_buffer_goes_on_counting_when_a_learner_restarts() -> None:
    """And the learner itself begins again."""
    before, after = {"delivered": 500, "rounds": 40}, {"delivered": 590, "rounds": 2}
    window = over(entry(0.0, **before), entry(30.0, "y", **after), entry(60.0, "y", **(after | {"delivered": 620})))
    assert loop.traces_in_per_second(window).value == pytest.approx(2.0)
    assert window.table("learner", "learning")["rounds"].total == 2


def test_phases_and_verdicts_are_those_of_the_window() -> None:
    earlier = {"rounds": 4, "rests": 1, "verdicts": {"refuse": 3, "promote": 1}, "seconds": {"train": 80.0}}
    later = {
        "rounds": 6,
        "rests": 2,
        "verdicts": {"refuse": 4, "promote": 1, "wait": 1},
        "seconds": {"train": 120.0, "idle": 5.0},
    }
    window = over(entry(0.0, **earlier), entry(60.0, **later))
    assert {name: each.value for name, each in loop.learner_rounds(window).items()} == {
        "promote": 0.0,
        "refuse": 1.0,
        "wait": 1.0,
    }
    assert {name: each.value for name, each in loop.learner_seconds(window).items()} == {"idle": 5.0, "train": 40.0}
    assert {each.count for each in loop.learner_seconds(window).values()} == {3}


def test_no_learner_is_unknown() -> None:
    window = windowed({}, 0.0, 60.0)
    readings = (
        loop.traces_in_per_second,
        loop.traces_out_per_second,
        loop.oldest_unread_s,
        loop.oldest_kept_s,
        loop.buffer_holds_s,
        loop.buffer_full_in_s,
    )
    assert {each(window).why_unknown for each in readings} == {"no learner sent these counters in the window"}
    assert loop.learner_rounds(window) == loop.learner_seconds(window) == {}
