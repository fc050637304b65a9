"""Traffic of the learner's tests: how many traces are sent at once, and which of them the learner holds out."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from paceline.buffer.stream.trace import DraftTrace, Sampling, VerdictRule, VerifyRounds
from paceline.learner.claim.intake import is_held_out
from paceline.learner.judging.replay import replay_logprobs

SHARE = 0.25
BATCH = 24


def held_out(traces: Sequence[DraftTrace]) -> list[DraftTrace]:
    """Those whose requests are never trained on."""
    return [trace for trace in traces if is_held_out(trace.request_id, SHARE)]


def ids(traces: Sequence[DraftTrace]) -> list[str]:
    """Trace ids in the order of `traces`."""
    return [trace.trace_id for trace in traces]


def not_held_out(traces: Sequence[DraftTrace]) -> list[DraftTrace]:
    """The others: those that a learner may train on."""
    return [trace for trace in traces if not is_held_out(trace.request_id, SHARE)]


def by_rejection(trace: DraftTrace, draft: Any, seed: int = 0) -> DraftTrace:
    """The text of `trace` as rejection sampling commits it at 0.7, by a made-up target from the drafts of `draft`."""
    rng = np.random.default_rng([seed, *trace.request_id.encode()])
    warm = replace(trace, verdict_rule=VerdictRule.REJECTION, sampling=Sampling(0.7))
    steps = trace.rounds.drafted.shape[1]
    logp_T = np.log(rng.uniform(0.02, 0.6, len(trace.tokens))).astype(np.float32)
    (logq_TS,) = replay_logprobs(draft, [warm], steps)
    return replace(warm, rounds=coin_rounds(warm, logp_T, logq_TS, rng))


def coin_rounds(trace: DraftTrace, logp_T: Any, logq_TS: Any, rng: np.random.Generator) -> VerifyRounds:
    """Rounds along the trace's text, each draft accepted with min(1, q / p)."""
    starts = []
    accepted = []
    chances = []
    drafted = []
    steps = logq_TS.shape[1]
    root = int(trace.rounds.starts[0])
    last = len(trace.tokens) - 1
    while root < last:
        most = min(steps, last - root)
        kept = 0
        while kept < most and rng.random() < math.exp(min(0.0, logq_TS[root, kept] - logp_T[root + 1 + kept])):
            kept += 1
        known = np.full((steps + 1, 2), np.nan, np.float32)
        for node in range(min(kept + 1, last - root)):
            known[node] = logp_T[root + 1 + node], logq_TS[root, node] if node < steps else np.nan
        following = np.resize(trace.tokens[root + 1 : root + 1 + steps], steps)
        following[kept:] = (following[kept:] + 1) % 32
        for rows, row in ((starts, root), (accepted, kept), (chances, known), (drafted, following)):
            rows.append(row)
        root += kept + 1
    teacher = np.zeros((len(starts), steps + 1, 0))
    return VerifyRounds(
        starts=np.array(starts, np.int32),
        drafted=np.array(drafted, np.int32),
        accepted=np.array(accepted, np.int32),
        teacher_ids=teacher.astype(np.int32),
        teacher_logprobs=teacher.astype(np.float16),
        committed_logprobs=np.array(chances, np.float32),
    )
