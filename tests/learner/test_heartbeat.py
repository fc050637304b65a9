"""What a learner says of itself, and how soon its silence shows."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from paceline.buffer.board.counters import Counters, counters_of
from paceline.buffer.board.member_status import FitSaid, MemberStatus, WorkSaid
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.stream.trace_buffer import BufferCounts
from paceline.learner import heartbeat as module
from paceline.learner.heartbeat import ALIVE_S, Heartbeat
from paceline.learner.round.learning_report import MAX_LOSSES, LearningKind
from paceline.learner.training.trainer import DraftTrainer
from paceline.learner.work_tally import FAILED, WorkTally
from paceline.policies.model_free.comparison import ModelFree
from twins.memory_board import MemoryVersionBoard

EMPTY = BufferCounts(delivered=0, pending=0, dead_lettered=0, acked={}, trimmed=0, bytes=0)


def member(house) -> str:
    return f"learner:{house.config.name}"


def told(house) -> MemberStatus:
    return house.board.members()[member(house)].said


def counted(house) -> Counters:
    found = counters_of(told(house).counters)
    assert found is not None
    return found


def nothing(_said: MemberStatus) -> None:
    """No news."""


def kind(name: str) -> Callable[[MemberStatus], None]:
    """News of a kind."""

    def fill(said: MemberStatus) -> None:
        said.kind = name

    return fill


class Seconds:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_phase_takes_its_time_from_the_one_around_it() -> None:
    clock = Seconds()
    tally = WorkTally(clock)
    clock.now += 1.0
    with tally.phase("train"):
        clock.now += 2.0
        with suppress(ZeroDivisionError), tally.phase("judge"):
            clock.now += 4.0
            raise ZeroDivisionError
        clock.now += 8.0
    clock.now += 16.0
    learner = tally.counters(EMPTY).learner
    assert learner.seconds == {"idle": 17.0, "train": 10.0, "judge": 4.0}
    assert not learner.is_busy


def test_in_a_phase_it_is_busy_and_says_how_far_it_is() -> None:
    clock = Seconds()
    tally = WorkTally(clock)
    with tally.phase("train"):
        tally.block(1, 2)
        tally.step(3, 40)
        clock.now += 2.5
        assert tally.counters(EMPTY).learner.is_busy
        assert tally.counters(EMPTY).learner.seconds["train"] == 2.5
        assert tally.work() == WorkSaid(phase="train", phase_s=2.5, block=1, blocks=2, step=3, steps=40)
    assert tally.work() == WorkSaid(phase="idle", phase_s=0.0)


def test_counters_grow_with_what_the_learner_does_and_show_the_buffer(house) -> None:
    learner = house.learner(learn="always", passes=1)
    traces = house.send()
    report = learner.learn_once()
    house.send(3)
    house.clock.now += 7.0
    assert learner.learn_once().kind is LearningKind.IDLE
    found = counted(house).learner
    assert (found.rounds, found.rests, found.optimiser_steps) == (1, 0, report.fit.steps)
    assert found.verdicts == {report.promotion.verdict.value: 1}
    assert {"load", "claim", "compare", "judge", "train", "publish", "register", "idle"} == set(found.seconds)
    assert found.process_cpu_s > 0.0
    counts = house.buffer.counts()
    assert (found.delivered, found.pending, found.acked) == (len(traces) + 3, 3, counts.acked)
    assert (found.oldest_pending_s, found.oldest_kept_s) == (7.0, 7.0)
    assert (found.entries, found.bytes, found.max_bytes) == (counts.entries, counts.bytes, counts.max_bytes)
    assert counted(house).boot == told(house).learner.boot


def test_counters_are_of_one_process_and_the_boards_history_has_them(house) -> None:
    house.learner().learn_once()
    first = counted(house).boot
    house.clock.now += 60.0
    house.learner().learn_once()
    history = house.board.history(member(house))
    assert [each.boot for each in history] == [first, counted(house).boot]
    assert first != counted(house).boot


def test_every_figure_of_the_fit_is_told_and_of_long_curves_a_part(house, monkeypatch: pytest.MonkeyPatch) -> None:
    house.send()
    learner = house.learner(learn="always", passes=12)
    report = learner.learn_once()
    assert told(house).unreadable == ""
    fit = told(house).fit
    of_the_round = {"round_s", "traces", "loss_first", "loss_every"}
    assert {*FitSaid.__struct_fields__} - of_the_round == {*report.fit.__dataclass_fields__} - {"step_times"}
    assert len(report.fit.losses) > MAX_LOSSES >= len(fit.losses)
    assert fit.losses == pytest.approx(list(report.fit.losses[:: -fit.loss_every][::-1]), rel=1e-4)
    assert len(msgspec.json.encode(told(house))) < 8000
    assert fit.losses[-1] == pytest.approx(report.fit.losses[-1], rel=1e-4)
    assert fit.loss_first == pytest.approx(report.fit.losses[0], rel=1e-4)
    assert (fit.steps, fit.is_cold, fit.weighting) == (report.fit.steps, report.fit.is_cold, report.fit.weighting)
    house.send()
    second = house.learner(learn="always", passes=1).learn_once()
    learnt = report.outcomes["learned"]
    assert told(house).fit.traces == {**second.outcomes, "replayed": learnt}
    assert told(house).schedule.rest_after_flat_rounds == house.config.rest_after_rounds
    assert "learning is set to always" in told(house).schedule.next


def test_drafters_without_a_model_are_told_and_their_table_survives_a_restart(house) -> None:
    first = house.send(label="made", stride=7)
    house.learner().learn_once()
    said = told(house).model_free
    assert [(row.label, row.traces) for row in said.by_label] == [(None, len(first)), ("made", len(first))]
    served = sum(len(trace.rounds) for trace in first)
    assert said.by_label[0].accept_length == pytest.approx(said.by_label[0].tokens / served)
    learner = house.learner()
    again = house.send(label="made")
    learner.learn_once()
    assert [row.traces for row in told(house).model_free.by_label] == [len(again)] * 2
    without = ModelFree(lambda: 0.0)
    without.remember(again)
    rows = learner._state.model_free._drafters[1]._rows
    assert rows.keys() > without._drafters[1]._rows.keys()  # those of the first traces, which the buffer kept


def test_while_it_trains_it_says_step_of_steps(house, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, step = [], DraftTrainer._step

    def looked_at(self: DraftTrainer, *arguments: Any) -> None:
        step(self, *arguments)
        learner._heartbeat.beat(nothing)
        seen.append((told(house).work, told(house).kind, counted(house).learner.is_busy))

    monkeypatch.setattr(DraftTrainer, "_step", looked_at)
    house.send()
    learner = house.learner(learn="always", passes=2)
    learner.learn_once()
    works = [work for work, _, _ in seen]
    assert {(work.phase, kind, is_busy) for work, kind, is_busy in seen} == {("train", "learning", True)}
    assert [work.block for work in works] == sorted(work.block for work in works)
    for block in (1, 2):
        of_block = [work for work in works if work.block == block]
        # A step is told when it has ended, so the first look of a block comes before its first one.
        assert [work.step or 0 for work in of_block] == list(range(len(of_block)))
        assert {work.steps for work in of_block[1:]} == {len(of_block)}


def test_a_failed_round_is_counted_and_told_until_one_ends_well(house, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no\x1bgood " + "x" * 1000)

    house.send()
    learner = house.learner(learn="always", passes=1)
    with monkeypatch.context() as patched:
        patched.setattr(DraftTrainer, "fit", broken)
        with pytest.raises(RuntimeError):
            learner.learn_once()
    fault = told(house).fault
    assert fault.startswith("RuntimeError: no\N{REPLACEMENT CHARACTER}good")
    assert len(fault) == 300
    assert counted(house).learner.verdicts == {FAILED: 1}
    learner.learn_once()
    assert told(house).fault == ""
    assert counted(house).learner.verdicts[FAILED] == 1


def test_a_beat_outlives_the_next_ones_and_a_silent_learner_shows_within_seconds(house) -> None:
    house.learner().learn_once()
    assert house.board.members()[member(house)].is_alive
    house.clock.now += ALIVE_S + 0.001
    assert not house.board.members()[member(house)].is_alive
    assert ALIVE_S <= 15.0


class Beats(MemoryVersionBoard):
    """A board that notes beats, and answers as told."""

    def __init__(self, *answers: Exception | None) -> None:
        super().__init__()
        self._answers, self.statuses, self.came = list(answers), [], threading.Semaphore(0)

    def beat(self, _member: str, status: MemberStatus, ttl_s: float) -> None:
        self.statuses.append((msgspec.structs.replace(status), ttl_s))
        self.came.release()
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            raise answer


def test_a_worker_beats_without_a_learning_round_even_when_redis_was_away(house, monkeypatch) -> None:
    monkeypatch.setattr(module, "ALIVE_S", 0.03)
    board = Beats(None, BufferUnavailable("gone"), BufferUnavailable("gone"))
    heartbeat = Heartbeat(house.config, board, house.buffer)
    heartbeat.keep_beating()
    heartbeat.keep_beating()
    for _ in range(5):
        assert board.came.acquire(timeout=30.0)
    heartbeat.end()
    statuses = [status for status, _ in board.statuses]
    assert {status.kind for status in statuses} == {"idle"}
    assert {ttl_s for _, ttl_s in board.statuses} == {0.03}
    assert statuses[0].why == "no learning round has come to its end yet"
    # The last thing that it says is that it ends on purpose.
    assert [status.ended for status in statuses] == [False] * (len(statuses) - 1) + [True]
    assert not any(thread.name == "paceline-alive" for thread in threading.enumerate())


def test_a_learning_round_of_a_worker_starts_no_second_thread(house, monkeypatch) -> None:
    board = Beats()
    heartbeat = Heartbeat(house.config, board, house.buffer)
    heartbeat.keep_beating()
    assert board.came.acquire(timeout=30.0)
    before = threading.active_count()
    with heartbeat.at_work("learning"):
        assert threading.active_count() == before
    assert board.statuses[-1][0].kind == "learning"
    heartbeat.end()


@pytest.mark.guarantee("one-name-twice")
def test_two_learners_of_one_name_are_two_members_and_each_keeps_its_own_counters(house) -> None:
    first, second = (Heartbeat(house.config, house.board, house.buffer) for _ in range(2))
    first.tally.record_rest()
    for beating in (first, second, first, second):  # the second one looks again once the first has beaten
        house.clock.now += 1.0
        beating.beat(nothing)
    other = f"{member(house)}~2"
    assert list(house.board.members()) == [member(house), other]
    rests = {name: counters_of(one.said.counters).learner.rests for name, one in house.board.members().items()}
    assert rests == {member(house): 1, other: 0}
    assert house.board.members()[other].said.wanted == member(house)


@pytest.mark.guarantee("one-name-twice")
def test_a_learner_that_is_started_again_keeps_its_name_whether_the_one_before_said_that_it_ends_or_not(house) -> None:
    first, second, third = (Heartbeat(house.config, house.board, house.buffer) for _ in range(3))
    first.beat(nothing)
    house.clock.now += 2.0
    second.beat(kind("second"))  # the first was killed: nobody knows yet
    assert told(house).kind == "idle"
    house.clock.now += ALIVE_S
    second.beat(nothing)
    assert (list(house.board.members()), told(house).kind) == ([member(house)], "second")
    second.end()
    third.beat(kind("third"))
    assert (list(house.board.members()), told(house).kind) == ([member(house)], "third")


def test_a_learner_that_ends_before_it_has_a_name_says_so_under_another_one(house) -> None:
    first, second = (Heartbeat(house.config, house.board, house.buffer) for _ in range(2))
    first.beat(nothing)
    second.end()
    members = house.board.members()
    assert [one.said.ended for one in members.values()] == [False, True]
