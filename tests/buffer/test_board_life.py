"""The two boards get the same random calls: they answer alike, and neither ever holds an impossible state."""

from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version import MOVES, BoardEvent, BoardState, DraftVersion, VersionState
from paceline.buffer.board.version_board import VersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BoardConflict
from twins.memory_board import MemoryVersionBoard

NUMBERS = st.integers(0, 3)
STATES = st.sampled_from(VersionState)
MEMBERS = st.sampled_from(["learner", "replica:a", "operator:ann"])
TEXTS = st.text(max_size=5)
CANARY, LIVE = VersionState.CANARY, VersionState.LIVE


def outcome(act):
    """What came back, without the id that the board assigned, or the refusal."""
    try:
        answer = act()
    except BoardConflict as conflict:
        return str(conflict)
    if isinstance(answer, BoardEvent):
        return bare(answer)
    return facts(answer) if isinstance(answer, BoardState) else answer


def bare(event: BoardEvent) -> tuple:
    return (event.number, event.state, event.by, event.why, event.at, event.version, event.replica)


def facts(state: BoardState) -> tuple:
    return (dict(state.rows), state.live, state.previous, state.canary)


def history_of(events: list[BoardEvent]) -> dict[int, list[VersionState]]:
    """The states of each version, the slow way: one that goes live ends the live version and the canary."""
    lives: dict[int, list[VersionState]] = {}
    for event in events:
        if event.state is LIVE:
            for number, past in lives.items():
                if past[-1] is LIVE:
                    past.append(VersionState.RETIRED)
                elif past[-1] is CANARY and number != event.number:
                    past.append(VersionState.ROLLED_BACK)
        lives.setdefault(event.number, []).append(event.state)
    return lives


