"""What a verdict was judged on: requests, ages and labels, each counted by hand."""

import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.buffer.board.version import OTHER_LABELS, JudgedOn
from paceline.policies.acceptance import Tally
from paceline.policies.judged_on import MAX_LABELS, NEWEST_REQUESTS, figures, judged_on, sentence
from paceline.policies.line_delivery import DeliveryRules, LineDelivery
from paceline.policies.paired import Paired
from paceline.policies.promotion import judge

NOW_S = 1_700_001_000.0


@pytest.fixture
def traces(make_trace):
    """Traces from (request, label, age in seconds) triples."""
    bare = make_trace(0, rounds=1)

    def made(*rows):
        return [
            replace(bare, trace_id=str(i), request_id=request, label=label, born_at=NOW_S - age_s)
            for i, (request, label, age_s) in enumerate(rows)
        ]

    return made


def test_requests_are_counted_once_and_are_as_old_as_their_first_trace(traces):
    judged = traces(("a", "code", 10), ("a", "code", 50), ("b", "", 20), ("c", "chat/de", 900))
    newest = traces(("d", "code", 0), ("e", "", 1), ("f", "", 1))
    found = judged_on(judged, newest, NOW_S)
    assert found == JudgedOn(
        labels={"": 1, "chat/de": 1, "code": 1},
        newest_labels={"": 2, "code": 1},
        median_age_s=50.0,
        oldest_age_s=900.0,
        undated=0,
        targets={"1": 3},
        drafts={0: 3},
    )
    assert found.requests == 3
    assert figures(found) == {"judged_requests": 3.0, "judged_median_age_s": 50.0, "judged_oldest_age_s": 900.0}
    assert sentence(found) == (
        "judged on 3 requests, median age 50 s, oldest 900 s, labels and in brackets those of the newest traffic: "
        "unknown 33% (67%), code 33% (33%), chat/de 33% (0%), target version 1"
    )


def test_what_is_not_known_is_said_to_be_unknown_and_is_no_figure(traces):
    nothing = traces(("a", "", NOW_S), ("b", "", -1.0), ("c", "", math.nan), ("d", "", -math.inf))
    found = judged_on(nothing, [], NOW_S)
    assert found == JudgedOn(
        labels={"": 4},
        newest_labels={},
        median_age_s=None,
        oldest_age_s=None,
        undated=4,
        targets={"1": 4},
        drafts={0: 4},
    )
    assert sentence(found) == "judged on 4 requests, age unknown, labels unknown, target version 1"
    assert sentence(replace(found, targets={})) == "judged on 4 requests, age unknown, labels unknown"
    assert figures(found) == {"judged_requests": 4.0}


def test_a_request_without_a_time_is_left_out_of_the_ages_and_counted(traces):
    found = judged_on(
        traces(("a", "code", 30), ("b", "code", NOW_S), ("c", "code", NOW_S), ("c", "code", 7)), [], NOW_S
    )
    assert (found.median_age_s, found.oldest_age_s, found.undated) == (18.5, 30.0, 1)
    assert sentence(found) == (
        "judged on 3 requests, median age 18 s, oldest 30 s, 1 of unknown age, "
        "labels and in brackets those of the newest traffic: code 100% (unknown), target version 1"
    )


def test_requests_are_counted_by_the_draft_that_served_them_newest_first_and_one_over_a_swap_for_each(traces):
    judged = [
        replace(trace, draft_version=version)
        for trace, version in zip(traces(*((name, "", 1) for name in "aabbc")), (4, 4, 5, 6, 6), strict=True)
    ]
    found = judged_on(judged, [], NOW_S)
    assert [*found.drafts.items()] == [(6, 2), (5, 1), (4, 1)]


def test_of_the_newest_traffic_the_last_200_requests_count_each_once(traces):
    older = [(f"older {i}", "py", 60) for i in range(50)]
    latest = [(f"latest {i // 2}", "prose" if i < 80 else "py", 1) for i in range(2 * NEWEST_REQUESTS)]
    assert judged_on([], traces(*older, *latest), NOW_S).newest_labels == {"prose": 40, "py": 160}
    assert judged_on([], traces(*older, *latest[:80]), NOW_S).newest_labels == {"py": 50, "prose": 40}


def test_requests_are_counted_by_the_version_of_the_target_and_one_over_an_update_for_each(traces):
    judged = [
        replace(trace, target_version=version)
        for trace, version in zip(traces(*((name, "", 1) for name in "aabbc")), "66787", strict=True)
    ]
    found = judged_on(judged, [], NOW_S)
    assert (found.requests, found.targets) == (3, {"6": 1, "7": 2, "8": 1})
    assert sentence(found).endswith(", target versions and in brackets their requests: 6 (1), 7 (2), 8 (1)")


def test_a_label_of_the_newest_traffic_that_judged_nothing_is_shown(traces):
    newest = traces(*((str(i), "code" if i else "chat", 0) for i in range(200)))
    found = sentence(judged_on(traces(("a", "", 1)), newest, NOW_S))
    assert found.endswith("newest traffic: unknown 100% (0%), code 0% (100%), chat 0% (<1%), target version 1")


@pytest.mark.guarantee("labels-are-plain-names")
def test_the_most_frequent_labels_of_both_are_named_and_the_others_are_one_count(traces):
    judged = traces(*((f"{i}.{n}", f"label-{i}", 1) for i in range(9) for n in range(i + 1)), ("x", "", 1))
    newest = traces(("y", "label-0", 1), *((f"z{n}", "new", 1) for n in range(50)))
    found = judged_on(judged, newest, NOW_S)
    named = {f"label-{i}": i + 1 for i in range(9 - MAX_LABELS + 1, 9)}
    assert found.labels == {**named, OTHER_LABELS: 1 + 2 + 3 + 4, "": 1}
    assert found.newest_labels == {"new": 50, OTHER_LABELS: 1}
    assert (found.requests, "others 22% (2%)" in sentence(found)) == (46, True)


@given(
    rows=st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["", "x", "y"]), st.floats(0, 1e6)), min_size=1)
)
def test_ages_and_counts_are_those_of_a_slow_count(rows):
    from conftest import build_trace

    bare, label_of = build_trace(0, rounds=1), {request: label for request, label, _ in rows}
    judged = [
        replace(bare, request_id=request, label=label_of[request], born_at=NOW_S - age_s) for request, _, age_s in rows
    ]
    ages = [max(NOW_S - t.born_at for t in judged if t.request_id == request) for request in label_of]
    found = judged_on(judged, judged[:1], NOW_S)
    assert (found.median_age_s, found.oldest_age_s) == (median(ages), max(ages))
    values = list(label_of.values())
    assert found.labels == {label: values.count(label) for label in set(values)}
    assert found.newest_labels == {label_of[rows[0][0]]: 1}


def test_a_verdict_says_what_it_was_judged_on():
    on, rng = (
        JudgedOn(labels={"code": 9}, newest_labels={"code": 1}, median_age_s=5.0, oldest_age_s=9.0),
        np.random.default_rng,
    )
    decided = LineDelivery(DeliveryRules(), 0).decide(1, 0, is_ruined=False)
    pairs = [Paired("", Tally(3, 2), Tally(2, 2))] * 9
    without, with_it = (judge(decided, pairs, 0, confidence=0.95, rng=rng(0), judged_on=given) for given in (None, on))
    assert with_it == replace(without, judged_on=on)
    assert without.judged_on is None
