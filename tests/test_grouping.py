"""What grouping.py names exists: a file that was renamed takes its entry along, and the shared server its order."""

from pathlib import Path

from grouping import GROUPS, ON_THE_SHARED_SERVER, ORDER, SLOW, group_of, in_order, without_a_test

ROOT = Path(__file__).resolve().parents[1]


def test_every_slow_test_and_every_group_is_there() -> None:
    files = [group for group in ORDER if group not in GROUPS.values()]
    assert without_a_test(ROOT, [*SLOW, *GROUPS, *files]) == []


def test_files_on_the_shared_server_run_in_their_order_and_in_one_group() -> None:
    first, second = ON_THE_SHARED_SERVER[:2]
    assert in_order(["a", f"{second}::x", "b", f"{first}::y", f"{first}::z"]) == [
        "a", f"{first}::y", f"{first}::z", f"{second}::x", "b"
    ]  # fmt: skip
    assert {group_of(f"{file}::x") for file in ON_THE_SHARED_SERVER} == {"shared server"}
    assert group_of("tests/buffer/test_codec.py::test_x") == "tests/buffer/test_codec.py"
