"""A swap is told with what was served before and after it."""

from dataclasses import dataclass, field

import pytest
from paceline.buffer.board.member_status import SwapSaid
from paceline.serving.watch.draft_turns import MAX_TURNS, DraftTurns
from served_rounds import prefill, verify


def swapped(number, before, at):
    return SwapSaid(number=number, before=before, at=at, stage_ms=1.0, commit_ms=1.0, running=0)


@dataclass
class Told:
    """Turns of drafts, a round per second, and the swaps between them."""

    turns: DraftTurns = field(default_factory=DraftTurns)
    now: float = 100.0
    swaps: list = field(default_factory=list)

    def swap(self, number, before):
        self.now += 0.5
        self.swaps.append(swapped(number, before, self.now))

    def serve(self, draft, *accepted):
        for one in accepted:
            self.now += 0.5
            self.turns.add(verify("r", draft, one), self.now)

    def figures(self):
        names = ("accept_length_before", "rounds_before", "accept_length_after", "rounds_after")
        return [tuple(getattr(told, name) for name in names) for told in self.turns.told(self.swaps)]


def test_each_swap_has_the_turn_before_it_and_the_turn_after_it():
    told = Told()
    told.turns.add(prefill("r"), 100.0)
    told.serve(1, 0, 1)
    told.swap(2, 1)
    told.serve(2, 2, 2, 2)
    told.swap(3, 2)
    told.serve(3, 0)
    told.swap(2, 3)
    told.serve(2, 1)
    told.swap(4, 2)  # nothing was served since
    assert told.figures() == [(1.5, 2, 3.0, 3), (3.0, 3, 1.0, 1), (1.0, 1, 2.0, 1), (2.0, 1, None, 0)]


def test_a_round_that_seems_to_come_just_before_its_swap_was_done_belongs_to_it():
    told = Told()
    told.serve(1, 0)
    told.turns.add(verify("r", 2, 3), 101.0)
    told.swaps.append(swapped(2, 1, 101.4))
    assert told.figures() == [(1.0, 1, 4.0, 1)]


def test_without_rounds_or_the_draft_before_nothing_is_known():
    told = Told()
    told.swaps = [swapped(2, None, 90.0), swapped(3, None, 95.0)]
    assert told.figures() == [(None, 0, None, 0)] * 2


@pytest.mark.parametrize("forward", [verify("r", 1, 0, width=0), verify("r", 1, 2, tokens=())])
def test_rounds_without_drafts_or_tokens_are_no_turn(forward):
    told = Told()
    told.turns.add(forward, 100.0)
    told.swap(2, 1)
    assert told.figures() == [(None, 0, None, 0)]


def test_old_turns_are_forgotten():
    told = Told()
    for draft in range(2 * MAX_TURNS):
        told.serve(draft, 1)
    assert len(told.turns._turns) == MAX_TURNS
