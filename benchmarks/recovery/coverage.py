"""Predicted against served accept length of every version, with an interval that holds the noise of both samples.

Predicted is what a version's own weights would have had accepted of the newest requests that had come when it was
published and that it learnt nothing of. Served is what it had accepted afterwards, of other requests. If both samples
were drawn from the same traffic, their difference is noise: that of two ratios of sums, over requests, since rounds of
one request resemble each other. Where traffic changed in between they differ by more, and such versions are listed
apart: those whose two samples are of other domains, and those where the learner's drift test finds a change. It is
asked of a draft that learns nothing meanwhile, as a learner at rest asks: an earlier version is replayed on all that
came since its own last request. By itself it would not do, since at the end of a version's thirty requests it misses
shifts that began among them.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy.stats import t as student

from ...policies.acceptance import Tally
from ...policies.learn_schedule import requests_since_a_change
from ...policies.readings.ratio_sums import Z_95
from ...policies.readings.traffic_move import MOVED_SHARE
from ..learning.prediction import standard_error
from .recorded_run import RecordedRun, ServedVersion

CONFIDENCE = 0.95


class Traffic(StrEnum):
    """What became of it between the requests that a version is predicted by and those that it served."""

    SAME = "no change"
    DRIFTED = "the drift test alone finds a change"
    MOVED = "other domains"


@dataclass(frozen=True, slots=True)
class Compared:
    """One version."""

    predicted: float
    served: float
    half_width: float  # of a 95 % prediction interval about `predicted`
    has_moved: bool  # `served` is of other domains
    has_drifted: bool | None  # None: no earlier version watched
    on_board: float | None
    board_half_width: float | None  # of the product's own interval about `on_board`; None: it gave none

    @property
    def traffic(self) -> Traffic:
        """Where the drift test cannot be asked, domains alone say it."""
        if self.has_moved:
            return Traffic.MOVED
        return Traffic.DRIFTED if self.has_drifted else Traffic.SAME

    @property
    def error(self) -> float:
        """Predicted less served."""
        return self.predicted - self.served

    @property
    def is_inside(self) -> bool:
        """Whether what was served is in the interval."""
        return abs(self.error) <= self.half_width


@dataclass(frozen=True, slots=True)
class Coverage:
    """Versions of several runs together; figures are NaN without a version."""

    versions: int
    inside: int
    median_error: float  # of absolute errors
    median_half_width: float
    median_board_error: float  # of the absolute errors of the figure on the board, where there is one
    with_interval: int  # versions with an interval of the product's own
    inside_it: int  # of these


def compared(version: ServedVersion) -> Compared | str:
    """The version's figures, or why there are none."""
    judged, served = _with_rounds(version.judged), _with_rounds(version.served)
    if min(len(judged), len(served)) < 2:
        return "judged on fewer than two requests" if len(judged) < 2 else "served fewer than two requests"
    return Compared(
        sum(judged, Tally()).accept_length,
        sum(served, Tally()).accept_length,
        half_width(judged, served),
        version.moved is not None and version.moved >= MOVED_SHARE,
        has_drifted(_with_rounds(version.watched), len(judged) + len(served)) if version.watched else None,
        version.on_board,
        None if version.board_error is None else Z_95 * math.hypot(version.board_error, standard_error(served)),
    )


def half_width(judged: Sequence[Tally], served: Sequence[Tally]) -> float:
    """Half of the 95 % interval of the difference of two accept lengths, at least two requests each (Welch's)."""
    errors = [(standard_error(tallies) ** 2, len(tallies) - 1) for tallies in (judged, served)]
    variance = sum(square for square, _ in errors)
    if not variance:
        return 0.0
    freedom = variance**2 / sum(square**2 / degrees for square, degrees in errors)
    return float(student.ppf(0.5 + CONFIDENCE / 2, freedom)) * math.sqrt(variance)


def has_drifted(tallies: Sequence[Tally], newest: int) -> bool:
    """Whether accepted drafts per round changed among the `newest` of the requests that one draft was tried on."""
    values = [tally.accepted / tally.rounds for tally in tallies]
    return requests_since_a_change(values) < min(len(values), newest)


def of_runs(runs: Iterable[RecordedRun]) -> tuple[list[Compared], Counter[str]]:
    """All versions that served in `runs`, and how many were left out, by reason."""
    found, left_out = list[Compared](), Counter[str]()
    for version in (version for run in runs for version in run.versions):
        figures = compared(version)
        if isinstance(figures, str):
            left_out[figures] += 1
        else:
            found.append(figures)
    return found, left_out


def summed_up(versions: Sequence[Compared]) -> Coverage:
    """The figures of several versions."""
    boards = [abs(each.on_board - each.served) for each in versions if each.on_board is not None]
    own = [
        abs(each.on_board - each.served) <= each.board_half_width
        for each in versions
        if each.on_board is not None and each.board_half_width is not None
    ]
    return Coverage(
        len(versions),
        sum(each.is_inside for each in versions),
        _median([abs(each.error) for each in versions]),
        _median([each.half_width for each in versions]),
        _median(boards),
        len(own),
        sum(own),
    )


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def _with_rounds(tallies: Iterable[Tally]) -> list[Tally]:
    return [tally for tally in tallies if tally.rounds]
