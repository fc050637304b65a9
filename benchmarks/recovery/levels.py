"""Requests after the shift until a level is served again; the level is one for both runs of a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ...policies.acceptance import Tally
from ..learning.figures import requests_to_reach
from .recorded_run import RecordedRun

#: Requests that an accept length is pooled over.
WINDOW = 24
#: Of the accept length that the yardstick reaches at the end.
SHARE = 0.9
#: Lower levels, which say how soon the first of the ground is regained.
LOWER_SHARES = (0.8, 0.7)


class Yardstick(StrEnum):
    """Whose last WINDOW requests the level of a seed is a share of."""

    BETTER = "the better of its two runs"
    BEFORE = "its run before"  # the level does not rise with what the run after reaches


@dataclass(frozen=True, slots=True)
class Recovery:
    """How one run came back: requests after the shift until the level, None where it never did."""

    requests: float | None
    end: float  # accept length of the last WINDOW requests
    whole: float  # accept length of all requests after the shift
    most: int  # requests after the shift

    @property
    def at_least(self) -> float:
        """The requests; where the level was never reached, all there were: it took more."""
        return float(self.most) if self.requests is None else self.requests

    def text(self) -> str:
        """As `57` or `> 240`."""
        return f"> {self.most}" if self.requests is None else f"{self.requests:.0f}"


@dataclass(frozen=True, slots=True)
class Pair:
    """Both runs of one seed."""

    seed: int
    level: float
    before: Recovery
    after: Recovery

    @property
    def ratio(self) -> float:
        """Requests of `after` over those of `before`, below 1 where `after` is sooner; a bound where one never was."""
        return self.after.at_least / self.before.at_least

    @property
    def is_bound(self) -> bool:
        """Whether one of the two never reached the level."""
        return self.before.requests is None or self.after.requests is None


def paired(
    before: RecordedRun, after: RecordedRun, share: float = SHARE, yardstick: Yardstick = Yardstick.BETTER
) -> Pair:
    """The level of the two, and how each came back to it. SystemExit when they are not a pair."""
    _refuse_unlike(before, after)
    served = before.after_shift, after.after_shift
    measured = served if yardstick is Yardstick.BETTER else served[:1]
    level = share * max(smoothed(tallies)[-1] for tallies in measured)
    return Pair(before.conditions.seed, level, *(recovery(tallies, level) for tallies in served))


def recovery(tallies: Sequence[Tally], level: float) -> Recovery:
    """`tallies` are those of the requests after the shift, in the order sent."""
    lengths = smoothed(tallies)
    ends = range(len(tallies) - len(lengths) + 1, len(tallies) + 1)
    whole = sum(tallies, Tally()).accept_length
    return Recovery(requests_to_reach(ends, lengths, level), lengths[-1], whole, len(tallies))


def smoothed(tallies: Sequence[Tally]) -> list[float]:
    """Accept length pooled over every WINDOW requests in a row, oldest first. SystemExit with fewer than WINDOW."""
    if len(tallies) < WINDOW:
        raise SystemExit(f"requests after the shift: got {len(tallies)}, expected at least {WINDOW}; send more")
    return [sum(tallies[end - WINDOW : end], Tally()).accept_length for end in range(WINDOW, len(tallies) + 1)]


def _refuse_unlike(before: RecordedRun, after: RecordedRun) -> None:
    for what, got, other in (
        ("seed", before.conditions.seed, after.conditions.seed),
        ("target", before.conditions.target, after.conditions.target),
        ("initial draft", before.initial_draft, after.initial_draft),
        ("requests", before.conditions.requests, after.conditions.requests),
    ):
        if got != other:
            raise SystemExit(f"{what} of a pair: got {got} and {other}, expected the same; the figures compare nothing")
