"""The target's versions by age: against a plain list that versions are put into one after the other."""

import json
import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies import target_history
from paceline.policies.target_history import REMEMBERED_VERSIONS, SET_BACK_AFTER, TargetHistory, by_age

#: Versions that count up, some with unnamed updates, and names that do not.
VERSIONS = [
    "0",
    "1",
    "2",
    "3",
    "10",
    "2+1",
    "2+2",
    "2+10",
    "10+1",
    "june",
    "june+1",
    "june+2",
    "05",
    "v7",
    "v8",
    "1.5",
    "",
]
streams = st.lists(st.sampled_from(VERSIONS), max_size=40)


def is_older(version: str, other: str) -> bool:
    """Whether `version` comes before `other` by value; False of two that no count compares."""
    ours, theirs = (re.fullmatch(r"(.*?)(?:\+([1-9]\d*))?", name).groups() for name in (version, other))
    updates = int(ours[1] or 0), int(theirs[1] or 0)
    if ours[0] == theirs[0]:
        return updates[0] < updates[1]
    numbers = [text for text, _ in (ours, theirs) if text.isdecimal() and str(int(text)) == text]
    return len(numbers) == 2 and int(numbers[0]) < int(numbers[1])


def put(order: list[str], version: str) -> None:
    """One trace: a new version comes last, or before the first one that is newer by value."""
    if version not in order:
        newer = [place for place, known in enumerate(order) if is_older(version, known)]
        order.insert(newer[0] if newer else len(order), version)


def slow_order(stream: Sequence[str]) -> list[str]:
    order: list[str] = []
    for version in stream:
        put(order, version)
    return order


def slow_trained(stream: Sequence[str], max_age: int, patience: int) -> list[str]:
    """As a list, of which a long row of traces without the newest version takes off what is newer than they are."""
    order, row = list[str](), list[str]()
    for version in stream:
        put(order, version)
        row = [] if version == order[-1] else [*row, version]
        if len(row) == patience:
            while order[-1] not in row:
                order.pop()
            row = []
    return order[-(max_age + 1) :]


