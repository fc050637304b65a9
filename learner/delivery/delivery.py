"""From trained weights to the board: judge on the holdout, publish what was judged, carry out the gate's verdict."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ...buffer.base import TraceEntry, VersionBoard, entry_order
from ...buffer.errors import BoardConflict, WeightsRefused
from ...buffer.version import BoardState, DraftVersion, JudgedOn, VersionState
from ...buffer.weights_file import check_weights
from ...policies.acceptance import Tally
from ...policies.judged_on import judged_on
from ...policies.promotion import Promotion, Verdict, judge, no_judgement
from ..config import LearnerConfig
from ..intake import KEPT, ByOutcome, Outcome
from ..judging.holdout import Holdout
from ..model.draft_io import save_draft
from ..state import LearnerState
from .publisher import Lineage, publish
from .refusals import LEARNER, refuse
from .rollout import start_canary_or_go_live
from .run_record import scores_of

_log = logging.getLogger(__name__)


def hold_out(state: LearnerState, claimed: ByOutcome, board_state: BoardState) -> None:
    """Add the held-out traces of `claimed` to the holdout, and score them once while they are claimed.

    A trace that scoring dies of would otherwise be acked unscored, and fail every later learning round, whose own
    traces would be suspected.
    """
    for entry in claimed[Outcome.HELD_OUT]:
        state.holdout.add(entry.trace)
    if not claimed[Outcome.HELD_OUT]:
        return
    live, steps = board_state.live, state.trainer.plan.steps
    draft = state.drafts.draft(board_state, live) if live is not None else None
    if live is not None and draft is not None:
        state.holdout.score_live(live, draft, steps)
    else:
        state.holdout.score(state.trainer.draft, steps)


def judge_candidate(state: LearnerState, board_state: BoardState, claimed: ByOutcome, now_s: float) -> Promotion:
    """Compare the trainer's weights with the live version on the holdout; WAIT when there is no live draft.

    The kept traces of `claimed` are the newest traffic, beside which the verdict says what it was judged on, and how
    old that was at `now_s`, unix seconds.
    UNJUDGED when too few held-out requests can be scored and enough others are there: the canary decides alone.
    """
    live = board_state.live
    if live is None:
        return no_judgement(Verdict.WAIT, "no version is live: promote one, and the gate compares with it")
    draft = state.drafts.draft(board_state, live)
    if draft is None:
        why = f"weights of live version {live} cannot be read at {board_state.rows[live].version.weights_uri}"
        return no_judgement(Verdict.WAIT, why)
    config, steps = state.config, state.trainer.plan.steps
    ours, theirs = state.holdout.score(state.trainer.draft, steps), state.holdout.score_live(live, draft, steps)
    promotion = judge(
        ours,
        theirs,
        min_requests=config.min_holdout_requests,
        confidence=config.gate_confidence,
        rng=np.random.default_rng([config.seed, state.notes.rounds_trained]),
        judged_on=_judged_on(state.holdout, ours, theirs, claimed, now_s),
    )
    return _with_unscored(promotion, state)


def _with_unscored(promotion: Promotion, state: LearnerState) -> Promotion:
    """The gate's word, with the held-out requests that replay cannot score: it waits for none of them."""
    unscored = state.holdout.unscored
    reasons = ", ".join(f"{count} by {reason}" for reason, count in sorted(unscored.items()))
    if promotion.verdict is Verdict.WAIT and unscored.total() >= state.config.min_holdout_requests:
        return no_judgement(
            Verdict.UNJUDGED,
            f"replay cannot tell: of {len(state.holdout)} held-out requests {reasons} were verified in a way that the "
            "committed tokens do not show; the canary decides alone",
        )
    if not reasons:
        return promotion
    return replace(promotion, reason=f"{promotion.reason}; requests left out: {reasons}")


def _judged_on(
    holdout: Holdout, ours: Sequence[Tally], theirs: Sequence[Tally], claimed: ByOutcome, now_s: float
) -> JudgedOn:
    """What the held-out requests are that `judge` counts: those with rounds on both sides."""
    rows = zip(holdout.requests, ours, theirs, strict=True)
    judged = [trace for traces, mine, live in rows if mine.rounds and live.rounds for trace in traces]
    return judged_on(judged, [entry.trace for outcome in KEPT for entry in claimed[outcome]], now_s)


def deliver(
    state: LearnerState, board: VersionBoard, judged: BoardState, promotion: Promotion, learned: Sequence[TraceEntry]
) -> DraftVersion | None:
    """Publish the trainer's weights with the gate's figures, then start their canary or refuse them; None on WAIT.

    A winner is refused when the version it was compared with is not live any more: an operator overrides the gate. It
    must pass a canary when replay is no proof: where it judged nothing, and where the server drafts trees.
    """
    if promotion.verdict is Verdict.WAIT:
        _roll_back_changed_live(state, board, judged)
        return None
    config = state.config
    lineage = Lineage(
        state.notes.parent,
        config.target,
        config.target_version,
        config.objective,
        _trained_on([*state.replay_buffer, *learned]),
        scores_of(promotion),
        promotion.judged_on,
    )
    write = partial(save_draft, state.trainer.draft)
    version = publish(board, config.versions_dir, write, lineage, by=LEARNER, why=promotion.reason)
    must_canary = promotion.verdict is Verdict.UNJUDGED or state.holdout.has_trees
    _carry_out(config, board, version.number, judged, promotion, must_canary=must_canary)
    return version


def _roll_back_changed_live(state: LearnerState, board: VersionBoard, judged: BoardState) -> None:
    """Roll the live version back when its file holds other bytes than were published, or its URI names no file.

    The gate has nothing to compare with then, and the next server to start would refuse it. A version whose file
    cannot be read stays live: its disk may come back.
    """
    live = judged.live
    if live is None or state.drafts.draft(judged, live) is not None:
        return
    try:
        check_weights(judged, live)
    except WeightsRefused as refusal:
        if isinstance(refusal.__cause__, OSError):
            return
        try:
            board.roll_back(LEARNER, str(refusal), live, VersionState.LIVE)
        except BoardConflict as conflict:
            _log.warning("version %d was not rolled back, because somebody else moved it: %s", live, conflict)


def _carry_out(
    config: LearnerConfig,
    board: VersionBoard,
    number: int,
    judged: BoardState,
    promotion: Promotion,
    *,
    must_canary: bool,
) -> None:
    if promotion.verdict is Verdict.REFUSE:
        refuse(board, number, promotion.reason)
        return
    live = board.read().live
    if live != judged.live:
        refuse(board, number, f"live moved from {judged.live} to {live} while it was judged: {promotion.reason}")
        return
    has_canaries = config.canary_limit_s > 0
    start_canary_or_go_live(board, number, promotion.reason, with_canary=has_canaries, must_canary=must_canary)


def _trained_on(entries: Sequence[TraceEntry]) -> tuple[str, str]:
    """First and last stream id. `entries` may be out of order: a trace claimed again after a crash comes last."""
    ids = sorted((entry.entry_id for entry in entries), key=entry_order)
    return ids[0], ids[-1]
