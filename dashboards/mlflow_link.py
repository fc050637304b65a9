"""Where a draft is found in MLflow, and what MLflow has not been told, as a learner last said it."""

from typing import NamedTuple

from ..buffer.board.member_board import MemberSeen
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
    told = next((one.said.mlflow for _, one in _learners(seen) if one.said.mlflow), None)
    if told is None:
        return MlflowLink(None, "no learner has said where MLflow is")
    run = told.runs.get(str(number), "")
    if not run.isalnum():
        return MlflowLink(None, f"MLflow has no run of draft {number} yet, or the draft is not among the newest")
    # Anybody may write to Redis: nothing but a page is linked.
    if not told.run_page.startswith(("http://", "https://")):
        return MlflowLink(None, "MLflow keeps its runs in a file, which has no address; `mlflow ui` shows it")
    return MlflowLink(told.run_page.replace("{run}", run))


def mlflow_waits(seen: Snapshot) -> Finding | None:
    """What MLflow has not been told, since when, why and what to do; None where a learner said that nothing waits.

    Also None where no learner has said anything of it. Delivery needs no MLflow: nothing that is served waits.
    """
    told = [(one.said.mlflow_waiting, name) for name, one in _learners(seen) if one.said.mlflow_waiting]
    if not told:
        return None
    newest, member = max(told, key=lambda pair: pair[0].at)
    if not newest.longest:
        return None
    first = newest.longest[0]
    waits_s = max(0.0, seen.at - first.since)
    text = "told of nothing" if first.what == "MLflow" else f"not told of {first.what}"
    more = f"; {newest.count - 1} more wait" if newest.count > 1 else ""
    if member not in seen.present():
        more += f"; {member} is gone, and said so {ago(seen.unseen_s(member))} ago"
    level = Level.WRONG if waits_s > LONG_S else Level.NOTE
    return Finding("MLflow", level, f"{text} for {ago(waits_s)}: {first.why}; {first.action}{more}")


def _learners(seen: Snapshot) -> list[tuple[str, MemberSeen]]:
    """All learners, the one that was heard of last first."""
    learners = [(name, one) for name, one in seen.members.items() if name.startswith(LEARNER)]
    return sorted(learners, key=lambda pair: -pair[1].last_seen_at)
