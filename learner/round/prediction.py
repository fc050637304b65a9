"""Predicts what a draft will have accepted where it serves, by the requests that came while it was trained.

They wait in the buffer for the next learning round, which learns from them; here they are only read. So a draft is
predicted by its own weights, on the newest traffic there is.
"""

from collections.abc import Sequence
from itertools import chain

from ...buffer.stream.trace import DraftTrace
from ...buffer.stream.trace_buffer import TraceBuffer, entry_order
from ...policies.paired import Asked
from ...policies.prediction import Prediction, prediction
from ..claim.intake import KEPT, ByOutcome, Outcome
from ..judging.paired_replay import tallies, why_unscored
from ..model.draft import Draft
from ..state.learner_state import LearnerState

#: Requests that a prediction takes, the newest. More would cost time at the end of every round and narrow its interval
#: little: a draft serves some dozens before the next one comes.
MOST_REQUESTS = 32
#: Traces that are read for it: long answers have several, and some are of no use.
MOST_TRACES = 64


def predict(state: LearnerState, claimed: ByOutcome, buffer: TraceBuffer) -> Prediction | None:
    """Replay the trainer's draft, which has learnt `claimed`, on what came to `buffer` since; None with too few.

    What `claimed` holds out counts too; other answers to a prompt just learnt do not. Changes nothing. Blocks for
    reading MOST_TRACES traces and a replay of them by one draft.
    """
    known = chain(state.replay_buffer, *(claimed[outcome] for outcome in KEPT))
    newer = buffer.replay(MOST_TRACES, after_id=max((entry.entry_id for entry in known), key=entry_order))
    waiting = state.sort(list(newer))
    fresh = sorted((*waiting[Outcome.LEARNED], *waiting[Outcome.HELD_OUT]), key=lambda each: entry_order(each.entry_id))
    requests = {entry.trace.request_id for entry in chain(state.replay_buffer, claimed[Outcome.LEARNED])}
    prompts = {_prompt(entry.trace) for entry in claimed[Outcome.LEARNED]}
    unlearnt = [
        trace
        for trace in (entry.trace for entry in (*claimed[Outcome.HELD_OUT], *fresh))
        if trace.target_version in state.targets.judging
        and trace.request_id not in requests
        and _prompt(trace) not in prompts
    ]
    return predicted_by(state.trainer.draft, unlearnt, state.trainer.plan.steps)


def predicted_by(draft: Draft, traces: Sequence[DraftTrace], steps: int) -> Prediction | None:
    """Replay `draft` on the last MOST_REQUESTS requests of `traces`; those that replay cannot score do not count."""
    scored = [trace for trace in traces if len(trace.features) and not why_unscored(trace)]
    requests = frozenset(list(dict.fromkeys(trace.request_id for trace in reversed(scored)))[:MOST_REQUESTS])
    chosen = [trace for trace in scored if trace.request_id in requests]
    found = tallies(draft, chosen, steps)
    return prediction((_prompt(trace), trace.request_id, found[trace.trace_id]) for trace in chosen)


def _prompt(trace: DraftTrace) -> Asked:
    return Asked(trace.tenant, trace.prompt or trace.request_id)
