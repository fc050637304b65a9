"""Links into MLflow's pages that open as those of models, whatever the browser showed last."""

from urllib.parse import urlsplit

_AS_MODELS = "workflowType=machine_learning"


def run_path(experiment: str, run: str) -> str:
    """Of a run, from the root of MLflow's pages; also a link within them."""
    return f"#/experiments/{experiment}/runs/{run}?{_AS_MODELS}"


def run_page(address: str, experiment: str) -> str:
    """Of a run, with ``{run}`` in place of its id; without user and password, and empty where no browser gets there."""
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return ""
    place = parts.netloc.rpartition("@")[2] + parts.path.rstrip("/")
    return f"{parts.scheme}://{place}/{run_path(experiment, '{run}')}"


def experiment_path(experiment: str) -> str:
    """Of the table of runs."""
    return f"#/experiments/{experiment}/runs?{_AS_MODELS}"


def model_path(model: str, version: str = "") -> str:
    """Of a registered model, or of its version with MLflow's number `version`."""
    return f"#/models/{model}{f'/versions/{version}' if version else ''}?{_AS_MODELS}"