def places(stream: Sequence[str]) -> list[tuple[tuple[int, int], str]]:
    """Traces three to a millisecond, as Redis numbers entries."""
    return [((1000 + number // 3, number % 3), version) for number, version in enumerate(stream)]


def followed(stream: Sequence[str], max_age: int = 2) -> TargetHistory:
    history = TargetHistory("llama", max_age)
    history.observe(places(stream))
    return history


@given(streams)
def test_versions_are_ordered_as_by_putting_each_into_a_list(stream: list[str]) -> None:
    first_seen = {version: place for place, version in reversed(places(stream))}
    assert by_age(first_seen) == slow_order(stream)


@given(streams, st.integers(0, 3), st.randoms(use_true_random=False))
def test_what_is_trained_on_is_the_same_in_whatever_order_traces_are_claimed(
    stream: list[str], max_age: int, chance: random.Random
) -> None:
    claims = places(stream)
    chance.shuffle(claims)
    history = TargetHistory("llama", max_age)
    for begin in range(0, len(claims), 7):
        history.observe(claims[begin : begin + 7])
    assert list(history.trained) == slow_order(stream)[-(max_age + 1) :]
    assert history.newest == (slow_order(stream) or [None])[-1]


@given(streams, st.integers(0, 2), st.integers(1, 4), st.integers(1, 5))
def test_a_long_row_of_traces_without_the_newest_version_sets_the_history_back(
    stream: list[str], max_age: int, patience: int, claim: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(target_history, "SET_BACK_AFTER", patience)
        history, traces = TargetHistory("llama", max_age), places(stream)
        for begin in range(0, len(traces), claim):
            history.observe(traces[begin : begin + claim])
            restored = TargetHistory("llama", max_age)  # a restart after every claim changes nothing
            restored.restore(json.loads(json.dumps(history.state())))
            assert restored.trained == history.trained
            history = restored
    assert list(history.trained) == slow_trained(stream, max_age, patience)


def test_before_any_trace_no_version_is_known() -> None:
    history = TargetHistory("llama", 2)
    history.restore({})
    assert (history.newest, history.trained, history.judging) == (None, (), ())


@pytest.mark.parametrize(
    ("stream", "trained"),
    [
        (["3", "5", "3"], ("3", "5")),  # a late trace does not turn the target back
        (["5", "3", "4"], ("3", "4", "5")),
        (["9", "10", "11", "12"], ("10", "11", "12")),  # by value, not by text
        (["7", "7+1", "7+2", "8", "7+3"], ("7+2", "7+3", "8")),
        (["default", "default+1", "1", "default+2"], ("default+1", "1", "default+2")),
        (["june", "may", "june"], ("june", "may")),  # names by their first trace
        (["41", "other", "42"], ("41", "other", "42")),
        (["v9", "v10"], ("v9", "v10")),
    ],
)
def test_the_newest_and_the_two_before_it_are_trained_on(stream: list[str], trained: tuple[str, ...]) -> None:
    history = followed(stream)
    assert (history.trained, history.judging, history.newest) == (trained, trained, trained[-1])


@pytest.mark.parametrize("known", [["500"] * 9, [str(number) for number in range(490, 501)], [*map(str, range(501))]])
def test_a_run_that_begins_again_at_zero_is_followed_after_a_hundred_traces_without_the_newest(known) -> None:
    almost = [*known, *["0"] * (SET_BACK_AFTER - 1)]
    assert followed(almost).newest == "500"
    assert followed([*almost, "500", "0"]).newest == "500"
    begun = [*known, *["0"] * 40, *["1"] * 40, *["2"] * 20]
    assert followed(begun).trained == ("0", "1", "2")
    assert followed([*begun, "3"]).trained == ("1", "2", "3")


def test_a_target_that_returns_to_an_earlier_name_is_followed_after_a_hundred_traces() -> None:
    went = ["may", "june", "july"]
    assert followed([*went, *["june"] * (SET_BACK_AFTER - 1)]).trained == ("may", "june", "july")
    assert followed([*went, *["june"] * SET_BACK_AFTER]).trained == ("may", "june")
    assert followed([*went, *["june"] * SET_BACK_AFTER, "july"]).trained == ("may", "june", "july")


def test_traces_from_before_the_target_was_set_back_count_no_more() -> None:
    old, new = [str(number) for number in range(490, 501)], ["0"] * SET_BACK_AFTER
    history, traces = followed([*old, *new]), places([*old, *new])
    history.observe(traces[: len(old)])  # a dead learner had claimed them, and they are claimed again
    assert history.trained == ("0",)


def test_another_target_starts_a_history_of_its_own() -> None:
    history = TargetHistory("qwen", 2)
    history.restore(followed(["41", "42"]).state())
    assert history.trained == ()
    history.observe(places(["1"]))
    assert history.trained == ("1",)


def test_versions_that_an_operator_names_are_changed_by_no_trace_and_only_the_newest_judges() -> None:
    history = TargetHistory("llama", 1, ("a", "b"))
    history.restore(followed(["41"]).state())
    history.observe(places(["c", "d"]))
    assert (history.trained, history.judging, history.newest, history.state()) == (("a", "b"), ("b",), "b", {})


@pytest.mark.guarantee("bounded-memory")
def test_an_endless_run_is_remembered_in_bounded_memory() -> None:
    steps = [str(number) for number in range(REMEMBERED_VERSIONS + 500)]
    history = followed([*steps, "3", "9" * 5000])
    assert history.trained == (*steps[-2:], "9" * 5000)  # no number of so many digits: a name
    assert len(json.loads(json.dumps(history.state()))["first_seen"]) == REMEMBERED_VERSIONS
