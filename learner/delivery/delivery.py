"""From trained weights to the board: judge the line, publish its newest draft, carry out the gate's verdict."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ...buffer.board.counters import MODEL_FREE
from ...buffer.board.reason import Reason, ReasonCode, because
from ...buffer.board.version import BoardState, DraftVersion, VersionState
from ...buffer.board.version_board import VersionBoard
from ...buffer.board.version_store import store_of
from ...buffer.errors import BoardConflict, StoreUnavailable, WeightsRefused
from ...buffer.stream.trace_buffer import TraceEntry, entry_order
from ...policies.judged_on import judged_on
from ...policies.line_delivery import Ground
from ...policies.promotion import Promotion, Verdict, judge
from ..claim.intake import KEPT, ByOutcome, Outcome
from ..config import LearnerConfig
from ..judging.line_judge import LineJudge
from ..judging.paired_replay import unscored
from ..model.draft_io import save_draft
from ..state.learner_state import LearnerState
from .publisher import Lineage, publish, reserve_number
from .rollout import LEARNER, refuse, start_canary_or_go_live
from .run_record import scores_of

_log = logging.getLogger(__name__)


def reserve(state: LearnerState, board: VersionBoard, judge: LineJudge | None) -> int | None:
    """Reserve the number under which the trainer's weights will be published; None when they will not be."""
    return None if judge is None else reserve_number(board, state.config.versions_dir)


def judge_candidate(
    state: LearnerState,
    board_state: BoardState,
    *,
    claimed: ByOutcome,
    line_judge: LineJudge | None,
    number: int | None,
    now_s: float,
) -> Promotion:
    """Decide what becomes of the trainer's weights, to be published as `number`, once `line_judge` saw all blocks.

    The kept traces of `claimed` are the newest traffic, beside which the verdict says what it was judged on, and how
    old that was at `now_s`, unix seconds. WAIT without a judge: there is no live draft. UNJUDGED when replay cannot
    score most requests of the claim: the canary decides alone, since the others may be of another kind.
    """
    if line_judge is None or number is None:
        return Promotion(verdict=Verdict.WAIT, reason=_why_waiting(board_state))
    traces = state.judging_traces(claimed)
    unscorable = unscored(traces)
    reasons = ", ".join(f"{count} by {reason}" for reason, count in sorted(unscorable.items()))
    requests = len({trace.request_id for trace in traces})
    if 2 * unscorable.total() > requests:
        return Promotion(
            verdict=Verdict.UNJUDGED, reason=because(ReasonCode.UNJUDGED, requests=requests, left_out=reasons)
        )
    promotion = _judged(state, claimed, line_judge=line_judge, number=number, now_s=now_s)
    left_out = promotion.reason.but(left_out=reasons or None, late=len(line_judge.late) or None)
    return replace(promotion, reason=left_out)


def _judged(state: LearnerState, claimed: ByOutcome, *, line_judge: LineJudge, number: int, now_s: float) -> Promotion:
    config = state.config
    came = sorted(
        (entry for outcome in KEPT for entry in claimed[outcome]), key=lambda each: entry_order(each.entry_id)
    )
    newest = [entry.trace for entry in came]
    held_out = [entry.trace for entry in claimed[Outcome.HELD_OUT]]
    decided = line_judge.decide(number, state.trainer.draft, held_out, config.delivery_rules.test)
    return judge(
        decided,
        line_judge.pairs,
        line_judge.reference,
        confidence=config.gate_confidence,
        rng=np.random.default_rng([config.seed, state.notes.rounds_trained]),
        judged_on=judged_on(line_judge.judged, newest, now_s) if line_judge.judged else None,
    )


def _why_waiting(board_state: BoardState) -> Reason:
    live = board_state.live
    if live is None:
        return because(ReasonCode.NO_LIVE)
    return because(ReasonCode.LIVE_UNREADABLE, live=live, uri=board_state.rows[live].version.weights_uri)


