"""Recorded requests replayed with two drafts: what each would have had accepted.

Under a rule that decides by equality, replay counts the drafts that the server would have accepted: those that equal
what was committed. Under rejection sampling it gives their expectation, from the chance that the target gave every
token. Under any other rule the committed tokens tell nothing: such traces have no tally.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ...buffer.stream.trace import DraftTrace, VerdictRule
from ...policies.acceptance import Tally, replayed_tally
from ...policies.paired import Paired
from ...policies.rejection import expected_tally, why_not_estimated
from ..model.draft import Draft
from .replay import replay_logprobs, replay_traces


def paired(traces: Sequence[DraftTrace], line: Draft, reference: Draft, steps: int) -> list[Paired]:
    """Replay both drafts with `steps` drafts per verify round: one pair per request, in the order of `traces`.

    Traces that replay cannot score are left out, and requests of which none is left. Changes no draft.
    """
    by_request: dict[str, list[DraftTrace]] = defaultdict(list)
    for trace in traces:
        if not why_unscored(trace):
            by_request[trace.request_id].append(trace)
    scored = [trace for found in by_request.values() for trace in found]
    ours = tallies(line, scored, steps)
    theirs = tallies(reference, scored, steps)
    return [
        Paired(found[0].tenant, _total(ours, found), _total(theirs, found), found[0].prompt)
        for found in by_request.values()
    ]


def _total(by_trace: Mapping[str, Tally], traces: Sequence[DraftTrace]) -> Tally:
    return sum((by_trace[trace.trace_id] for trace in traces), Tally())


def tallies(draft: Draft, traces: Sequence[DraftTrace], steps: int) -> dict[str, Tally]:
    """Trace id -> what `draft` would have had accepted of a trace that replay can score."""
    counted = [trace for trace in traces if trace.verdict_rule.decides_by_equality]
    expected = [trace for trace in traces if not trace.verdict_rule.decides_by_equality]
    runs = replay_traces(draft, counted, steps, only_verdicts=True) if counted else []
    logprobs = replay_logprobs(draft, expected, steps) if expected else []
    found = {trace.trace_id: replayed_tally(trace, run) for trace, run in zip(counted, runs, strict=True)}
    return found | {t.trace_id: expected_tally(t, logq) for t, logq in zip(expected, logprobs, strict=True)}


def unscored(traces: Sequence[DraftTrace]) -> Counter[str]:
    """Requests of which replay can score no trace, by the reason of their newest one: a rule, or a rule and why."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for trace in traces:
        reasons[trace.request_id].append(why_unscored(trace))
    return Counter(found[-1] for found in reasons.values() if all(found))


def why_unscored(trace: DraftTrace) -> str:
    """Empty where replay can score the trace."""
    if trace.verdict_rule.decides_by_equality:
        return ""
    if trace.verdict_rule is not VerdictRule.REJECTION:
        return trace.verdict_rule.value
    why = why_not_estimated(trace)
    return f"{trace.verdict_rule.value} ({why})" if why else ""
