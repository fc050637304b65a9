"""The swapper makes the board's live version the one that drafts, and writes a refusal on the board."""

import pytest
from fleet import version
from paceline.buffer.board.member_status import MemberStatus, RefusalSaid, SwapSaid
from paceline.buffer.board.reason import ReasonCode, because
from paceline.buffer.board.version import BoardEvent, VersionState
from paceline.buffer.errors import BoardConflict, WeightsRefused
from paceline.serving.swap.staggered_rollout import StaggeredRollout
from paceline.serving.swap.swapper import CanaryTurns, Swapper
from said import said_by
from twins.memory_board import MemoryVersionBoard


class Switch:
    """A double of the engine: swaps at once, or refuses, or does not answer."""

    def __init__(self):
        self.draft_version, self.asked, self.fault = 0, [], None
        self.while_staging = lambda: None
        self.late = []

    def swap(self, number, file, sha256, is_wanted):
        self.asked.append((number, str(file), sha256))
        if self.fault is not None:
            raise self.fault
        self.while_staging()
        if not is_wanted():
            raise TimeoutError(f"version {number}: it was withdrawn")
        self.draft_version = number
        return SwapSaid(number=number, commit_ms=2.5, stage_ms=9.0, running=3, at=50.0)

    def take_late(self):
        late, self.late = self.late, []
        return late


@pytest.fixture
def board():
    made = MemoryVersionBoard(clock=lambda: 100.0)
    for _ in range(3):
        number = made.next_number()
        made.register(version(number, weights_uri=f"file:///w/v%20{number}", sha256=f"sha{number}"), "l", "new")
    made.move(0, VersionState.LIVE, "l", "start")
    return made


@pytest.fixture
def switch():
    return Switch()


@pytest.fixture
def swapper(board, switch):
    return Swapper(board, switch, replica="rep", before_canary=lambda: None)


@pytest.fixture
def clocked_board():
    """Two candidates and a clock to set."""
    now = [100.0]
    made = MemoryVersionBoard(clock=lambda: now[0])
    for number in range(2):
        made.next_number()
        made.register(version(number, weights_uri=f"file:///w/{number}", sha256="same sha"), "l", "new")
    return made, now


def replaced(live, folder="w", sha256="new"):
    """A board that started from nothing: its versions 0 and 1 have other weights."""
    fresh = MemoryVersionBoard(clock=lambda: 200.0)
    for _ in range(2):
        number = fresh.next_number()
        own = {"weights_uri": f"file:///{folder}/{number}", "sha256": f"{sha256}{number}"}
        fresh.register(version(number, **own), "l", "new")
    fresh.move(live, VersionState.LIVE, "l", "start")
    return fresh


def test_a_new_live_version_is_swapped_in_once(board, switch, swapper):
    swapper.turn()
    assert switch.asked == []
    board.move(1, VersionState.LIVE, "l", "better")
    swapper.turn()
    swapper.turn()
    assert switch.asked == [(1, "/w/v 1/model.safetensors", "sha1")]
    status = said_by(swapper.record)
    assert switch.draft_version == 1
    swap = SwapSaid(number=1, commit_ms=2.5, stage_ms=9.0, running=3, at=50.0, before=0)
    swap.asked_at = board.read().rows[1].changed_at
    assert status.swaps == [swap]
    assert (swapper.record.done, swapper.record.refused) == (1, {})


def test_a_swap_that_was_given_up_on_and_done_later_is_in_the_status_once_with_its_lateness(board, caplog):
    switch = Switch()
    swapper = Swapper(board, switch, replica="rep", before_canary=lambda: None)
    board.move(1, VersionState.LIVE, "l", "better")
    switch.fault = TimeoutError("the scheduler reached no iteration within 60 s")
    swapper.turn()
    switch.fault, switch.draft_version = None, 1
    switch.late = [SwapSaid(number=1, commit_ms=2.5, stage_ms=9.0, running=3, at=50.0, late_s=7.25)]
    swapper.turn()
    swapper.turn()
    assert [(swap.number, swap.late_s) for swap in said_by(swapper.record).swaps] == [(1, 7.25)]
    assert "version 1 was swapped in 7.2 s late" in caplog.text
    assert len(switch.asked) == 1


