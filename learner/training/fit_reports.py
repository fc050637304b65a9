"""One report of several fits in a row."""

import math
from collections.abc import Sequence
from dataclasses import replace

from .trainer import FitReport


def merged(reports: Sequence[FitReport]) -> FitReport:
    """What the fits of one learning round did together; at least one.

    The figures of the first position are those of the first block that had any: only it was met before training.
    Regime, weighting and learning rate are the last ones.
    """
    last = reports[-1]
    first = next((report for report in reports if not math.isnan(report.first_position_accept)), last)
    return replace(
        last,
        losses=tuple(loss for report in reports for loss in report.losses),
        steps=sum(report.steps for report in reports),
        skipped_steps=sum(report.skipped_steps for report in reports),
        seconds=sum(report.seconds for report in reports),
        first_position_accept=first.first_position_accept,
        first_position_attainable=first.first_position_attainable,
        mean_acceptance=next((report.mean_acceptance for report in reversed(reports) if report.mean_acceptance), ()),
        out_of_vocabulary_labels=sum(report.out_of_vocabulary_labels for report in reports),
        unusable_traces=sum(report.unusable_traces for report in reports),
        part_tokens=min(report.part_tokens for report in reports),
        step_times=tuple(at for report in reports for at in report.step_times),
    )
