"""A claim in two blocks of whole requests: the line is judged on each before it learns it.

All answers to one prompt are in one block, since they are judged together (policies/paired.py).

So the second half of a claim is judged by weights that have learnt the first: at a shift of traffic no round passes
before the line can show that it follows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...buffer.stream.trace import DraftTrace
from ...buffer.stream.trace_buffer import TraceEntry, entry_order
from ..claim.intake import ByOutcome, Outcome
from ..judging.line_judge import LineJudge
from ..training.trainer import DraftTrainer, FitReport
from ..work_tally import WorkTally

BLOCKS = 2


@dataclass(frozen=True, slots=True)
class Block:
    """Entries of whole requests, with every answer in the claim to each of their prompts; each list as claimed."""

    learned: list[TraceEntry]
    held_out: list[TraceEntry]

    def __add__(self, other: "Block") -> "Block":
        return Block(self.learned + other.learned, self.held_out + other.held_out)


def blocks_of(claimed: ByOutcome) -> list[Block]:
    """The claimed traces to learn and those held out, in the order that their prompts came, in parts of equally many.

    A part without a trace to learn belongs to its neighbour, so every block has one. No block when there is none.
    """
    came = sorted(
        (*claimed[Outcome.LEARNED], *claimed[Outcome.HELD_OUT]), key=lambda entry: entry_order(entry.entry_id)
    )
    prompt_of = {entry.trace.request_id: entry.trace.prompt or entry.trace.request_id for entry in came}
    prompts = list(dict.fromkeys(prompt_of.values()))
    part_of = {prompt: place * BLOCKS // len(prompts) for place, prompt in enumerate(prompts)}
    found = [Block([], [])]
    for part in range(BLOCKS):
        block = Block(
            *(
                [entry for entry in claimed[outcome] if part_of[prompt_of[entry.trace.request_id]] == part]
                for outcome in (Outcome.LEARNED, Outcome.HELD_OUT)
            )
        )
        found[-1:] = [found[-1], block] if found[-1].learned and block.learned else [found[-1] + block]
    return found if found[0].learned else []


def learn(
    trainer: DraftTrainer,
    blocks: Sequence[Block],
    *,
    replayed: Sequence[DraftTrace],
    judge: LineJudge | None,
    tally: WorkTally | None = None,
) -> FitReport:
    """Let `judge`, if there is one, look at each block; then train on it. What is learnt is replayed with the next.

    `replayed`, oldest first, fills the batches up. Changes the trainer and the judge. At least one block. `tally` is
    told what is done and how far it is.
    """
    tally = tally or WorkTally()
    trainer.on_step = tally.step
    reports: list[FitReport] = []
    replay = list(replayed)
    for number, block in enumerate(blocks, 1):
        if judge is not None:
            with tally.phase("judge"):
                judge.observe(trainer.draft, [*block.learned, *block.held_out])
        fresh = [entry.trace for entry in block.learned]
        part_tokens = reports[-1].part_tokens if reports else None  # what does not fit is tried once in a round
        with tally.phase("train"):
            tally.block(number, len(blocks))
            reports.append(trainer.fit(fresh, replay, part_tokens))
        replay += fresh
    return merged(reports)


def merged(reports: Sequence[FitReport]) -> FitReport:
    """Return what the fits of one learning round did together; at least one.

    The figures of the first position are those of the first block that had any: only it was met before training.
    Regime, weighting and learning rate are the last ones.
    """
    last = reports[-1]
    first = next((report for report in reports if not math.isnan(report.first_position_accept)), last)
    return replace(
        last,
        losses=tuple(loss for report in reports for loss in report.losses),
        steps=sum(report.steps for report in reports),
        skipped_steps=sum(report.skipped_steps for report in reports),
        seconds=sum(report.seconds for report in reports),
        first_position_accept=first.first_position_accept,
        first_position_attainable=first.first_position_attainable,
        mean_acceptance=next((report.mean_acceptance for report in reversed(reports) if report.mean_acceptance), ()),
        out_of_vocabulary_labels=sum(report.out_of_vocabulary_labels for report in reports),
        unusable_traces=sum(report.unusable_traces for report in reports),
        part_tokens=min(report.part_tokens for report in reports),
        step_times=tuple(at for report in reports for at in report.step_times),
    )
