"""Whether traffic moved: its labels then and now."""

from collections.abc import Mapping
from dataclasses import dataclass

#: Fewer requests on either side say nothing.
MIN_REQUESTS = 30
#: Share of requests that would have to change their label for the two to agree; from here on traffic moved.
MOVED_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficMove:
    """How far the labels of requests moved, and which one moved most; `share` is None where that is unknown."""

    share: float | None
    why_unknown: str = ""
    label: str = ""
    was: float = 0.0  # share of that label then
    now: float = 0.0
    now_s: float = 0.0  # the newest seconds that "now" is of

    @property
    def has_moved(self) -> bool:
        """False where it is unknown."""
        return self.share is not None and self.share >= MOVED_SHARE


def moved_share(then: Mapping[str, int], now: Mapping[str, int]) -> float:
    """Share of requests that would have to change their label for two counts to agree; neither may be empty."""
    requests = sum(then.values()), sum(now.values())
    return sum(abs(now.get(each, 0) / requests[1] - then.get(each, 0) / requests[0]) for each in {*then, *now}) / 2


def traffic_move(then: Mapping[str, int], now: Mapping[str, int]) -> TrafficMove:
    """Compare two counts of requests by label; "" is of requests without one."""
    requests = sum(then.values()), sum(now.values())
    if not {label for label in (*then, *now) if label}:
        return TrafficMove(share=None, why_unknown="requests name no paceline_label")
    if min(requests) < MIN_REQUESTS:
        return TrafficMove(
            share=None, why_unknown=f"{requests[0]} requests then and {requests[1]} now, {MIN_REQUESTS} of each needed"
        )
    shares = {label: (then.get(label, 0) / requests[0], now.get(label, 0) / requests[1]) for label in {*then, *now}}
    label, (was, is_now) = max(sorted(shares.items()), key=lambda item: abs(item[1][1] - item[1][0]))
    return TrafficMove(share=moved_share(then, now), why_unknown="", label=label, was=was, now=is_now)
