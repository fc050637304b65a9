"""Text and times out of Redis are shown without harm, whatever was written there."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.buffer.plain_text import printable, utc_time


@pytest.mark.parametrize(
    "harmful", ["\x1b[2J", "\x9b31m", "\r", "\n", "\t", "\x00", "\x7f", "\u202e", "\u2028", "\ud800"]
)
def test_what_could_steer_a_terminal_is_replaced(harmful):
    assert printable(f"a{harmful}b") == f"a\N{REPLACEMENT CHARACTER}{harmful[1:]}b"


def test_readable_text_stays_as_it_is():
    assert printable("better by [0.1, 0.4] \N{EM DASH} größer, 更好") == "better by [0.1, 0.4] \N{EM DASH} größer, 更好"


@given(st.text())
def test_every_text_becomes_printable_at_the_same_length(text):
    assert printable(text).isprintable()
    assert len(printable(text)) == len(text)


def test_a_time_is_shown_in_utc():
    assert utc_time(1_700_000_000.9) == "2023-11-14 22:13:20Z"
    assert utc_time(0) == "1970-01-01 00:00:00Z"


@pytest.mark.parametrize(
    ("unix_s", "shown"), [(1e300, "1e+300 s"), (-1e13, "-1e+13 s"), (math.inf, "inf s"), (math.nan, "nan s")]
)
def test_a_time_that_no_calendar_has_is_shown_as_a_number(unix_s, shown):
    assert utc_time(unix_s) == shown


@given(st.floats())
def test_no_time_is_an_error(unix_s):
    assert utc_time(unix_s).isprintable()
