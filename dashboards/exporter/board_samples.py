"""Samples of one speculator: its versions, its members, their alarms, and what the living ones count."""

from collections.abc import Iterator, Mapping

from ...buffer.board.counters import Counters, counters_of
from ...buffer.board.member_board import MemberSeen
from ...buffer.board.version import PREDICTED_SCORE, BoardRow
from ..alarm_lines import standing_and_recent
from ..snapshot import Snapshot, has_ended
from .learner_samples import learner_samples
from .samples import Sample, labelled
from .served_samples import replica_samples
from .shown_names import ShownNames, shown_names
from .status_samples import status_samples


def board_samples(seen: Snapshot) -> Iterator[Sample]:
    """Everything of a speculator; `seen` needs no histories."""
    return labelled(_samples(seen), speculator=seen.speculator)


def _samples(seen: Snapshot) -> Iterator[Sample]:
    present = seen.present()
    counted = {name: found for name, one in present.items() if (found := counters_of(one.said.counters))}
    names = shown_names(counted.values(), seen.state.rows)
    yield Sample("paceline_speculator_readable", {}, 1.0)
    yield Sample("paceline_board_timestamp_seconds", {}, seen.at)
    yield from _versions(seen, names)
    yield from _heard_of(seen.members)
    for line in standing_and_recent(seen):
        if line.at is None:
            yield Sample("paceline_alarm", {"member": line.member, "name": line.name}, 1.0)
    for member, one in present.items():
        yield from labelled(status_samples(one.said), member=member)
    for member, counters in counted.items():
        yield from labelled(_counters(counters, names), member=member)


def _counters(counters: Counters, names: ShownNames) -> Iterator[Sample]:
    yield from replica_samples(counters, names)
    if counters.learner is not None:
        yield from learner_samples(counters.learner)


def _heard_of(members: Mapping[str, MemberSeen]) -> Iterator[Sample]:
    """Those that ended or were forgotten are nobody's concern any more."""
    for member, one in members.items():
        if not has_ended(one):
            yield Sample("paceline_member_last_seen_timestamp_seconds", {"member": member}, one.last_seen_at)
            yield Sample("paceline_member_alive", {"member": member}, float(one.is_alive))


def _versions(seen: Snapshot, names: ShownNames) -> Iterator[Sample]:
    state = seen.state
    for name, number in (("live", state.live), ("canary", state.canary)):
        if number is not None:
            yield Sample(f"paceline_{name}_draft", {}, number)
    for number, row in state.rows.items():
        if number in names.drafts or number in {state.live, state.canary}:
            yield from labelled(_version(row), draft=str(number))


def _version(row: BoardRow) -> Iterator[Sample]:
    version = row.version
    judged = row.version.judged_on
    parent = "" if version.parent is None else str(version.parent)
    labels = {"state": row.state.value, "parent": parent, "sha256": version.sha256}
    yield Sample("paceline_draft_info", labels, 1.0)
    yield Sample("paceline_draft_changed_timestamp_seconds", {}, row.changed_at)
    if PREDICTED_SCORE in version.scores:
        yield Sample("paceline_gate_predicted_accept_length", {}, version.scores[PREDICTED_SCORE])
    if judged is not None:
        yield Sample("paceline_gate_requests", {}, judged.requests)
        if judged.median_age_s is not None:
            yield Sample("paceline_gate_median_age_seconds", {}, judged.median_age_s)
