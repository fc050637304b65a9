"""The most recent held-out requests, never trained on, on which candidate and live draft are compared.

Under a rule that decides by equality, replay counts the drafts that the server would have accepted: those that equal
what was committed. Under rejection sampling it gives their expectation, from the chance that the target gave every
token. Under any other rule the committed tokens tell nothing: such traces are kept, and not scored.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from ...buffer.trace import DraftTrace, VerdictRule
from ...policies.acceptance import Tally, replayed_tally
from ...policies.rejection import expected_tally, why_not_estimated
from ..model.eagle3 import Eagle3Draft
from .replay import replay_logprobs, replay_traces


class Holdout:
    """Traces of the `max_requests` most recent held-out requests, grouped by request."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._requests: OrderedDict[str, dict[str, DraftTrace]] = OrderedDict()
        self._live_key: tuple[int, int] | None = None
        self._live: dict[str, Tally] = {}

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def trace_ids(self) -> set[str]:
        """Ids of all traces kept."""
        return {trace_id for traces in self._requests.values() for trace_id in traces}

    @property
    def unscored(self) -> Counter[str]:
        """Requests of which replay can score no trace, by the reason of their newest one: a rule, or a rule and why."""
        reasons = ([_why_unscored(trace) for trace in traces.values()] for traces in self._requests.values())
        return Counter(found[-1] for found in reasons if all(found))

    @property
    def has_trees(self) -> bool:
        """Whether any kept trace was drafted as a tree: replay then ranks drafts by the chains they would make."""
        return any(trace.is_tree for traces in self._requests.values() for trace in traces.values())

    @property
    def requests(self) -> list[list[DraftTrace]]:
        """The traces of every kept request, oldest request first."""
        return [list(traces.values()) for traces in self._requests.values()]

    def add(self, trace: DraftTrace) -> None:
        """Keep a trace and make its request the most recent one; the oldest request leaves when there are too many."""
        self._requests.setdefault(trace.request_id, {})[trace.trace_id] = trace
        self._requests.move_to_end(trace.request_id)
        if len(self._requests) > self._max_requests:
            self._requests.popitem(last=False)

    def retain(self, is_kept: Callable[[DraftTrace], bool]) -> None:
        """Drop the traces for which `is_kept` is false, and requests left without a trace."""
        left = {
            request: {trace_id: trace for trace_id, trace in traces.items() if is_kept(trace)}
            for request, traces in self._requests.items()
        }
        self._requests = OrderedDict((request, traces) for request, traces in left.items() if traces)

    def score(self, draft: Eagle3Draft, steps: int) -> list[Tally]:
        """Replay `draft` with `steps` drafts per verify round: one tally per request, oldest request first.

        Requests that replay cannot score have an empty tally.
        """
        traces = [trace for traces in self._requests.values() for trace in traces.values()]
        return self._by_request(_replay(draft, traces, steps))

    def score_live(self, number: int, draft: Eagle3Draft, steps: int) -> list[Tally]:
        """As `score`, for the draft of version `number`; traces it was already scored on are not replayed again."""
        if self._live_key != (number, steps):
            self._live_key, self._live = (number, steps), {}
        kept = {trace_id: trace for traces in self._requests.values() for trace_id, trace in traces.items()}
        known = {trace_id: tally for trace_id, tally in self._live.items() if trace_id in kept}
        fresh = [trace for trace_id, trace in kept.items() if trace_id not in known]
        self._live = known | _replay(draft, fresh, steps)
        return self._by_request(self._live)

    def _by_request(self, tallies: dict[str, Tally]) -> list[Tally]:
        return [sum((tallies[trace_id] for trace_id in traces), Tally()) for traces in self._requests.values()]


def _why_unscored(trace: DraftTrace) -> str:
    """Empty where replay can score the trace."""
    if trace.verdict_rule.decides_by_equality:
        return ""
    if trace.verdict_rule is not VerdictRule.REJECTION:
        return trace.verdict_rule.value
    why = why_not_estimated(trace)
    return f"{trace.verdict_rule.value} ({why})" if why else ""


def _replay(draft: Eagle3Draft, traces: Sequence[DraftTrace], steps: int) -> dict[str, Tally]:
    scored = [trace for trace in traces if not _why_unscored(trace)]
    counted = [trace for trace in scored if trace.verdict_rule.decides_by_equality]
    expected = [trace for trace in scored if not trace.verdict_rule.decides_by_equality]
    runs = replay_traces(draft, counted, steps) if counted else []
    logprobs = replay_logprobs(draft, expected, steps) if expected else []
    tallies = {trace.trace_id: replayed_tally(trace, run) for trace, run in zip(counted, runs, strict=True)}
    tallies |= {trace.trace_id: expected_tally(trace, logq) for trace, logq in zip(expected, logprobs, strict=True)}
    return {trace.trace_id: tallies.get(trace.trace_id, Tally()) for trace in traces}
