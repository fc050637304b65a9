"""Alarms of members, and those that only a reader can raise."""

import io
import math
from dataclasses import replace

import pytest
from fleet import NOW, learner, publish, replica, snapshot, version
from paceline.buffer.board.counters import Counters, TraceCounters
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.version import VersionState
from paceline.buffer.finding import Level
from paceline.dashboards.alarm_lines import READER, standing_and_recent
from paceline.dashboards.headline import wrong
from paceline.dashboards.member_rows import Presence, member_rows, members_table
from paceline.dashboards.snapshot import take
from rich.console import Console
from twins.memory_board import MemoryVersionBoard

ALARM = {"name": "hook_silent", "figures": {"rounds": 200}, "action": "tell"}


def active(seen):
    return [(line.member, line.name) for line in standing_and_recent(seen) if line.at is None]


def test_a_member_that_says_nothing_any_more_is_an_alarm_and_one_that_said_it_ends_is_none():
    seen = snapshot(
        replica_a=replica(),
        replica_b=replica(16.0),
        replica_c=replica(900.0, is_alive=False, ended=True),
        learner_l=learner(16.0, is_alive=False),
    )
    assert active(seen) == [("learner:l", "member_silent"), ("replica:b", "member_silent")]


def test_what_a_dead_member_reported_as_active_is_past():
    alive = snapshot(replica_a=replica(standing_alarms=[ALARM]))
    assert active(alive) == [("replica:a", "hook_silent")]
    dead = snapshot(replica_a=replica(60.0, is_alive=False, standing_alarms=[ALARM]))
    assert active(dead) == [("replica:a", "member_silent")]
    (past,) = [line for line in standing_and_recent(dead) if line.name == "hook_silent"]
    assert past.at == NOW - 60.0


@pytest.mark.guarantee("alarm-learner-left")
def test_a_learner_that_ended_by_itself_is_an_alarm_until_it_comes_back_or_is_forgotten():
    why = "ResponseError: OOM, exit code 1"
    seen = snapshot(learner_l=learner(900.0, is_alive=False, left=why))
    (line,) = standing_and_recent(seen)
    assert (line.member, line.name) == ("learner:l", "learner_left")
    assert line.detail == f"ended by itself 900 s ago: {why}; see its log, and start it again"
    assert wrong(seen, [line]).level is Level.WRONG  # with no server alive, too
    assert active(snapshot(learner_l=learner(1.0, left=why))) == [("learner:l", "learner_left")]
    assert active(snapshot(learner_l=learner(900.0, is_alive=False, left=why, ended=True))) == []
    (row,) = member_rows(seen, frozenset())
    assert (row.presence, row.doing) == (Presence.LEFT, f"at last: idle: {why}")


@pytest.mark.guarantee("alarm-learner-stalled")
def test_a_learner_that_starts_no_round_is_an_alarm_while_it_lives():
    stalled = "ResponseError: this user has no permissions"
    (line,) = standing_and_recent(snapshot(learner_l=learner(stalled=stalled)))
    assert (line.member, line.name) == ("learner:l", "learner_stalled")
    assert line.detail.startswith(f"no learning round is started: {stalled}; ")
    assert active(snapshot(learner_l=learner(stalled=""))) == []
    assert active(snapshot(learner_l=learner(60.0, is_alive=False, stalled=stalled))) == [
        ("learner:l", "member_silent")
    ]


def test_alarms_are_not_green_beside_servers_whose_learner_has_ended():
    there, gone = replica(), learner(900.0, is_alive=False, ended=True)
    found = wrong(snapshot(replica_a=there, learner_l=gone), [])
    assert found.level is Level.NOTE
    assert (
        found.sentence == "no alarm is active, and nothing is learnt: no learner is alive, the last was seen 15 min ago"
    )
    assert wrong(snapshot(replica_a=there, learner_l=learner()), []).level is Level.OK
    assert wrong(snapshot(replica_a=there), []).level is Level.OK  # a server that nobody means to teach


@pytest.mark.guarantee("alarm-name-taken")
def test_a_member_whose_name_another_one_has_is_an_alarm_that_says_where_that_is_and_what_to_set():
    taken = replica(wanted="replica:a", boot="b")
    named = {"replica:a": replica(server={"host": "gpu-1"}), "replica:a~2": taken}
    (line,) = standing_and_recent(replace(snapshot(), members=named))
    assert (line.member, line.name) == ("replica:a~2", "name_taken")
    assert line.detail == (
        "was started as replica:a, the name of another living member: give each its own PACELINE_REPLICA; "
        "the other one is on gpu-1"
    )
    gone = {"replica:a": replica(900.0, is_alive=False, ended=True), "replica:a~2": taken}
    assert active(replace(snapshot(), members=gone)) == []  # it has its name at its next beat
    twins = {"learner:l": learner(), "learner:l~2": learner(wanted="learner:l")}
    (line,) = standing_and_recent(replace(snapshot(), members=twins))
    assert line.detail.endswith("the name of another living member: give each its own PACELINE_LEARNER")
    odd = {"replica:b": replica(wanted="replica:c")}
    assert active(replace(snapshot(), members=odd)) == []