def deliver(
    state: LearnerState,
    board: VersionBoard,
    *,
    judged: BoardState,
    promotion: Promotion,
    claimed: ByOutcome,
    number: int | None,
) -> DraftVersion | None:
    """Publish the trainer's weights as `number` with the gate's figures and carry out its verdict; None on WAIT.

    A winner is refused when the version that was live is not live any more: an operator overrides the gate. It must
    pass a canary when replay is no proof: where it judged nothing, and where a trace does not say how its trees grew. A
    line that was shown to harm is taken out of service: its newest draft is refused, and the reference is live again.
    StoreUnavailable when the store does not take the weights: then nothing was published, and the reference is live
    again all the same.
    """
    if promotion.verdict is Verdict.WAIT:
        _roll_back_changed_live(state, board, judged)
        return None
    config = state.config
    learnt = [*state.replay_buffer, *claimed[Outcome.LEARNED]]
    named = {entry.trace.target_version for entry in learnt}
    lineage = Lineage(
        parent=state.notes.parent,
        target=config.target,
        target_version=state.targets.newest or "",
        objective=config.objective,
        trained_on=_trained_on(learnt),
        scores=scores_of(promotion),
        judged_on=promotion.judged_on,
        trained_targets=tuple(version for version in state.targets.trained if version in named),
    )
    write = partial(save_draft, state.trainer.draft)
    store = store_of(config.buffer)
    why = promotion.reason
    try:
        version = publish(board, config.versions_dir, write, lineage, by=LEARNER, why=why, reserved=number, store=store)
    except StoreUnavailable:
        _put_back(board, judged, promotion)  # which needs no store
        raise
    kept = (entry.trace for outcome in KEPT for entry in claimed[outcome])
    has_odd_trees = any(trace.is_tree and not trace.tree and trace.draft_version != MODEL_FREE for trace in kept)
    must_canary = promotion.verdict is Verdict.UNJUDGED or has_odd_trees
    _carry_out(config, board, number=version.number, judged=judged, promotion=promotion, must_canary=must_canary)
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
        state.drafts.find(judged, live)
    except WeightsRefused as refusal:
        if isinstance(refusal.__cause__, OSError):
            return
        try:
            why = because(ReasonCode.WEIGHTS_REFUSED, by=LEARNER, fault=str(refusal))
            board.roll_back(LEARNER, why, live, VersionState.LIVE)
        except BoardConflict as conflict:
            _log.warning("version %d was not rolled back, because somebody else moved it: %s", live, conflict)


def _carry_out(
    config: LearnerConfig,
    board: VersionBoard,
    *,
    number: int,
    judged: BoardState,
    promotion: Promotion,
    must_canary: bool,
) -> None:
    if promotion.verdict is Verdict.REFUSE:
        refuse(board, number, promotion.reason)
        _put_back(board, judged, promotion)
        return
    live = board.read().live
    if live != judged.live:
        moved = {"judged": judged.live, "live": "none" if live is None else live}
        refuse(board, number, promotion.reason.but(ReasonCode.LIVE_MOVED, **moved))
        return
    has_canaries = config.canary_limit_s > 0
    start_canary_or_go_live(board, number, promotion.reason, with_canary=has_canaries, must_canary=must_canary)


def _put_back(board: VersionBoard, judged: BoardState, promotion: Promotion) -> None:
    """Make the reference live again in place of drafts that harm, which no later rollback brings back."""
    if promotion.ground is not Ground.HARM or promotion.serves == judged.live:
        return
    try:
        why = promotion.reason.but(ReasonCode.PUT_BACK, serves=promotion.serves)
        board.roll_back(LEARNER, why, judged.live, VersionState.LIVE, to=promotion.serves)
    except BoardConflict as conflict:
        _log.warning("version %s is not live again, because somebody moved versions: %s", promotion.serves, conflict)


def _trained_on(entries: Sequence[TraceEntry]) -> tuple[str, str]:
    """First and last stream id. `entries` may be out of order: a trace claimed again after a crash comes last."""
    ids = sorted((entry.entry_id for entry in entries), key=entry_order)
    return ids[0], ids[-1]
