"""Drafters without a model in `paceline explain`: who does better and where, that nobody does, and what is unknown."""

import io

import pytest
from fleet import learner, snapshot
from paceline.dashboards.explain import as_fields, explained, print_explanation
from paceline.dashboards.model_free import beside
from rich.console import Console

LOOKUP = "prompt lookup"
TABLE = "n-gram table"


def drafter(name, length, draft, low=None, high=None):
    return {"drafter": name, "accept_length": length, "gain": length / draft, "low": low, "high": high}


def row(label, draft, *drafters, traces=40):
    return {"label": label, "traces": traces, "tokens": 50 * traces, "accept_length": draft, "drafters": [*drafters]}


def said(*rows, left_out=None):
    return {"by_label": [*rows], "left_out": left_out or {}, "microseconds_per_round": {LOOKUP: 12.0, TABLE: 40.0}}


JSON = row("json", 1.5, drafter(LOOKUP, 1.6, 1.5, 0.9, 1.2), drafter(TABLE, 2.4, 1.5, 1.4, 1.8))
TALK = row("talk", 2.0, drafter(LOOKUP, 1.2, 2.0, 0.5, 0.7), drafter(TABLE, 1.4, 2.0, 0.6, 0.8), traces=60)
ALL = row(None, 1.8, drafter(LOOKUP, 1.4, 1.8, 0.7, 0.9), drafter(TABLE, 1.7, 1.8, 0.85, 1.05), traces=100)


def sentences(*rows):
    return beside(snapshot(learner_l=learner(model_free=said(*rows)))).sentences


def test_the_label_on_which_one_does_better_is_named_with_its_figures_and_what_to_try():
    (text,) = sentences(ALL, JSON, TALK)
    assert text.startswith(
        "A drafter without a model does better on json: n-gram table, accept length 2.40, the draft 1.50 (x1.60, 40"
    )
    assert "talk" not in text
    assert "--speculative-algorithm NGRAM" in text


def test_one_that_does_better_on_all_traffic_is_said_once():
    better = row(None, 1.5, drafter(LOOKUP, 1.7, 1.5, 1.05, 1.2), drafter(TABLE, 2.4, 1.5, 1.4, 1.8), traces=100)
    (text,) = sentences(better, JSON)
    assert text.startswith(
        "A drafter without a model does better on all traffic: n-gram table, accept length 2.40, the"
    )
    assert "json" not in text


def test_where_none_does_better_that_is_said_and_a_gain_without_an_interval_is_none():
    few = row("new", 1.0, drafter(LOOKUP, 3.0, 1.0), drafter(TABLE, 3.0, 1.0), traces=3)
    (text,) = sentences(ALL, TALK, few)
    assert text == (
        "No drafter without a model does better on any label; the best, n-gram table: accept length 1.70, the draft "
        "1.80."
    )


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({}, "no learner has replayed them"),
        ({"learner_l": learner(900.0, is_alive=False, model_free=said(ALL))}, "no learner has replayed them"),
        (
            {"learner_l": learner(model_free=said(left_out={"rounds without drafts": 7}))},
            "the learner has replayed no trace yet (left out: 7 rounds without drafts)",
        ),
    ],
)
def test_what_is_unknown_is_said_with_its_reason(members, why):
    found = beside(snapshot(**members))
    assert (found.sentences, found.why_unknown) == ([], f"drafters without a model: unknown, {why}")


def test_rows_that_hold_no_drafter_are_left_out():
    found = beside(snapshot(learner_l=learner(model_free=said({**ALL, "drafters": []}))))
    assert (found.rows, found.sentences) == ([], [])


def test_of_two_learners_the_one_that_replayed_more_speaks():
    found = beside(snapshot(learner_a=learner(model_free=said(JSON)), learner_b=learner(model_free=said(ALL))))
    assert [each.traces for each in found.rows] == [100]


def test_explain_has_the_table_and_its_json_the_rows():
    seen = snapshot(learner_l=learner(model_free=said(ALL, JSON, row("", 1.0, *TALK["drafters"]))))
    out = io.StringIO()
    found = explained(seen, None, None)
    print_explanation(Console(file=out, width=160), found)
    text = out.getvalue()
    for expected in ("all", "json", "no label", "2.40 x1.60 (1.40 .. 1.80)", "accept length on the same text"):
        assert expected in text
    fields = as_fields(found)["model_free"]
    assert [each["label"] for each in fields["rows"]] == [None, "json", ""]
    assert fields["rows"][1]["drafters"][1] == JSON["drafters"][1]
    assert fields["answer"] == found.beside.sentences
