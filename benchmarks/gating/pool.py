"""Recorded requests by domain, from which all streams are composed, and what poison makes of one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from rich.console import Console

from ...buffer.trace import NO_DRAFT, DraftTrace, Int32s
from ...rig.trace_file import read_traces
from ..learning.lab import Lab
from ..learning.record import ensure_recorded
from ..learning.results import fingerprint
from ..learning.setting import Setting
from ..learning.stream import domain_of, with_top_k

#: Greedy, so that text and features do not depend on the draft; as many drafts as the demo's server makes.
SETTING = Setting(0.0, 3)
#: Of every request so many tokens are used, which halves the time of a line; greedy text of a small target goes round
#: in circles soon, and most of that is cut off.
COMMITTED_TOKENS = 40
#: The target's pad, start and end tokens, which poison leaves alone.
_SPECIAL_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Pool:
    """Traces by domain, in the order of their names."""

    by_domain: Mapping[str, tuple[DraftTrace, ...]]
    fingerprint: str  # of their requests and tokens


def load_pool(lab: Lab, per_domain: int, console: Console) -> Pool:
    """The pool of `lab`, with at least `per_domain` requests of every domain; recorded first when it has fewer."""
    ensure_recorded(lab, SETTING, per_domain, console)
    traces = sorted(read_traces(lab.trace_file(SETTING)), key=lambda trace: trace.request_id)
    by_domain: dict[str, list[DraftTrace]] = {domain: [] for domain in lab.domains}
    for trace in traces:
        kept = with_top_k(trace, 1)  # what the product keeps of a greedy request
        by_domain[domain_of(trace)].append(shortened(kept, COMMITTED_TOKENS))
    return Pool({domain: tuple(found) for domain, found in by_domain.items()}, fingerprint(traces))


def shortened(trace: DraftTrace, committed: int) -> DraftTrace:
    """The trace of a request that ended after `committed` tokens, or earlier."""
    end = trace.context_len + committed
    rounds = trace.rounds
    kept = int(np.searchsorted(rounds.starts, min(end, len(trace.tokens))))
    cut = replace(
        rounds, starts=rounds.starts[:kept], drafted=rounds.drafted[:kept], accepted=rounds.accepted[:kept],
        teacher_ids=rounds.teacher_ids[:kept], teacher_logprobs=rounds.teacher_logprobs[:kept],
    )  # fmt: skip
    return replace(trace, tokens=trace.tokens[:end], features=trace.features[:end], rounds=cut)


def poisoned(trace: DraftTrace, words: int) -> DraftTrace:
    """The trace with every second committed token replaced by another one, the same for all traces.

    As somebody would write it who may write traces: features and context are those of an honest request, and what they
    lead to is wrong in a way that can be learnt, so that a draft gains on such traces what it loses on honest ones.
    With every token replaced a draft loses less: it learns to tell them by the token it is fed.
    """
    swapped, rounds = _swapped_tokens(words), trace.rounds
    position_RN = rounds.starts[:, None] + 1 + np.arange(rounds.teacher_ids.shape[1])

    def changed(ids: Int32s, position: npt.NDArray[np.int64]) -> Int32s:
        is_hit = (position >= trace.context_len) & ((position - trace.context_len) % 2 == 0) & (ids != NO_DRAFT)
        return np.where(is_hit, swapped[ids], ids)

    rounds = replace(
        rounds,
        drafted=changed(rounds.drafted, position_RN[:, :-1]),
        teacher_ids=changed(rounds.teacher_ids, position_RN[..., None]),
    )
    return replace(trace, tokens=changed(trace.tokens, np.arange(len(trace.tokens))), rounds=rounds)


def _swapped_tokens(words: int) -> Int32s:
    """Which token stands for which, int32[words]."""
    order = np.arange(words, dtype=np.int32)
    np.random.default_rng(0).shuffle(order[_SPECIAL_TOKENS:])
    return order
