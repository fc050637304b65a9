"""The fold of board events: which states may follow each other, and which versions are live and previous then."""

import itertools

import pytest
from fleet import version
from paceline.buffer.board.reason import ReasonCode, because
from paceline.buffer.board.version import MOVES, BoardEvent, VersionState, fold
from paceline.buffer.errors import BoardConflict

CANDIDATE, REFUSED, CANARY = VersionState.CANDIDATE, VersionState.REFUSED, VersionState.CANARY
LIVE = VersionState.LIVE
RETIRED, ROLLED_BACK = VersionState.RETIRED, VersionState.ROLLED_BACK

#: The shortest life of version 1 that ends in each state, beside a live version 0.
LIVES = {
    CANDIDATE: [CANDIDATE],
    REFUSED: [CANDIDATE, REFUSED],
    CANARY: [CANDIDATE, CANARY],
    LIVE: [CANDIDATE, LIVE],
    RETIRED: [CANDIDATE, LIVE, RETIRED],
    ROLLED_BACK: [CANDIDATE, LIVE, ROLLED_BACK],
}
LEGAL = {
    (CANDIDATE, REFUSED),
    (CANDIDATE, CANARY),
    (CANDIDATE, LIVE),
    (CANARY, LIVE),
    (CANARY, ROLLED_BACK),
    (REFUSED, LIVE),
    (LIVE, RETIRED),
    (LIVE, ROLLED_BACK),
    (RETIRED, LIVE),
    (ROLLED_BACK, LIVE),
}


def event(number: int, state: VersionState, at: float = 0.0) -> BoardEvent:
    described, replica = version(number) if state is CANDIDATE else None, "a" if state is CANARY else ""
    return BoardEvent(
        number=number,
        state=state,
        by="test",
        why=f"{number} {state}",
        at=at,
        version=described,
        event_id=f"{at:.0f}-0",
        replica=replica,
    )


def life(number: int, *states: VersionState) -> list[BoardEvent]:
    return [event(number, state) for state in states]


@pytest.mark.parametrize(("before", "after"), sorted(LEGAL))
def test_a_legal_move_ends_in_its_state(before, after):
    state = fold(life(1, *LIVES[before], after))
    assert state.rows[1].state is after
    assert state.rows[1].why == f"1 {after}"
    assert state.live == (1 if after is LIVE else None)


@pytest.mark.parametrize(("before", "after"), sorted(set(itertools.product(VersionState, VersionState)) - LEGAL))
def test_an_illegal_move_is_refused_with_got_and_expected(before, after):
    expected = " or ".join(sorted(MOVES[before]))
    already = " already" if before == after else ""
    with pytest.raises(BoardConflict) as caught:
        fold(life(1, *LIVES[before], after))
    assert f": version 1 is {before}{already}: got a move to {after}, expected one to {expected}; " in str(caught.value)


@pytest.mark.parametrize("first", sorted(set(VersionState) - {CANDIDATE}))
def test_an_unknown_number_can_only_become_a_candidate(first):
    with pytest.raises(BoardConflict, match=f"version 1 is not on the board: got a move to {first}, expected it to be"):
        fold(life(1, first))


def test_a_candidate_event_without_its_version_is_refused():
    with pytest.raises(BoardConflict, match="version 1 is not on the board"):
        fold([BoardEvent(number=1, state=CANDIDATE, by="test", why="why", at=0.0)])


def test_a_new_live_version_retires_the_one_before_and_records_why():
    state = fold([*life(0, CANDIDATE, LIVE), event(1, CANDIDATE), event(1, LIVE, 7.0)])
    assert (state.live, state.previous, state.last_event_id) == (1, 0, "7-0")
    assert (state.rows[0].state, state.rows[0].why, state.rows[0].changed_at) == (
        RETIRED,
        because(ReasonCode.REPLACED, by=1),
        7.0,
    )


def test_previous_is_the_newest_version_that_served_and_was_not_rolled_back():
    events = [*life(0, CANDIDATE, LIVE), *life(1, CANDIDATE, LIVE), *life(2, CANDIDATE, LIVE)]
    assert fold(events).previous == 1
    events += [event(2, ROLLED_BACK), event(1, LIVE)]
    assert (fold(events).live, fold(events).previous) == (1, 0)
    events += [*life(3, CANDIDATE, LIVE)]
    assert (fold(events).live, fold(events).previous) == (3, 1)


def test_a_refused_candidate_leaves_live_and_previous_alone():
    events = [*life(0, CANDIDATE, LIVE), *life(1, CANDIDATE, LIVE)]
    assert (fold(events).live, fold(events).previous) == (1, 0)
    events += life(2, CANDIDATE, REFUSED)
    assert (fold(events).live, fold(events).previous) == (1, 0)


def test_a_version_made_live_again_is_not_its_own_previous():
    events = [*life(0, CANDIDATE, LIVE), *life(1, CANDIDATE, LIVE), event(0, LIVE)]
    assert (fold(events).live, fold(events).previous) == (0, 1)


def test_a_canary_drafts_on_its_replica_alone_until_it_is_decided():
    events = [*life(0, CANDIDATE, LIVE), *life(1, CANDIDATE, CANARY)]
    state = fold(events)
    assert (state.live, state.previous, state.canary, state.rows[1].replica) == (0, None, 1, "a")
    assert (state.drafts_on("a"), state.drafts_on("b")) == (1, 0)
    won = fold([*events, event(1, LIVE)])
    assert (won.live, won.previous, won.canary, won.drafts_on("b"), won.rows[1].replica) == (1, 0, None, 1, "")
    lost = fold([*events, event(1, ROLLED_BACK)])
    assert (lost.live, lost.previous, lost.canary, lost.drafts_on("a")) == (0, None, None, 0)


def test_a_second_canary_one_of_no_replica_and_a_replica_for_anything_else_are_refused():
    events = [*life(0, CANDIDATE, LIVE), *life(1, CANDIDATE, CANARY), *life(2, CANDIDATE)]
    with pytest.raises(BoardConflict, match="version 2 as canary: got canary 1 in use, expected none"):
        fold([*events, event(2, CANARY)])
    with pytest.raises(BoardConflict, match="version 2 as canary: got replica '', expected the one it drafts on"):
        fold([*life(2, CANDIDATE), BoardEvent(number=2, state=CANARY, by="test", why="why", at=0.0)])
    with pytest.raises(BoardConflict, match="version 2 as live: got replica 'a', expected none"):
        fold([*life(2, CANDIDATE), BoardEvent(number=2, state=LIVE, by="test", why="why", at=0.0, replica="a")])


def test_a_version_that_goes_live_ends_the_canary_of_another():
    state = fold([*life(0, CANDIDATE, LIVE), *life(1, CANDIDATE, CANARY), *life(2, CANDIDATE), event(2, LIVE, 7.0)])
    row = state.rows[1]
    assert (state.live, state.previous, state.canary) == (2, 0, None)
    assert (row.state, row.why, row.changed_at) == (ROLLED_BACK, because(ReasonCode.OVERTAKEN, by=2), 7.0)


def test_a_history_of_years_folds_in_one_pass():
    """A fold that looked at every row for every event would take minutes here."""
    numbers = range(20_000)
    state = fold(event(number, state, float(number)) for number in numbers for state in (CANDIDATE, LIVE))
    assert (state.live, state.previous, len(state.rows)) == (numbers[-1], numbers[-2], len(numbers))
    assert state.rows[7].why == because(ReasonCode.REPLACED, by=8)