@pytest.mark.guarantee("alarm-drafts-apart")
@pytest.mark.parametrize(("age_s", "is_raised"), [(299.0, False), (300.0, True)])
def test_servers_that_do_not_draft_with_the_live_version_are_an_alarm_after_five_minutes(age_s, is_raised):
    made = MemoryVersionBoard(clock=lambda: NOW - age_s)
    publish(made, 0, 1)
    seen = snapshot(made.read(), replica_a=replica(), replica_b=replica(draft_version=0))
    assert active(seen) == ([(READER, "drafts_apart")] if is_raised else [])


def test_a_candidate_that_is_refused_again_and_again_does_not_hide_servers_that_draft_with_another():
    clock = [9000.0]
    made = MemoryVersionBoard(clock=lambda: clock[0])
    for number, state in ((0, VersionState.LIVE), (1, VersionState.LIVE), (2, VersionState.REFUSED)):
        clock[0] = NOW if number == 2 else 9000.0
        made.register(version(number), "learner", "trained")
        made.move(number, state, "learner", "judged")
    assert active(snapshot(made.read(), replica_a=replica(draft_version=0))) == [(READER, "drafts_apart")]


def test_a_row_per_member_says_what_runs_there_and_how_far_its_clock_is_off():
    who = {"host": "gpu-1", "paceline": "0.1.0", "sglang": "0.5.23"}
    seen = snapshot(
        replica_a=replica(server=who, at=NOW + 29.5),
        replica_b=replica(60.0, is_alive=False),
        learner_l=learner(900.0, is_alive=False, ended=True, why="40 traces"),
    )
    rows = {row.member: row for row in member_rows(seen, frozenset(["replica:b"]))}
    assert [row.presence for row in rows.values()] == [Presence.ENDED, Presence.ALIVE, Presence.SILENT]
    assert (rows["replica:a"].host, rows["replica:a"].paceline, rows["replica:a"].sglang) == tuple(who.values())
    assert (rows["replica:a"].clock_ahead_s, rows["replica:b"].paceline) == (30.0, "")
    console = Console(width=200, file=io.StringIO())
    console.print(members_table([*rows.values()]))
    shown = console.file.getvalue()
    assert "30 s ahead" in shown
    assert [word for word in ("silent", "ended", "15 min ago", "idle: 40 traces") if word not in shown] == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"kind": "idle", "why": "3 traces pending"}, "idle: 3 traces pending"),
        ({"kind": "idle", "why": "x", "work": {"phase": "idle", "phase_s": 3.0}}, "idle: x"),
        (
            {
                "kind": "learning",
                "work": {"phase": "train", "phase_s": 5, "block": 1, "blocks": 4, "step": 3, "steps": 9},
            },
            "learning: train for 5 s, block 1 of 4, step 3 of 9",
        ),
        ({"kind": "learning", "work": {"phase": "judge", "phase_s": 5.2}}, "learning: judge for 5 s"),
        ({"kind": "idle", "fault": "OSError: full", "why": "x"}, "idle: OSError: full"),
    ],
)
def test_a_learner_says_what_it_is_doing(status, said):
    (row,) = member_rows(snapshot(learner_l=learner(**status)), frozenset())
    assert row.doing == said


def test_a_snapshot_of_a_board_holds_its_members_and_what_they_count():
    made = MemoryVersionBoard(clock=lambda: NOW)
    counters = Counters(at=NOW, boot="b", traces=TraceCounters(captured=3))
    made.beat("replica:a", MemberStatus(draft_version=0, counters=counters), 10.0)
    seen = take(made, "default")
    assert (seen.at, [*seen.present()], seen.drafts_with("replica:a")) == (NOW, ["replica:a"], 0)
    assert [entry.traces.captured for entry in seen.counters()] == [3]


@pytest.mark.parametrize(("history_s", "entries"), [(math.inf, 3), (100.0, 2), (0.0, 0)])
def test_a_snapshot_holds_as_much_history_as_is_asked_for(history_s, entries):
    clock = [NOW - 200.0]
    made = MemoryVersionBoard(clock=lambda: clock[0])
    for at in (NOW - 200.0, NOW - 90.0, NOW):
        clock[0] = at
        made.beat("replica:a", MemberStatus(counters=Counters(at=at, boot="b")), 10.0)
    assert len([*take(made, "default", history_s).counters()]) == entries
