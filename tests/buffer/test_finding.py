"""What findings mean together, and how one is printed."""

import pytest
from paceline.buffer.finding import Finding, Level, exit_code, worst


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ([], 0),
        ([Level.OK, Level.NOTE], 0),
        ([Level.OK, Level.UNKNOWN, Level.NOTE], 2),
        ([Level.UNKNOWN, Level.WRONG], 1),
    ],
)
def test_the_exit_code_tells_well_from_wrong_from_unknown(levels, code):
    assert exit_code([Finding("t", level, "s") for level in levels]) == code


@pytest.mark.parametrize(("codes", "code"), [([], 0), ([0, 0], 0), ([0, 2], 2), ([2, 1], 1), ([0, -9], 1), ([3, 2], 1)])
def test_of_several_answers_the_worst_counts(codes, code):
    assert worst(codes) == code


def test_a_line_cannot_steer_the_terminal():
    assert "\x1b" not in Finding("Redis", Level.WRONG, "got \x1b[2J").line()
