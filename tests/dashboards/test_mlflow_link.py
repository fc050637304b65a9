"""The link from a draft to its run: what a learner last said of MLflow, and nothing that is not a page."""

import pytest
from fleet import NOW, board, learner, snapshot
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.finding import Level
from paceline.dashboards.answer import answer
from paceline.dashboards.mlflow_link import LONG_S, mlflow_link, mlflow_waits
from paceline.dashboards.snapshot import take
from said import said
from twins.memory_board import MemoryVersionBoard

PAGE = "http://127.0.0.1:5000/#/experiments/1/runs/{run}?workflowType=machine_learning"


def seen(**statuses):
    """A board on which learners beat one after the other, each with what it says of MLflow."""
    now = [1_790_000_000.0]
    board = MemoryVersionBoard(clock=lambda: now[0])
    for name, told in statuses.items():
        board.beat(f"learner:{name}", MemberStatus() if told is None else said({"mlflow": told}), 12.0)
        now[0] += 1.0
    now[0] += 600.0
    return take(board, "demo")


def test_a_draft_has_the_page_of_its_run_also_when_the_learner_is_gone():
    found = mlflow_link(seen(a={"run_page": PAGE, "runs": {"12": "ab12"}}), 12)
    assert found.url == "http://127.0.0.1:5000/#/experiments/1/runs/ab12?workflowType=machine_learning"
    assert found.why_unknown == ""


def test_the_learner_that_was_heard_of_last_is_asked():
    told = {"run_page": PAGE, "runs": {"12": "new"}}
    found = mlflow_link(seen(a={"run_page": PAGE, "runs": {"12": "old"}}, b=told, c=None), 12)
    assert "/runs/new?" in found.url


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (None, "no learner has said where MLflow is"),
        ("nonsense", "no learner has said where MLflow is"),
        ({"run_page": PAGE, "runs": {"11": "ab"}}, "MLflow has no run of draft 12 yet"),
        ({"run_page": PAGE, "runs": {"12": "../../x"}}, "MLflow has no run of draft 12 yet"),
        ({"run_page": PAGE, "runs": ["12"]}, "no learner has said where MLflow is"),
        ({"run_page": "", "runs": {"12": "ab"}}, "MLflow keeps its runs in a file"),
        ({"run_page": "javascript:alert(1)//{run}", "runs": {"12": "ab"}}, "MLflow keeps its runs in a file"),
    ],
)
def test_without_a_page_there_is_a_reason(told, why):
    found = mlflow_link(seen(a=told), 12)
    assert found.url is None
    assert found.why_unknown.startswith(why)


def waiting(*whats, at=NOW, since=NOW - 120.0, count=None):
    longest = [{"what": what, "since": since, "why": "refused", "action": "allow it"} for what in whats]
    return {"at": at, "count": len(whats) if count is None else count, "longest": longest}


def test_what_waits_is_a_sixth_answer_with_its_time_reason_and_remedy():
    seen = snapshot(board(), learner_a=learner(mlflow_waiting=waiting("draft 2", count=3)))
    (finding,) = [one for one in answer(seen).findings if one.topic == "MLflow"]
    assert finding.sentence == "not told of draft 2 for 2 min: refused; allow it; 2 more wait"
    assert finding.level is Level.NOTE
    seen = snapshot(board(), learner_a=learner(mlflow_waiting=waiting("MLflow", since=NOW - LONG_S - 1.0)))
    finding = mlflow_waits(seen)
    assert (finding.level, finding.sentence) == (Level.WRONG, "told of nothing for 10 min: refused; allow it")


def test_the_learner_that_asked_mlflow_last_is_believed_also_when_it_is_gone():
    old, new = waiting("draft 2", at=NOW - 50.0), waiting("alias live", at=NOW - 40.0)
    members = {"learner_a": learner(mlflow_waiting=old), "learner_b": learner(30.0, mlflow_waiting=new, ended=True)}
    assert mlflow_waits(snapshot(board(), **members)).sentence == (
        "not told of alias live for 2 min: refused; allow it; learner:b is gone, and said so 30 s ago"
    )
    members["learner_b"] = learner(30.0, mlflow_waiting=waiting(at=NOW - 40.0))
    assert mlflow_waits(snapshot(board(), **members)) is None


@pytest.mark.parametrize("told", [None, "x", {}, {"count": 1, "longest": [{"what": 1}]}, {"count": 0, "longest": []}])
def test_where_nothing_is_known_to_wait_there_is_no_sixth_answer(told):
    seen = snapshot(board(), learner_a=learner(mlflow_waiting=told))
    assert [one.topic for one in answer(seen).findings] == ["faster", "fresh", "last swap", "loop", "alarms"]
