"""Addresses of MLflow's pages."""

import pytest
from paceline.learner.delivery.tracking.model_store import run_page


@pytest.mark.parametrize(
    ("address", "begins"),
    [
        ("http://mlflow:5000", "http://mlflow:5000/#/"),
        ("https://mlflow.lan/team/", "https://mlflow.lan/team/#/"),
        ("http://ann:secret@mlflow:5000", "http://mlflow:5000/#/"),
    ],
)
def test_a_page_of_a_run_is_that_of_models_and_holds_no_password(address, begins):
    assert run_page(address, "7") == f"{begins}experiments/7/runs/{{run}}?workflowType=machine_learning"


@pytest.mark.parametrize("address", ["sqlite:////data/mlflow.db", "", "file:///mlruns", "databricks", "http://"])
def test_a_store_without_pages_has_none(address):
    assert run_page(address, "7") == ""
