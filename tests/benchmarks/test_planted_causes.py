"""What the bench of planted causes makes of its measurements, without a server: shares, controls and rows."""

import math

import pytest
from made_histories import Conditions, changed, histories
from paceline.benchmarks.measure.measured_server import MeasuredServer
from paceline.benchmarks.planted_causes import as_fields, table
from paceline.benchmarks.planting.measuring import Outcome, compared
from paceline.benchmarks.planting.plants import LEARNT, RANDOM, Learning, Plant, plants
from paceline.benchmarks.planting.traffic import Phase, Traffic
from paceline.buffer.config import BufferConfig
from paceline.buffer.testing.memory_board import MemoryVersionBoard
from paceline.buffer.testing.memory_stream import MemoryTraceBuffer
from paceline.buffer.version import DraftVersion, VersionState
from paceline.policies.readings.causes.parts import Cause
from paceline.rig.ratio import ratio

OFF = Conditions(labels={"py": 1.0})
ON = changed(OFF, labels={"prose": 1.0})
SPEED = {False: 100.0, True: 100.0 * 1.5 / 2.4}


def outcome(cause: Cause, seen: float = 1.0) -> Outcome:
    """Two pairs of 25 s; clients saw the true effect to the power `seen`."""
    phases = [OFF, ON, OFF, ON]
    found = histories([(25.0, each) for each in phases])
    times = [Phase(25.0 * i, 25.0 * i + 25.0, SPEED[each is ON], 9) for i, each in enumerate(phases)]
    off, on = times[::2], times[1::2]
    effect = ratio([(phase.request_tokens_per_second / 100.0) ** seen for phase in on], [1.0, 1.0])
    traffic = Traffic([], "py")
    plant = Plant("planted", cause, traffic, traffic)
    return Outcome(plant, effect, compared(found, off, on), compared(found, off[:1], off[1:]))


def test_the_planted_cause_has_the_whole_effect_and_the_control_none() -> None:
    found = outcome(Cause.LABELS)
    assert found.share == pytest.approx(1.0, abs=0.01)
    assert [finding.cause for finding in found.explained.findings if not finding.effect.is_noise] == [Cause.LABELS]
    assert found.control.first is None


def test_the_share_is_of_what_clients_saw() -> None:
    assert outcome(Cause.LABELS, seen=2.0).share == pytest.approx(0.5, abs=0.01)
    assert outcome(Cause.DRAFT).share == pytest.approx(0.0, abs=0.01)


def test_a_row_says_what_was_planted_what_was_named_and_how_much() -> None:
    row = list(table([outcome(Cause.LABELS)]))[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["planted", "x0.62 (0.62 .. 0.62)", "labels of the traffic"]
    assert cells[3].startswith("x0.62 (")
    assert cells[4:] == ["100%", "nothing", "nothing"]


def test_json_has_the_figures_of_the_row() -> None:
    fields = as_fields(outcome(Cause.LABELS))
    assert fields["paired_effect"] == pytest.approx(SPEED[True] / 100.0)
    assert math.isfinite(fields["share"])
    assert (fields["named"], fields["control"]) == (["labels of the traffic"], [])


def test_dead_weights_come_by_a_rollback_and_go_by_a_promotion() -> None:
    board = MemoryVersionBoard()
    for _ in range(2):
        board.register(
            DraftVersion(board.next_number(), None, "t", "0", "eagle3", "file:///w", "0" * 64, "none", ("", "")),
            "b",
            "n",
        )
    board.move(RANDOM, VersionState.LIVE, "b", "first")

    class Follower:
        def replica_status(self) -> dict[str, object]:
            return {"draft_version": board.read().live}

    server = MeasuredServer("", MemoryTraceBuffer(BufferConfig()), board, Follower())
    found = {plant.name: plant for plant in plants(server, {"py": [], "c": []}, "py", "c", Learning(server))}
    death = found["silent death: random weights"]
    for _ in range(2):
        death.switch(False)
        assert board.read().live == LEARNT
        death.switch(True)
        assert (board.read().live, board.read().is_returned_to) == (RANDOM, True)