def test_a_late_swap_is_listed_before_the_one_that_came_after_it(board, switch, swapper):
    board.move(1, VersionState.LIVE, "l", "better")
    switch.while_staging = lambda: switch.late.append(
        SwapSaid(number=2, commit_ms=2.5, stage_ms=9.0, running=3, at=49.0, late_s=1.0)
    )
    swapper.turn()
    assert [swap.number for swap in said_by(swapper.record).swaps] == [2, 1]


def test_a_roll_back_swaps_the_previous_version_in(board, switch, swapper):
    board.move(1, VersionState.LIVE, "l", "better")
    swapper.turn()
    board.roll_back("operator:me", "worse")
    swapper.turn()
    assert (switch.draft_version, [number for number, *_ in switch.asked]) == (0, [1, 0])


@pytest.mark.guarantee("refused-version-leaves")
def test_a_refused_version_is_rolled_back_with_the_reason_and_the_old_draft_stays(board, switch, swapper):
    board.move(1, VersionState.LIVE, "l", "better")
    switch.fault = WeightsRefused("norm.weight: holds values that are not finite")
    swapper.turn()
    state = board.read()
    assert (state.live, state.rows[1].state) == (0, VersionState.ROLLED_BACK)
    assert state.rows[1].why == because(
        ReasonCode.WEIGHTS_REFUSED, by="rep", fault="norm.weight: holds values that are not finite"
    )
    assert switch.draft_version == 0
    status = said_by(swapper.record)
    assert status.swaps_refused == 1
    why = "norm.weight: holds values that are not finite"
    assert status.refusals == [RefusalSaid(number=1, promoted_at=100.0, why=why)]


@pytest.mark.guarantee("weights-disk-away")
def test_a_version_restored_by_a_rollback_is_not_rolled_back_by_a_replica_that_cannot_load_it(board, switch, swapper):
    for number in (1, 2):
        board.move(number, VersionState.LIVE, "l", "better")
    switch.fault = WeightsRefused("the volume is not mounted")
    for _ in range(4):
        swapper.turn()
    state = board.read()
    assert (state.live, state.rows[2].state) == (1, VersionState.ROLLED_BACK)
    assert [number for number, *_ in switch.asked] == [2, 1]


@pytest.mark.guarantee("weights-disk-away")
def test_a_file_that_cannot_be_read_here_is_waited_for_while_another_replica_drafts_with_it(board, switch, swapper):
    board.move(1, VersionState.LIVE, "l", "better")
    switch.fault = OSError("no such file")
    board.beat("replica:other", MemberStatus(draft_version=1), 60.0)
    for _ in range(2):
        swapper.turn()
    assert (board.read().live, said_by(swapper.record).swaps_refused) == (1, 0)
    switch.fault = None
    swapper.turn()
    assert switch.draft_version == 1
    board.move(2, VersionState.LIVE, "l", "better")
    switch.fault = OSError("no such file")
    swapper.turn()
    row = board.read().rows[2]
    assert (row.state, row.why) == (
        VersionState.ROLLED_BACK,
        because(ReasonCode.WEIGHTS_REFUSED, by="rep", fault="no such file"),
    )


def test_a_version_withdrawn_while_it_is_staged_never_drafts_here(board, switch, swapper):
    board.move(1, VersionState.LIVE, "l", "better")
    switch.while_staging = lambda: board.roll_back("replica:other", "silent_death") if board.read().live else None
    swapper.turn()
    assert (switch.draft_version, board.read().rows[1].why) == (0, "silent_death")
    swapper.turn()
    assert [number for number, *_ in switch.asked] == [1]


def test_a_board_replaced_while_a_version_is_staged_gets_its_own_weights(board, switch, swapper):
    board.move(1, VersionState.LIVE, "l", "better")
    fresh = replaced(1, "fresh", "fresh")
    swapper._look()

    def lose_data():
        known = {event.event_id for event in fresh.events()}
        board.events = lambda after_id="", wait_s=0.0: fresh.events(after_id if after_id in known else "", wait_s)
        switch.while_staging = lambda: None

    switch.while_staging = lose_data
    for _ in range(2):
        swapper.turn()
    assert [(number, digest) for number, _, digest in switch.asked] == [(1, "sha1"), (1, "fresh1")]
    assert switch.draft_version == 1


