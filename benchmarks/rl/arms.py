"""The arms of one recorded run: what each would have had accepted of the very same rollouts, by replay.

Every arm is replayed, the one that served too: a request's last round is cut, so replay is a few hundredths lower than
what was served, for all alike. The target's embedding, which a draft shares, is that of the start for all: how old it
is hardly matters to replay.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...buffer.stream.trace import DraftTrace
from ...learner.judging.paired_replay import tallies
from ...learner.model.draft_io import load_draft, load_target_embedding
from ...policies.acceptance import Tally
from ...rig.deployment import DRAFT_STEPS
from .gate import line_pairs, odds_by_step, shared_variance
from .recorded import RecordedRun

#: "newest" is the line without a gate.
ARMS = ("zero-update", "adapted once", "following", "newest")
_KEPT = "arms.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArms:
    """One step: where the target was, and the accepted drafts per verify round of every arm."""

    step: int
    kl: float  # nats per token, to the target before training
    entropy: float  # nats
    tokens: int  # of the rollouts
    accepted: dict[str, float]  # arm -> drafts
    rounds: dict[str, float]
    odds: float | None  # of the gate's test, that the line gains on the first draft; None before there is a newer draft
    shared: float | None  # of the variance of gains, by the answers to a prompt; over the whole run

    def per_round(self, arm: str) -> float:
        """Accepted drafts per verify round."""
        return self.accepted[arm] / self.rounds[arm]


def ensure_arms(run: RecordedRun, target: Path) -> list[StepArms]:
    """All steps of a run, replayed once; a minute or two."""
    kept = run.folder / _KEPT
    if not kept.exists():
        steps = replayed(run, target)
        kept.write_text(json.dumps([asdict(step) for step in steps], indent=1) + "\n", encoding="utf-8")
    return [StepArms(**row) for row in json.loads(kept.read_text(encoding="utf-8"))]


def replayed(run: RecordedRun, target: Path) -> list[StepArms]:
    """Replay every arm on every step."""
    embedding = load_target_embedding(target)
    notes = run.notes["steps"]
    pairs = line_pairs(run, target)
    odds = odds_by_step(pairs)
    shared = shared_variance(pairs)
    found = []
    for step, traces in run.traces().items():
        by_arm = {arm: Tally() for arm in ARMS}
        for number, wanted in _wanted(run, step, traces).items():
            draft = load_draft(run.draft(number), embedding)
            tally_of = tallies(draft, list({t.trace_id: t for _, t in wanted}.values()), DRAFT_STEPS)
            for arm, trace in wanted:
                by_arm[arm] += tally_of[trace.trace_id]
        tokens = sum(trace.committed_len for trace in traces)
        accepted = {arm: tally.accepted for arm, tally in by_arm.items()}
        rounds = {arm: tally.rounds for arm, tally in by_arm.items()}
        found.append(
            StepArms(
                step=step,
                kl=notes[step]["kl"],
                entropy=notes[step]["entropy"],
                tokens=tokens,
                accepted=accepted,
                rounds=rounds,
                odds=odds.get(step),
                shared=shared,
            )
        )
    return found


def _wanted(run: RecordedRun, step: int, traces: Sequence[DraftTrace]) -> dict[int, list[tuple[str, DraftTrace]]]:
    """Version -> the arms and traces that it drafts for, so that each is read and replayed once."""
    found: dict[int, list[tuple[str, DraftTrace]]] = defaultdict(list)
    once = run.adapted_once(step)
    newest = run.newest(step)
    for trace in traces:
        for arm, number in zip(ARMS, (0, once, trace.draft_version, newest), strict=True):
            found[number].append((arm, trace))
    return found