class TwoBoards(RuleBasedStateMachine):
    """Every command goes to memory and to Redis, there through one of two writers."""

    def __init__(self, client) -> None:
        super().__init__()
        client.flushall()
        self.now = 1_700_000_000.0
        self.memory = MemoryVersionBoard(lambda: self.now)
        self.writers = [RedisVersionBoard(client, BufferConfig(), lambda: self.now) for _ in range(2)]
        self.held: dict[str, list[ExitStack]] = {}
        self.seen = 0
        self.last_ids = ("", "")

    def both(self, writer: int, act) -> object:
        boards: list[VersionBoard] = [self.memory, self.writers[writer]]
        in_memory, in_redis = [outcome(lambda board=board: act(board)) for board in boards]
        assert in_memory == in_redis
        return in_memory

    @rule(writer=st.integers(0, 1))
    def reserve(self, writer: int) -> None:
        self.both(writer, lambda board: board.next_number())

    @rule(writer=st.integers(0, 1), number=NUMBERS, by=MEMBERS, why=TEXTS, score=st.floats(width=32))
    def register(self, writer: int, number: int, by: str, why: str, score: float) -> None:
        parent = number - 1 if number else None
        made = DraftVersion(
            number=number,
            parent=parent,
            target="t",
            target_version="1",
            drafter="eagle3",
            weights_uri="file:///d",
            sha256="ab",
            objective="greedy",
            trained_on=("1-1", "2-2"),
            scores={"length": score},
        )
        self.both(writer, lambda board: board.register(made, by, why))

    @rule(writer=st.integers(0, 1), number=NUMBERS, state=STATES, by=MEMBERS, why=TEXTS, replica=TEXTS)
    def move(self, writer: int, number: int, state: VersionState, by: str, why: str, replica: str = "") -> None:
        self.both(writer, lambda board: board.move(number, state, by, why, replica=replica))

    @rule(writer=st.integers(0, 1), number=NUMBERS)
    def become_canary(self, writer: int, number: int) -> None:
        self.register(writer, number, "learner", "trained", 1.0)
        self.move(writer, number, CANARY, "learner", "won", "a")

    @rule(writer=st.integers(0, 1), number=NUMBERS)
    def go_live(self, writer: int, number: int) -> None:
        """Registered if need be, then live: a sequence that `move` seldom draws."""
        self.register(writer, number, "learner", "trained", 1.0)
        self.move(writer, number, LIVE, "learner", "won")

    @rule(writer=st.integers(0, 1), number=st.none() | NUMBERS, by=MEMBERS, why=TEXTS)
    def roll_back(self, writer: int, number: int | None, by: str, why: str) -> None:
        before = self.memory.read()
        after = self.both(writer, lambda board: board.roll_back(by, why, number))
        if isinstance(after, tuple):
            was_canary = before.canary is not None and number in {None, before.canary}
            gone = before.canary if was_canary else before.live
            assert after[0][gone].state is VersionState.ROLLED_BACK
            assert after[1] == (before.live if was_canary else before.previous)

    @rule(writer=st.integers(0, 1), to=NUMBERS, by=MEMBERS, why=TEXTS)
    def roll_back_to(self, writer: int, to: int, by: str, why: str) -> None:
        before = self.memory.read()
        after = self.both(writer, lambda board: board.roll_back(by, why, before.live, to=to))
        if isinstance(after, tuple):
            gone = [before.live, *before.earlier[: before.earlier.index(to)]]
            assert {after[0][number].state for number in gone} == {VersionState.ROLLED_BACK}
            assert after[1] == to

    @rule(
        writer=st.integers(0, 1),
        member=MEMBERS,
        reason=TEXTS,
        skipped=st.dictionaries(TEXTS, st.integers(-(2**53), 2**53), max_size=2),
    )
    def beat(self, writer: int, member: str, reason: str, skipped: dict[str, int]) -> None:
        status = MemberStatus(capture_reason=reason, skipped=skipped)
        self.both(writer, lambda board: board.beat(member, status, 3600.0))
        self.both(writer, lambda board: dict(board.heartbeats()))

    @rule(writer=st.integers(0, 1), name=st.sampled_from("ab"))
    def take_lease(self, writer: int, name: str) -> None:
        stacks = [ExitStack(), ExitStack()]
        boards = (self.memory, self.writers[writer])
        leases = [stack.enter_context(board.lease(name, 3600.0)) for stack, board in zip(stacks, boards, strict=True)]
        assert [bool(lease) for lease in leases] == [name not in self.held] * 2
        assert [lease.is_held() for lease in leases] == [name not in self.held] * 2
        if name in self.held:
            for stack in stacks:
                stack.close()
        else:
            self.held[name] = stacks

    @rule(name=st.sampled_from("ab"))
    def free_lease(self, name: str) -> None:
        for stack in self.held.pop(name, []):
            stack.close()

    @rule(seconds=st.floats(-10.0, 10.0))
    def let_time_pass(self, seconds: float) -> None:
        """Backwards too: clocks are set."""
        self.now += seconds

    @invariant()
    def the_boards_hold_the_same(self) -> None:
        boards = (self.memory, *self.writers)
        assert len({str([*map(bare, board.events())]) for board in boards}) == 1
        assert facts(self.memory.read()) == facts(self.writers[0].read()) == facts(self.writers[1].read())

    @invariant()
    def no_follower_misses_an_event_or_sees_one_twice(self) -> None:
        total = len(self.memory.events())
        pages = [board.events(last) for board, last in zip((self.memory, self.writers[0]), self.last_ids, strict=True)]
        assert [len(page) for page in pages] == [total - self.seen] * 2
        if pages[0]:
            self.seen, self.last_ids = total, (pages[0][-1].event_id, pages[1][-1].event_id)

    @invariant()
    def nothing_impossible_is_on_the_board(self) -> None:
        state, lives = self.writers[0].read(), history_of(self.writers[0].events())
        assert {number: row.state for number, row in state.rows.items()} == {n: past[-1] for n, past in lives.items()}
        for past in lives.values():
            steps = zip([None, *past], past, strict=False)
            assert all(after in MOVES[before] for before, after in steps)
        live = [number for number, row in state.rows.items() if row.state is LIVE]
        assert live == ([] if state.live is None else [state.live])
        canaries = [number for number, row in state.rows.items() if row.state is CANARY]
        assert canaries == ([] if state.canary is None else [state.canary])
        assert all(bool(row.replica) == (row.state is CANARY) for row in state.rows.values())
        if state.previous is not None:
            assert state.rows[state.previous].state is VersionState.RETIRED
            assert state.previous != state.live
        assert all(row.version.number == number for number, row in state.rows.items())

    def teardown(self) -> None:
        for name in list(self.held):
            self.free_lease(name)


@pytest.mark.guarantee("board-states")
@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_the_two_boards_live_the_same_random_life_and_hold_nothing_impossible(redis_client):
    relaxed = settings(max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(lambda: TwoBoards(redis_client), settings=relaxed)
