"""From trained weights to the board: judge on the holdout, publish what was judged, carry out the gate's word."""

import logging
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...buffer.base import TraceEntry, VersionBoard, entry_order
from ...buffer.errors import BoardConflict, WeightsRefused
from ...buffer.version import BoardState, DraftVersion, VersionState
from ...buffer.weights_file import check_weights
from ...policies.promotion import Promotion, Verdict, judge
from ..config import LearnerConfig
from ..intake import Outcome, Sorted
from ..model.draft_io import save_draft
from ..state import LEARNER, LearnerState, refuse
from .canary import start_canary_or_go_live
from .publisher import Lineage, publish
from .run_record import scores_of

_log = logging.getLogger(__name__)


def hold_out(standing: LearnerState, claimed: Sorted, state: BoardState) -> None:
    """Give the held-out traces of `claimed` to the gate, and score them once while they are claimed.

    One that scoring dies of would otherwise be acked unscored, and kill every later round in the name of others.
    """
    for entry in claimed[Outcome.HELD_OUT]:
        standing.holdout.add(entry.trace)
    if not claimed[Outcome.HELD_OUT]:
        return
    steps, live = standing.trainer.plan.steps, state.rows[state.live].version if state.live is not None else None
    draft = standing.shelf.draft(live) if live is not None else None
    if live is not None and draft is not None:
        standing.holdout.score_live(live.number, draft, steps)
    else:
        standing.holdout.score(standing.trainer.draft, steps)


def judge_candidate(standing: LearnerState, state: BoardState) -> Promotion:
    """Compare the trainer's weights with the live version on the holdout; wait when there is nothing to compare."""
    live = state.rows[state.live].version if state.live is not None else None
    if live is None:
        return _wait("no version is live: promote one by hand and the gate compares with it")
    draft = standing.shelf.draft(live)
    if draft is None:
        return _wait(f"weights of live version {live.number} cannot be read at {live.weights_uri}")
    config, steps = standing.config, standing.trainer.plan.steps
    return judge(
        standing.holdout.score(standing.trainer.draft, steps),
        standing.holdout.score_live(live.number, draft, steps),
        min_requests=config.min_holdout_requests,
        confidence=config.gate_confidence,
        rng=np.random.default_rng([config.seed, standing.notes.round]),
    )


def deliver(
    standing: LearnerState, board: VersionBoard, judged: BoardState, promotion: Promotion, learnt: Sequence[TraceEntry]
) -> DraftVersion | None:
    """Publish the trainer's weights with the gate's figures, then let them on or refuse them; None while it waits.

    Compared with a version that is no longer live, a winner is refused: an operator's hand goes before the gate's.
    """
    if promotion.verdict is Verdict.WAIT:
        _refuse_changed_live(standing, board, judged)
        return None
    config = standing.config
    lineage = Lineage(
        standing.notes.parent,
        config.target,
        config.target_version,
        config.objective,
        _window_ids([*standing.window, *learnt]),
        scores_of(promotion),
    )
    write = partial(save_draft, standing.trainer.draft)
    version = publish(board, config.versions_dir, write, lineage, by=LEARNER, why=promotion.reason)
    _carry_out(config, board, version.number, judged, promotion)
    return version


def _refuse_changed_live(standing: LearnerState, board: VersionBoard, judged: BoardState) -> None:
    """Roll the live version back when its file holds other bytes than were published, or its URI names no file.

    The gate could compare with nothing, and the next server to start would refuse it. One that cannot be read stays:
    its disk may come back.
    """
    if judged.live is None or standing.shelf.draft(judged.rows[judged.live].version) is not None:
        return
    try:
        check_weights(judged, judged.live)
    except WeightsRefused as refusal:
        if isinstance(refusal.__cause__, OSError):
            return
        try:
            board.roll_back(LEARNER, str(refusal), judged.live, VersionState.LIVE)
        except BoardConflict as conflict:
            _log.warning("version %d stays live: %s", judged.live, conflict)


def _carry_out(
    config: LearnerConfig, board: VersionBoard, number: int, judged: BoardState, promotion: Promotion
) -> None:
    if promotion.verdict is Verdict.REFUSE:
        refuse(board, number, promotion.reason)
        return
    live = board.read().live
    if live != judged.live:
        refuse(board, number, f"live moved from {judged.live} to {live} while it was judged: {promotion.reason}")
        return
    start_canary_or_go_live(board, number, promotion.reason, with_canary=config.canary_limit_s > 0)


def _window_ids(entries: Sequence[TraceEntry]) -> tuple[str, str]:
    """First and last stream id; a trace claimed again after a crash is older than the window's end."""
    ids = sorted((entry.entry_id for entry in entries), key=entry_order)
    return ids[0], ids[-1]


def _wait(why: str) -> Promotion:
    return Promotion(Verdict.WAIT, why, 0.0, (-np.inf, np.inf), 1.0, 1.0, 0)
