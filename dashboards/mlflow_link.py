"""Where a draft is found in MLflow, and what MLflow has not been told, as a learner last said it."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..buffer.finding import Finding, Level
from .cells import ago
from .snapshot import LEARNER, Snapshot

#: What waits for longer is not mended by waiting.
LONG_S = 600.0


class MlflowLink(NamedTuple):
    """The page of a draft's run; None with the reason where it is not known."""

    url: str | None
    why_unknown: str = ""


def mlflow_link(seen: Snapshot, number: int) -> MlflowLink:
    """By the learner that was heard of last: a run stays where it is when its learner ends."""
    told = next((found for found, _ in _told(seen, "mlflow")), None)
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


def mlflow_waits(seen: Snapshot) -> Finding | None:
    """What MLflow has not been told, since when, why and what to do; None where a learner said that nothing waits.

    Also None where no learner has said anything of it. Delivery needs no MLflow: nothing that is served waits.
    """
    told, member = max(_told(seen, "mlflow_waiting"), key=lambda pair: _asked_at(pair[0]), default=({}, ""))
    match told:
        case {"count": int(count), "longest": [{"what": str(what), "since": int() | float() as since, **why}, *_]}:
            waits_s = max(0.0, seen.at - since)
            text = "told of nothing" if what == "MLflow" else f"not told of {what}"
            more = f"; {count - 1} more wait" if count > 1 else ""
            if member not in seen.present():
                more += f"; {member} is gone, and said so {ago(seen.unseen_s(member))} ago"
            level = Level.WRONG if waits_s > LONG_S else Level.NOTE
            return Finding("MLflow", level, f"{text} for {ago(waits_s)}: {why.get('why')}; {why.get('action')}{more}")
    return None


def _asked_at(told: Mapping[str, object]) -> float:
    at = told.get("at")
    return float(at) if isinstance(at, int | float) else 0.0


def _told(seen: Snapshot, key: str) -> Iterator[tuple[Mapping[str, object], str]]:
    """What learners last said at `key`, and who said it, the one that was heard of last first."""
    learners = [(name, one) for name, one in seen.members.items() if name.startswith(LEARNER)]
    for name, one in sorted(learners, key=lambda pair: -pair[1].last_seen_at):
        if isinstance(found := one.status.get(key), Mapping):
            yield found, name
