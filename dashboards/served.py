"""What is served: figures of all members' counters, for the headline and for tables."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..policies.readings.definitions import Reading
from ..policies.readings.served_totals import ServedDraft, served_drafts
from ..policies.readings.traffic_move import TrafficMove, traffic_move
from .snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Served:
    """Figures of one snapshot."""

    by_draft: Mapping[int, ServedDraft]
    speed: Reading
    speed_where: str  # the batch size that the speed was measured at
    move: TrafficMove  # since the live draft was judged

    def lengths(self) -> dict[int, float | None]:
        """By draft, the accept length that it served."""
        return {draft: served.total.accept_length for draft, served in self.by_draft.items()}

    def readings(self) -> list[Reading]:
        """Those that have a definition."""
        return [self.speed]


def served_now(seen: Snapshot) -> Served:
    """Read the figures off what the members count."""
    by_draft = served_drafts(seen.histories.values())
    unknown = Reading("speed_over_plain", None, why_unknown="not looked at")
    return Served(by_draft, unknown, "", _move(seen, by_draft))


def _move(seen: Snapshot, by_draft: Mapping[int, ServedDraft]) -> TrafficMove:
    live = seen.state.live
    judged = None if live is None else seen.state.rows[live].version.judged_on
    if live is None or judged is None:
        return TrafficMove(None, "the live draft was not judged")
    return traffic_move(judged.newest_labels, by_draft.get(live, ServedDraft()).requests)