def test_events_before_one_that_does_not_fit_count_once_that_is_gone(board, switch, swapper):
    swapper.turn()
    board.move(1, VersionState.LIVE, "l", "better")
    stray = BoardEvent(number=9, state=VersionState.LIVE, by="stranger", why="", at=1.0, event_id="999999999999999-1")
    board._events.append(stray)
    with pytest.raises(BoardConflict, match="999999999999999-1"):
        swapper.turn()
    board._events.remove(stray)
    swapper.turn()
    assert switch.draft_version == 1


def test_two_replicas_that_refuse_one_version_roll_back_that_one_alone(board):
    for number in (1, 2):
        board.move(number, VersionState.LIVE, "l", "better")
    first, second = Switch(), Switch()
    first.fault = second.fault = WeightsRefused("bad")
    late = Swapper(board, second, replica="late", before_canary=lambda: None)
    late._look()  # sees version 2 live, like the other one
    Swapper(board, first, replica="rep", before_canary=lambda: None).turn()
    assert board.read().live == 1
    late._roll_back(2, "bad")
    state = board.read()
    assert (state.live, state.rows[1].state, state.rows[2].state) == (1, VersionState.LIVE, VersionState.ROLLED_BACK)


def test_a_refused_promotion_is_staged_once_and_a_new_one_again(clocked_board):
    board, now = clocked_board
    switch = Switch()
    swapper = Swapper(board, switch, replica="rep", before_canary=lambda: None)
    switch.fault = WeightsRefused("bad")
    board.move(0, VersionState.LIVE, "l", "nothing before it to roll back to")
    for _ in range(3):
        swapper.turn()
    switch.draft_version = 7
    for _ in range(3):
        swapper.turn()
    assert [number for number, *_ in switch.asked] == [0]
    now[0] += 1.0
    board.move(1, VersionState.LIVE, "l", "better")
    swapper.turn()  # refused, rolled back to 0
    now[0] += 1.0
    board.move(1, VersionState.LIVE, "operator:me", "mended")
    swapper.turn()
    assert [number for number, *_ in switch.asked] == [0, 1, 1]


def test_only_new_events_are_read(board):
    read = []
    real = board.events
    board.events = lambda after_id="", wait_s=0.0: read.append(after_id) or real(after_id, wait_s)
    swapper = Swapper(board, Switch(), replica="rep", before_canary=lambda: None)
    for _ in range(3):
        swapper.turn()
    assert read == ["", *[real()[-1].event_id] * 2]


def test_a_board_that_starts_from_nothing_is_followed(board, switch, swapper):
    board.move(1, VersionState.LIVE, "l", "better")
    swapper.turn()
    fresh = replaced(0)
    events = fresh.events()
    swapper._board = fresh
    fresh.events = lambda *_: events
    swapper.turn()
    assert (switch.draft_version, switch.asked[-1]) == (0, (0, "/w/0/model.safetensors", "new0"))


def test_a_time_out_is_tried_again_and_rolls_nothing_back(board, switch, swapper):
    board.move(2, VersionState.LIVE, "l", "better")
    switch.fault = TimeoutError("no iteration")
    swapper.turn()
    assert board.read().live == 2
    switch.fault = None
    swapper.turn()
    assert switch.draft_version == 2


def test_a_canary_is_swapped_in_on_its_replica_alone_once_its_rounds_are_counted(board):
    here, there, woken = Switch(), Switch(), []
    on_it = Swapper(board, here, replica="rep", before_canary=lambda: woken.append(here.draft_version))
    beside = Swapper(board, there, replica="other", before_canary=lambda: woken.append("other"))
    board.move(1, VersionState.CANARY, "l", "better", replica="rep")
    on_it.turn()
    beside.turn()
    assert (here.draft_version, there.draft_version, woken) == (1, 0, [0])
    assert (on_it.record.is_canary, beside.record.is_canary) == (True, False)
    assert (on_it.record.is_canary_out, beside.record.is_canary_out) == (True, True)
    board.roll_back("replica:rep", "worse", 1)
    on_it.turn()
    beside.turn()
    assert (on_it.record.is_canary_out, beside.record.is_canary_out) == (False, False)
    assert (here.draft_version, on_it.record.is_canary, there.asked) == (0, False, [])


