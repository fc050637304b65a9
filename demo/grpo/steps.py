"""The results of a run: one row per step, the frozen draft beside what was served, as a table and as JSON."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from ...buffer.stream.trace import DraftTrace
from ...learner.judging.paired_replay import tallies
from ...learner.model.draft_io import load_draft, load_target_embedding
from ...policies.acceptance import Tally, proposed_drafts
from ...rig.deployment import DRAFT_STEPS
from .notes import StepNote

#: Heading -> field of StepRow, and how it is shown.
_COLUMNS: Mapping[str, tuple[str, str]] = {
    "step": ("step", "d"),
    "reward": ("reward", ".4f"),
    "KL": ("kl", ".4f"),
    "accept length": ("accept_length", ".3f"),
    "in traces": ("traced", ".3f"),
    "frozen draft": ("frozen", ".3f"),
    "rollout s": ("rollout_seconds", ".1f"),
    "tail s": ("tail_seconds", ".2f"),
    "sync s": ("sync_seconds", ".2f"),
    "draft": ("draft_version", ".0f"),
    "draft lag": ("draft_lag", ".0f"),
    "log-prob error": ("logprob_error", ".1e"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step. Accept lengths include the bonus token; None is not known."""

    step: int
    reward: float
    kl: float
    entropy: float
    accept_length: float | None  # as the servers report it
    traced: float | None  # of the rounds in the step's traces, drafts past the end of a request left out
    frozen: float | None  # what the first draft would have had in these traces, by replay
    rollout_seconds: float
    tail_seconds: float
    sync_seconds: float | None
    draft_version: float | None
    draft_lag: float | None  # target versions
    logprob_error: float


def step_rows(
    notes: Sequence[StepNote], rewarded: Sequence[float], lengths: Mapping[str, tuple[Tally, Tally]]
) -> list[StepRow]:
    """Bring together what was noted of each step, its reward, and its accept lengths by target version."""
    return [_row(step, *seen, lengths) for step, seen in enumerate(zip(notes, rewarded, strict=True))]


def _row(step: int, note: StepNote, reward: float, lengths: Mapping[str, tuple[Tally, Tally]]) -> StepRow:
    served, frozen = lengths.get(note.version, (Tally(), Tally()))
    figures = note.figures
    return StepRow(
        step=step,
        reward=reward,
        kl=note.kl,
        entropy=note.entropy,
        accept_length=figures.get("rollout/accept_length"),
        traced=_length(served),
        frozen=_length(frozen),
        rollout_seconds=figures["rollout/seconds"],
        tail_seconds=figures["rollout/tail_seconds"],
        sync_seconds=figures.get("rollout/sync_seconds"),
        draft_version=figures.get("rollout/draft_version"),
        draft_lag=figures.get("rollout/draft_lag"),
        logprob_error=note.logprob_error,
    )


def accept_lengths(traces: Iterable[DraftTrace], frozen: Path, target: Path) -> dict[str, tuple[Tally, Tally]]:
    """Target version -> accepted drafts and rounds of its traces: as served, and with the draft `frozen` replayed."""
    draft = load_draft(frozen, load_target_embedding(target))
    by_version: dict[str, list[DraftTrace]] = defaultdict(list)
    for trace in traces:
        by_version[trace.target_version].append(trace)
    found = {}
    for version, some in by_version.items():
        replayed = tallies(draft, some, DRAFT_STEPS)
        found[version] = (sum(map(traced_tally, some), Tally()), sum(replayed.values(), Tally()))
    return found


def traced_tally(trace: DraftTrace) -> Tally:
    """Count the accepted drafts of the trace as replay does: no token after its last one."""
    drafted = proposed_drafts(trace) > 0
    return Tally(int(trace.visible_accepted()[drafted].sum()), int(drafted.sum()))


def steps_table(rows: Sequence[StepRow]) -> Table:
    """One row per step."""
    table = Table(title="GRPO with a draft that learns along", title_justify="left", expand=False)
    for heading in _COLUMNS:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(_cell(asdict(row)[field], form) for field, form in _COLUMNS.values()))
    return table


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _length(tally: Tally) -> float | None:
    return tally.accept_length if tally.rounds else None
