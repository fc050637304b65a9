"""A claim in two blocks: which traces are in which, what is replayed with each, and one report of both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from typing import Any

import pytest
from paceline.buffer.stream.trace_buffer import TraceEntry
from paceline.learner.claim.intake import Outcome
from paceline.learner.round.learning_blocks import blocks_of, learn, merged
from paceline.learner.training.trainer import FitReport

FIT = FitReport(
    losses=(3.0, 2.0),
    steps=2,
    skipped_steps=1,
    seconds=1.5,
    first_position_accept=0.5,
    first_position_attainable=0.75,
    mean_acceptance=(0.5, 0.25),
    is_cold=True,
    weighting="survival",
    context_weight=1.0,
    learning_rate=0.003,
    out_of_vocabulary_labels=4,
    unusable_traces=1,
    part_tokens=8192,
)


def claim(
    make_trace: Any, *rows: tuple[str, Outcome], prompts: Mapping[str, str] | None = None
) -> dict[Outcome, list[TraceEntry]]:
    """Entries 1-0, 2-0, ... of these requests and outcomes; `prompts` are the keys of theirs, where known."""
    found: dict[Outcome, list[TraceEntry]] = {outcome: [] for outcome in Outcome}
    for place, (request, outcome) in enumerate(rows, 1):
        prompt = (prompts or {}).get(request, "")
        trace = replace(make_trace(place), trace_id=str(place), request_id=request, prompt=prompt)
        found[outcome].append(TraceEntry(f"{place}-0", trace))
    return found


def shown(claimed: dict[Outcome, list[TraceEntry]]) -> list[tuple[list[str], list[str]]]:
    return [
        tuple([entry.trace.trace_id for entry in part] for part in (b.learned, b.held_out)) for b in blocks_of(claimed)
    ]


LEARNED, HELD_OUT = Outcome.LEARNED, Outcome.HELD_OUT


def test_requests_stay_whole_and_held_out_ones_are_in_the_block_they_came_in(make_trace) -> None:
    rows = [
        ("a", LEARNED),
        ("b", HELD_OUT),
        ("c", LEARNED),
        ("d", LEARNED),
        ("b", HELD_OUT),
        ("e", HELD_OUT),
        ("a", LEARNED),
    ]
    assert shown(claim(make_trace, *rows)) == [(["1", "3", "7"], ["2", "5"]), (["4"], ["6"])]


def test_all_answers_to_a_prompt_are_in_the_block_of_the_first(make_trace) -> None:
    keys = {name: f"{key:016x}" for name, key in zip("abcdef", (7, 8, 7, 9, 8, 7), strict=True)}
    rows = [(name, HELD_OUT if name == "c" else LEARNED) for name in "abcdefg"]  # of g nothing is known
    assert shown(claim(make_trace, *rows, prompts=keys)) == [(["1", "2", "5", "6"], ["3"]), (["4", "7"], [])]


def test_the_order_is_that_of_the_stream_whatever_was_claimed_first(make_trace) -> None:
    claimed = claim(make_trace, *((name, LEARNED) for name in "abcd"))
    claimed[LEARNED].reverse()
    assert shown(claimed) == [(["2", "1"], []), (["4", "3"], [])]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("a", LEARNED)], [(["1"], [])]),
        ([("a", HELD_OUT), ("b", LEARNED)], [(["2"], ["1"])]),
        ([("a", LEARNED), ("b", HELD_OUT)], [(["1"], ["2"])]),
        ([("a", HELD_OUT), ("b", HELD_OUT)], []),
        ([], []),
    ],
)
def test_every_block_has_something_to_learn(make_trace, rows, expected) -> None:
    assert shown(claim(make_trace, *rows)) == expected


class Trainer:
    """Notes what it is given."""

    draft = "draft"

    def __init__(self) -> None:
        self.done: list[Any] = []

    def fit(self, fresh: Sequence[Any], replay: Sequence[Any], _part_tokens: int | None) -> FitReport:
        self.done.append(([t.trace_id for t in fresh], [t.trace_id for t in replay]))
        return FIT


class Judge:
    """Notes what it is shown, in the trainer's list."""

    def __init__(self, trainer: Trainer) -> None:
        self._done = trainer.done

    def observe(self, line: Any, block: Sequence[TraceEntry]) -> None:
        self._done.append((line, [entry.trace.trace_id for entry in block]))


def test_each_block_is_judged_before_it_is_learnt_and_then_replayed(make_trace) -> None:
    claimed = claim(make_trace, ("a", LEARNED), ("b", HELD_OUT), ("c", LEARNED), ("d", LEARNED))
    trainer, old = Trainer(), replace(make_trace(9), trace_id="old")
    report = learn(trainer, blocks_of(claimed), replayed=[old], judge=Judge(trainer))
    assert trainer.done == [
        ("draft", ["1", "2"]),
        (["1"], ["old"]),
        ("draft", ["3", "4"]),
        (["3", "4"], ["old", "1"]),
    ]
    assert report.steps == 4
    unjudged = Trainer()
    learn(unjudged, blocks_of(claimed), replayed=[old], judge=None)
    assert unjudged.done == trainer.done[1::2]


def test_two_reports_add_up_to_one() -> None:
    second = replace(
        FIT, losses=(1.0,), steps=1, seconds=0.5, first_position_accept=0.9, mean_acceptance=(0.75,), is_cold=False,
        weighting="geometric", context_weight=0.25, learning_rate=0.001, out_of_vocabulary_labels=1, part_tokens=4096,
    )  # fmt: skip
    assert merged([FIT, second]) == FitReport(
        losses=(3.0, 2.0, 1.0),
        steps=3,
        skipped_steps=2,
        seconds=2.0,
        first_position_accept=0.5,
        first_position_attainable=0.75,
        mean_acceptance=(0.75,),
        is_cold=False,
        weighting="geometric",
        context_weight=0.25,
        learning_rate=0.001,
        out_of_vocabulary_labels=5,
        unusable_traces=2,
        part_tokens=4096,
    )
    assert merged([FIT]) == FIT


def test_what_one_block_did_not_measure_the_other_one_tells() -> None:
    nothing = replace(
        FIT, first_position_accept=nan, first_position_attainable=nan, mean_acceptance=(), losses=(), steps=0
    )
    for reports in ([nothing, FIT], [FIT, nothing]):
        found = merged(reports)
        assert (found.first_position_accept, found.first_position_attainable) == (0.5, 0.75)
        assert found.mean_acceptance == FIT.mean_acceptance
    assert isnan(merged([nothing, nothing]).first_position_accept)
