"""Waiting for servers to draft with a promoted version: who has it, who has not, and why the wait ends."""

import pytest
from fleet import publish
from paceline.dashboards.adoption import adoption, say_adoption, wait_for_adoption
from said import said
from twins.memory_board import MemoryVersionBoard


@pytest.fixture
def clock():
    """Seconds; a pause moves it."""
    return [0.0]


@pytest.fixture
def board(clock):
    """Version 1 just went live over version 0."""
    made = MemoryVersionBoard(clock=lambda: clock[0])
    publish(made, 0, 1)
    return made


def waited(board, clock, *steps):
    """Wait 30 s; with every pause the next of `steps` happens."""
    coming = iter(steps)

    def pause(seconds):
        clock[0] += seconds
        next(coming, lambda: None)()

    return wait_for_adoption(board, 1, 30.0, clock=lambda: clock[0], pause=pause)


def drafts(board, name, number, **status):
    return lambda: board.beat(f"replica:{name}", said({"draft_version": number, **status}), 60.0)


def test_it_ends_as_soon_as_every_server_drafts_with_it(board, clock):
    drafts(board, "a", 0)()
    drafts(board, "b", 0)()
    found = waited(board, clock, drafts(board, "b", 1), lambda: None, drafts(board, "a", 1))
    assert (found.is_complete, clock[0]) == (True, 0.75)
    text = "version 1 is live on the board\nreplica:a drafts with version 1\nreplica:b drafts with version 1"
    assert found.sentence() == text


def test_after_its_time_it_names_who_has_not_taken_it_and_why(board, clock):
    drafts(board, "a", 1)()
    drafts(board, "b", 0, swap_reason="the weights were not staged in time")()
    found = waited(board, clock)
    assert (found.is_complete, clock[0]) == (False, 30.0)
    last = "replica:b does not: it drafts with 0; the weights were not staged in time"
    assert found.sentence().splitlines()[1:] == ["replica:a drafts with version 1", last]


def test_it_does_not_wait_for_a_server_that_drafts_without_a_model(board, clock):
    drafts(board, "a", 1)()
    drafts(board, "b", None, server={"speculation": {"algorithm": "NGRAM"}})()
    found = waited(board, clock)
    assert (found.is_complete, found.drafting, clock[0]) == (True, ("replica:a",), 0.0)


def test_it_does_not_wait_where_no_server_is_alive(board, clock):
    drafts(board, "a", 1, ended=True)()
    found = waited(board, clock)
    assert (found.is_complete, clock[0]) == (True, 0.0)
    assert found.sentence() == "version 1 is live on the board, no server is alive to take it"


def test_it_ends_when_a_server_refuses_the_version_on_the_board(board, clock):
    drafts(board, "a", 0)()
    found = waited(board, clock, lambda: board.roll_back("replica:a", "refused by a: not finite", 1))
    assert (found.is_complete, clock[0]) == (False, 0.25)
    assert found.sentence() == "version 1 is not live any more: refused by a: not finite"


@pytest.mark.parametrize(("number", "code"), [(1, 0), (0, 1)])
def test_what_was_found_is_said_and_is_the_exit_code(board, number, code):
    drafts(board, "a", number)()
    said = []
    assert say_adoption(board, 1, 0.0, said.append) == code
    assert said == [adoption(board, 1).sentence()]
