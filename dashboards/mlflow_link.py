"""Where a draft is found in MLflow, as a learner last said it."""

from collections.abc import Mapping
from typing import NamedTuple

from .snapshot import LEARNER, Snapshot


class MlflowLink(NamedTuple):
    """The page of a draft's run; None with the reason where it is not known."""

    url: str | None
    why_unknown: str = ""


def mlflow_link(seen: Snapshot, number: int) -> MlflowLink:
    """By the learner that was heard of last: a run stays where it is when its learner ends."""
    learners = [one for name, one in seen.members.items() if name.startswith(LEARNER)]
    newest_first = sorted(learners, key=lambda one: -one.last_seen_at)
    told = next((found for one in newest_first if isinstance(found := one.status.get("mlflow"), Mapping)), None)
    if told is None:
        return MlflowLink(None, "no learner has said where MLflow is")
    page, runs = told.get("run_page"), told.get("runs")
    run = runs.get(str(number)) if isinstance(runs, Mapping) else None
    if not isinstance(run, str) or not run.isalnum():
        return MlflowLink(None, f"MLflow has no run of draft {number} yet, or the draft is not among the newest")
    # Anybody may write to Redis: nothing but a page is linked.
    if not isinstance(page, str) or not page.startswith(("http://", "https://")):
        return MlflowLink(None, "MLflow keeps its runs in a file, which has no address; `mlflow ui` shows it")
    return MlflowLink(page.replace("{run}", run))
