"""Judges the line of drafts in training on the traces of one claim, before it learns them.

Judged are requests that neither the line nor the reference has learnt anything of, nor, in the claim before, other
answers to the same prompt. Both are replayed against the very verdicts that were served, so each pair is fair under the
version of the target that gave them, whichever that is.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...buffer.stream.trace import DraftTrace
from ...buffer.stream.trace_buffer import TraceEntry, entry_order
from ...policies.line_delivery import Delivery, LineDelivery
from ...policies.paired import Asked, Paired
from ...policies.prequential import PrequentialRules, is_ruined
from ..model.draft import Draft
from .paired_replay import paired, why_unscored


@dataclass(frozen=True, slots=True)
class Unlearnt:
    """Tells the traces that may judge from those that the line or the reference may have learnt from.

    A version learnt from no entry of the stream after the last one it was trained on.
    """

    target_versions: Container[str]  # whose verdicts measure a draft; see TargetHistory.judging
    after: str  # id of the last entry that the reference was trained on; empty: it learnt from none
    requests: Container[str]  # of which the line has learnt other traces

    def of(self, entries: Sequence[TraceEntry]) -> list[DraftTrace]:
        """The traces that may judge, in the same order."""
        return [entry.trace for entry in entries if self._is_met(entry)]

    def _is_met(self, entry: TraceEntry) -> bool:
        is_later = not self.after or entry_order(entry.entry_id) > entry_order(self.after)
        trace = entry.trace
        return is_later and trace.target_version in self.target_versions and trace.request_id not in self.requests


class LastLearnt:
    """Remembers which requests and prompts the line learnt in one claim: further traces of them do not judge.

    What is asked about is the claim before, what is noted the one at hand.

    A claim can be larger than the replay buffer, which therefore does not tell all requests. A prompt is not noted in
    the claim after the one that noted it: else one that is asked all the time would judge once and never again.
    """

    def __init__(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Goes on from the `state` of the claim before; an empty one remembers nothing."""
        self.requests: frozenset[str] = frozenset(state.get("requests", ()))
        self._prompts = frozenset(Asked(*asked) for asked in state.get("prompts", ()))
        self._noted_requests: set[str] = set()
        self._noted_prompts: set[Asked] = set()

    def has_prompt_of(self, trace: DraftTrace) -> bool:
        """Return whether the claim before noted an answer to the same tenant's prompt; of an unknown prompt none is."""
        return Asked(trace.tenant, trace.prompt) in self._prompts

    def note(self, block: Iterable[DraftTrace]) -> None:
        """The line is about to learn these, or holds them out."""
        for trace in block:
            self._noted_requests.add(trace.request_id)
            if trace.prompt and not self.has_prompt_of(trace):
                self._noted_prompts.add(Asked(trace.tenant, trace.prompt))

    def state(self) -> Mapping[str, Sequence[Any]]:
        """Return what the next claim needs, as JSON values; where this one learnt nothing, what the one before left."""
        is_noted = bool(self._noted_requests)
        requests, prompts = (self._noted_requests, self._noted_prompts) if is_noted else (self.requests, self._prompts)
        return {"requests": sorted(requests), "prompts": sorted(prompts)}


@dataclass(slots=True, kw_only=True)
class LineJudge:
    """Judges the line by what one learning round shows of it. Changes `delivery` and `last_learnt`; no draft."""

    delivery: LineDelivery
    live: int
    live_draft: Draft
    reference: int
    reference_draft: Draft
    unlearnt: Unlearnt
    last_learnt: LastLearnt  # in the claim before this one
    steps: int  # drafts per verify round
    is_line_live: bool  # whether the line is the very draft that serves: in the first block, or never
    pairs: list[Paired] = field(default_factory=list)  # of every block so far
    judged: list[DraftTrace] = field(default_factory=list)  # the traces of those that have rounds
    by_request: dict[str, Paired] = field(default_factory=dict)  # those that have rounds, in the order they came
    late: set[str] = field(default_factory=set)  # requests left out: other answers to their prompts had just judged

    def observe(self, line: Draft, block: Sequence[TraceEntry]) -> None:
        """Replay a block with the line, which has not learnt it yet, and with the reference, and add what they show.

        A line that is the reference itself shows nothing, but learns the block as any other.
        """
        is_live = self.is_line_live
        self.is_line_live = False
        self.last_learnt.note(entry.trace for entry in block)
        if is_live and self.live == self.reference:
            return
        traces = self._in_time([trace for trace in self.unlearnt.of(block) if not why_unscored(trace)])
        pairs = paired(traces, line, self.reference_draft, self.steps)
        self.delivery.observe(pairs, is_live=is_live)
        self.pairs += pairs
        requests = dict.fromkeys(trace.request_id for trace in traces)
        counted = {request: pair for request, pair in zip(requests, pairs, strict=True) if pair.has_rounds}
        self.by_request |= counted
        self.judged += [trace for trace in traces if trace.request_id in counted]

    def _in_time(self, traces: Sequence[DraftTrace]) -> list[DraftTrace]:
        in_time = [trace for trace in traces if not self.last_learnt.has_prompt_of(trace)]
        self.late |= {trace.request_id for trace in traces if self.last_learnt.has_prompt_of(trace)}
        return in_time

    def decide(self, newest: int, line: Draft, held_out: Sequence[DraftTrace], rules: PrequentialRules) -> Delivery:
        """Return which version serves next, once the line has learnt the claim and is to be published as `newest`."""
        failed = is_ruined(paired(held_out, line, self.live_draft, self.steps), rules)
        return self.delivery.decide(newest, self.live, is_ruined=failed)
