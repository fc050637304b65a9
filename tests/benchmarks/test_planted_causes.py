"""What the bench of planted causes makes of its measurements, without a server: shares, controls and rows."""

import math
from pathlib import Path

import msgspec
import pytest
from made_histories import Conditions, changed, histories
from paceline.benchmarks.measure.measured_server import MeasuredServer
from paceline.benchmarks.planted_causes import as_fields, keep, kept, table
from paceline.benchmarks.planting.judging import Outcome, judged
from paceline.benchmarks.planting.measuring import Recording
from paceline.benchmarks.planting.plants import LEARNT, RANDOM, Learning, plants
from paceline.benchmarks.planting.traffic import Phase
from paceline.buffer.config import BufferConfig
from paceline.buffer.testing.memory_board import MemoryVersionBoard
from paceline.buffer.testing.memory_stream import MemoryTraceBuffer
from paceline.buffer.version import DraftVersion, VersionState
from paceline.policies.readings.causes.parts import Cause

OFF = Conditions(labels={"py": 1.0})
ON = changed(OFF, labels={"prose": 1.0})
SPEED = {False: 100.0, True: 100.0 * 1.5 / 2.4}


def recording(cause: Cause, seen: float = 1.0) -> Recording:
    """Two pairs of 25 s; clients saw the true effect to the power `seen`."""
    phases = [OFF, ON, OFF, ON]
    found = histories([(25.0, each) for each in phases])
    times = [Phase(25.0 * i, 25.0 * i + 25.0, (SPEED[each is ON] / 100.0) ** seen, 9) for i, each in enumerate(phases)]
    return Recording("planted", cause, times[::2], times[1::2], found)


def outcome(cause: Cause, seen: float = 1.0) -> Outcome:
    return judged(recording(cause, seen))


def test_the_planted_cause_has_the_whole_effect_and_the_control_none() -> None:
    found = outcome(Cause.LABELS)
    assert found.share == pytest.approx(1.0, abs=0.01)
    assert found.planted.named == [Cause.LABELS]
    assert (found.control.effect.mean, found.control.explained.first) == (pytest.approx(1.0), None)


def test_the_share_is_of_what_clients_saw() -> None:
    assert outcome(Cause.LABELS, seen=2.0).share == pytest.approx(0.5, abs=0.01)
    assert outcome(Cause.DRAFT).share == pytest.approx(0.0, abs=0.01)


def test_what_was_kept_is_explained_again_as_it_was(tmp_path: Path) -> None:
    first, second = recording(Cause.LABELS), msgspec.structs.replace(recording(Cause.DRAFT), name="Other: of 8")
    for each in (first, second):
        keep(each, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["other-of-8.json", "planted.json"]
    again = {each.name: judged(each) for each in kept(tmp_path / "new")}
    assert as_fields(again["planted"]) == as_fields(judged(first))
    assert again["Other: of 8"].recording.cause is Cause.DRAFT
    with pytest.raises(SystemExit, match="got no recording, expected what --keep wrote there"):
        kept(tmp_path)


def test_a_row_says_what_was_planted_what_was_named_and_how_much() -> None:
    row = list(table([outcome(Cause.LABELS)]))[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["planted", "x0.62 (0.62 .. 0.62)", "labels of the traffic"]
    assert cells[3].startswith("x0.62 (")
    assert cells[4:] == ["100 %", "nothing", "x1.00: nothing"]


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
