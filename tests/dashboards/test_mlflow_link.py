"""The link from a draft to its run: what a learner last said of MLflow, and nothing that is not a page."""

import pytest
from paceline.buffer.testing.memory_board import MemoryVersionBoard
from paceline.dashboards.mlflow_link import mlflow_link
from paceline.dashboards.snapshot import take

PAGE = "http://127.0.0.1:5000/#/experiments/1/runs/{run}?workflowType=machine_learning"


def seen(**statuses):
    """A board on which learners beat one after the other, each with what it says of MLflow."""
    now = [1_790_000_000.0]
    board = MemoryVersionBoard(clock=lambda: now[0])
    for name, told in statuses.items():
        board.beat(f"learner:{name}", {} if told is None else {"mlflow": told}, 12.0)
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
        ({"run_page": PAGE, "runs": ["12"]}, "MLflow has no run of draft 12 yet"),
        ({"run_page": "", "runs": {"12": "ab"}}, "MLflow keeps its runs in a file"),
        ({"run_page": "javascript:alert(1)//{run}", "runs": {"12": "ab"}}, "MLflow keeps its runs in a file"),
    ],
)
def test_without_a_page_there_is_a_reason(told, why):
    found = mlflow_link(seen(a=told), 12)
    assert found.url is None
    assert found.why_unknown.startswith(why)
