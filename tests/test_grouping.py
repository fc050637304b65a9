"""Every beginning of a test's id in grouping.py is that of a test: a file that was renamed takes its entry along."""

from pathlib import Path

import pytest
from grouping import GROUPS, ORDER, SLOW, group_of, without_a_test

ROOT = Path(__file__).resolve().parents[1]


def test_every_slow_test_and_every_group_is_there() -> None:
    assert without_a_test(ROOT, SLOW) == []
    assert without_a_test(ROOT, GROUPS) == []
    assert set(ORDER) == set(GROUPS.values())


@pytest.mark.parametrize(
    "lost",
    [
        "tests/test_grouped.py",
        "tests/grouped/",
        "tests/test_grouping.py::test_nothing",
        "tests/e2e/conftest.py",
        "tests/serving/test_sglang_hooks.py::test_hooks_run",
    ],
)
def test_a_beginning_without_a_test_is_found(lost: str) -> None:
    assert without_a_test(ROOT, ["tests/test_grouping.py", lost, "tests/e2e/"]) == [lost]


def test_the_first_group_that_fits_counts_and_another_file_is_a_group_of_its_own() -> None:
    assert group_of("tests/e2e/test_9_pacing.py::test_x[1]") == "paced server"
    assert group_of("tests/e2e/test_1_capture.py::test_x") == "shared servers"
    assert group_of("tests/buffer/test_codec.py::test_x") == "tests/buffer/test_codec.py"