@pytest.mark.guarantee("one-name-twice")
def test_a_canary_drafts_on_one_of_two_servers_of_one_name_whichever_the_board_gave_it(board):
    given, switches = ["", ""], [Switch(), Switch()]
    first, second = (
        Swapper(board, switch, replica="rep", before_canary=lambda: None, named=lambda place=place: given[place])
        for place, switch in enumerate(switches)
    )
    board.move(1, VersionState.CANARY, "l", "won", replica="rep")
    for names in (["", ""], ["rep", ""], ["rep", "rep~2"]):
        given[:] = names
        first.turn()
        second.turn()
        assert [switch.draft_version for switch in switches] == [int(names[0] == "rep"), 0]
    board.roll_back("replica:rep", "worse", 1)
    board.move(2, VersionState.CANARY, "l", "won", replica="rep~2")
    first.turn()
    second.turn()
    assert [switch.draft_version for switch in switches] == [0, 2]


def test_a_refused_canary_is_rolled_back_though_nothing_was_live_before_the_live_version(board):
    switch = Switch()
    switch.fault = WeightsRefused("bad")
    board.move(1, VersionState.CANARY, "l", "better", replica="rep")
    Swapper(board, switch, replica="rep", before_canary=lambda: None).turn()
    state = board.read()
    assert (state.live, state.canary, state.rows[1].state) == (0, None, VersionState.ROLLED_BACK)


def test_with_turns_a_canary_and_the_live_version_alternate_on_its_replica(board):
    now, switch, called = [0.0], Switch(), []
    swapper = Swapper(
        board,
        switch,
        replica="rep",
        before_canary=lambda: called.append(now[0]),
        turns=CanaryTurns(20.0, lambda: now[0]),
    )
    board.move(1, VersionState.CANARY, "l", "won", replica="rep")
    seen = []
    for now[0] in (0.0, 19.0, 20.0, 39.0, 40.0, 60.0):
        swapper.turn()
        seen.append((switch.draft_version, swapper.record.is_canary))
    assert seen == [(1, True), (1, True), (0, False), (0, False), (1, True), (0, False)]
    assert called == [0.0, 40.0]
    board.move(1, VersionState.LIVE, "replica:rep", "better", was=VersionState.CANARY)
    for now[0] in (61.0, 85.0):
        swapper.turn()
        assert (switch.draft_version, swapper.record.is_canary) == (1, False)


def test_a_board_that_starts_from_nothing_names_other_weights_by_the_same_number(board, switch, swapper):
    board.move(1, VersionState.LIVE, "l", "better")
    swapper.turn()
    fresh = replaced(1)
    events = fresh.events()
    fresh.events = lambda *_: events
    swapper._board = fresh
    swapper.turn()
    assert switch.asked[1:] == [(1, "/w/1/model.safetensors", "new1")]
    fresh.events = lambda *_: []
    swapper.turn()
    assert len(switch.asked) == 2


def test_a_new_live_version_is_staggered_and_one_that_drafted_before_is_not(board):
    now, switch = [0.0], Switch()
    rollout = StaggeredRollout(board, "rep", 5.0, lambda: now[0])
    swapper = Swapper(board, switch, replica="rep", before_canary=lambda: None, rollout=rollout)
    board.beat("replica:first", MemberStatus(draft_version=0, swap="on"), 1000.0)
    board.move(1, VersionState.LIVE, "l", "better")
    swapper.turn()
    assert switch.draft_version == 1  # it has just started
    swapper.turn()
    board.move(2, VersionState.CANARY, "l", "won", replica="rep")
    swapper.turn()
    board.roll_back("replica:rep", "worse", 2)
    swapper.turn()
    assert [number for number, *_ in switch.asked] == [1, 2, 1]  # neither waits
    board.move(0, VersionState.LIVE, "operator", "by hand")
    swapper.turn()
    assert switch.draft_version == 1
    now[0] = 5.0
    swapper.turn()
    assert switch.draft_version == 0
