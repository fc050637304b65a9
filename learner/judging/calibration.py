"""Whether replay gives the served lengths: only then do figures measured by replay hold when served.

Every claimed trace whose draft version can be loaded is replayed with that version. Equal counts in every verify round
mean that capture, weights and replay agree on the model. Under rejection sampling replay gives the expectation of what
was served: there, sums over many rounds must agree.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...buffer.board.version import BoardState
from ...buffer.stream.trace import DraftTrace, Int32s
from ...policies.acceptance import replayed_and_served
from ...policies.rejection import EstimatedRounds, served_beside_expected, why_not_estimated
from ..model.draft import Draft
from ..model.draft_cache import DraftCache
from .replay import replay_logprobs, replay_traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Verify rounds compared with their replay; adds up over traces."""

    equal: int = 0
    compared: int = 0
    excess: int = 0  # drafts accepted in replay minus drafts accepted when served, over the compared rounds
    accepted: int = 0  # drafts accepted when served, over the compared rounds
    estimated: EstimatedRounds = field(default_factory=EstimatedRounds)  # other rounds: those by rejection sampling

    def __add__(self, other: "Calibration") -> "Calibration":
        return Calibration(
            equal=self.equal + other.equal,
            compared=self.compared + other.compared,
            excess=self.excess + other.excess,
            accepted=self.accepted + other.accepted,
            estimated=self.estimated + other.estimated,
        )

    @property
    def gap(self) -> float:
        """Replayed minus served accept length; 0.0 when nothing was compared."""
        return self.excess / self.compared if self.compared else 0.0


def compare_with_served(traces: Iterable[DraftTrace], state: BoardState, drafts: DraftCache) -> Calibration:
    """Replay each `replay_exact` trace with the version that served it; traces of unknown versions are left out."""
    served: dict[tuple[int, int], list[DraftTrace]] = defaultdict(list)
    for trace in traces:
        if trace.replay_exact and len(trace.rounds) and trace.draft_version in state.rows:
            served[trace.draft_version, trace.rounds.drafted.shape[1]].append(trace)
    total = Calibration()
    for (number, steps), group in served.items():
        draft = drafts.draft(state, number)
        if draft is not None and steps:
            total = sum(_compare(draft, group, steps), total)
    return total


def _compare(draft: Draft, traces: Sequence[DraftTrace], steps: int) -> list[Calibration]:
    counted = [trace for trace in traces if trace.verdict_rule.decides_by_equality]
    expected = [trace for trace in traces if not why_not_estimated(trace)]
    runs = replay_traces(draft, counted, steps, only_verdicts=True)
    logprobs = replay_logprobs(draft, expected, steps)
    estimates = [served_beside_expected(trace, logq) for trace, logq in zip(expected, logprobs, strict=True)]
    return [
        *(_calibration(trace, run) for trace, run in zip(counted, runs, strict=True)),
        *(Calibration(estimated=found) for found in estimates),
    ]


def _calibration(trace: DraftTrace, runs: Int32s) -> Calibration:
    replayed, served = replayed_and_served(trace, runs)
    return Calibration(
        equal=int((replayed == served).sum()),
        compared=len(served),
        excess=int((replayed - served).sum()),
        accepted=int(served.sum()),
    )
