"""What several servers served together: sums where all have said, a row for each, and what is not accounted for."""

import json
from pathlib import Path
from typing import Any

import pytest
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.redis_client import connect
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.demo.fleet.picture import fleet_figure
from paceline.demo.fleet.report import FleetRun, as_json, faults, fleet_run, print_closing, replicas_table, together
from paceline.demo.fleet.services import Fleet
from paceline.demo.fleet.watch import FailOver, Watch
from paceline.demo.lossless import Lossless
from paceline.demo.report import Run
from paceline.demo.stages import Running
from paceline.policies.acceptance import Tally
from paceline.rig.prompts import Prompt
from paceline.rig.reader import SpeculatorReader, Swap, TraceAccount
from paceline.rig.sentinels import redis_behind_sentinels
from paceline.rig.traffic import Arrival, Served
from rich.console import Console


def served(number: int, accepted: int, **changes: object) -> Served:
    """Request `number`, of code up to 20 and of prose after that, in 10 rounds."""
    domain = "py" if number < 20 else "prose"
    fields = {
        "prompt": Prompt(f"{domain}-{number}", domain, (1, 2)),
        "sent_at": float(number),
        "arrivals": (Arrival(number + 1.0, 5),),
        "output_ids": (1, 2, 3, 4, 5),
        "finish": "length",
        "tally": Tally(accepted, 10),
        "retractions": 0,
    }
    return Served(**(fields | changes))


def part(results: list[Served], swapped: list[Swap], **traces: object) -> Run:
    """One replica's; all see the same 38 traces in the buffer."""
    return Run(
        results=results,
        max_tokens=5,
        versions=[],
        traces=TraceAccount(**({"learned": 30, "pending": 8} | traces)),
        replay=(1, 1),
        lossless=Lossless(0, ()),
        swapped=swapped,
        swaps=len(swapped),
        stalls_ms=[10.0 for _ in swapped],
        quiet_ms=[],
        seconds={},
        mlflow_uri="sqlite:///x",
    )


def fleet(untraced: tuple[str, ...] = ("py-0",), **traces: object) -> FleetRun:
    """Two replicas that served every other request: `a` accepts 10 of 10 rounds, `b` 5, and dropped two traces."""
    a = [served(number, 10) for number in range(2, 40, 2)]
    b = [served(number, 5) for number in range(1, 40, 2)]
    counts = {"captured": 19, "delivered": 17, "dropped": {"gap": 2}} | traces
    parts = {
        "a": part(a, [Swap(1, 2.0, 1, 12.0)], captured=21, delivered=21, dropped={}),
        "b": part(b, [Swap(1, 2.0, 1, 11.0), Swap(2, 2.0, 1, 30.0)], **counts),
    }
    fail_over = FailOver(after_requests=30, killed_at=31.5, back_at=34.5)
    whole = [served(0, 10), *a, *b]
    return fleet_run(
        parts,
        whole,
        untraced=untraced,
        store="s3://drafts/demo",
        fail_over=fail_over,
        releases={"a": "0.5.23", "b": ""},
    )


def test_what_all_replicas_did_is_added_up_and_each_has_its_own() -> None:
    report = as_json(fleet())
    assert json.loads(json.dumps(report)) == report
    assert report["requests"] == {"sent": 40, "failed": 0, "untraced": 1}
    assert (report["traces"]["captured"], report["traces"]["dropped"]) == (40, {"gap": 2})
    assert [swap["at_s"] for swap in report["timeline"]["swaps"]] == [11.0, 12.0, 30.0]
    of_b = report["replicas"]["b"]
    assert [report["replicas"][name]["sglang"] for name in "ab"] == ["0.5.23", None]
    assert (of_b["requests"], of_b["swaps"], of_b["accept_length"]["final"]) == (20, 2, 1.5)
    assert [swap["at_s"] for swap in of_b["timeline"]["swaps"]] == [11.0, 30.0]  # after the first request of all


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (fleet(), []),
        (
            fleet(("py-0", "py-1", "py-3")),
            ["3 answers have no trace, expected at most the 2 dropped or lost: py-0, py-1, py-3"],
        ),
        (fleet(("py-0", "py-1", "py-3"), captured=21, delivered=19), []),
        (fleet(captured=22, delivered=20), ["3 traces were lost with Redis' primary, expected one of each server"]),
        (fleet(captured=16, delivered=14), ["traces are unaccounted for"]),
        (fleet(captured=20), ["traces are unaccounted for"]),
        (fleet(captured=None), ["traces are unaccounted for"]),
    ],
)
def test_answers_without_a_trace_are_a_fault_unless_they_were_counted_as_dropped(
    run: FleetRun, found: list[str]
) -> None:
    assert [fault[: len(expected)] for fault, expected in zip(faults(run), found, strict=True)] == found


def test_a_fail_over_says_what_it_cost() -> None:
    run = fleet(captured=20, delivered=18)
    assert as_json(run)["fail_over"] == {
        "after_requests": 30,
        "away_s": 3.0,
        "answered_meanwhile": 3,  # those that ended at 32, 33 and 34
        "longest_wait_ms": None,
        "traces_lost": 1,
    }
    console = Console(width=200, record=True)
    print_closing(console, run)
    assert "killed after 30 requests, and its replica answered 3.0 s later" in console.export_text()


def test_the_primary_dies_once_and_what_was_known_is_shown_until_its_replica_answers(
    tmp_path: Path, make_trace: Any
) -> None:
    config = BufferConfig(speculator="watched")
    with redis_behind_sentinels(tmp_path) as behind, connect(behind.url) as client:
        buffer = RedisTraceBuffer(client, config)
        buffer.append([make_trace(0)])
        assert client.wait(1, 10_000) == 1
        reader = SpeculatorReader(buffer, RedisVersionBoard(client, config), "a", "learner")
        watch = Watch(Fleet({"a": Running((), reader, buffer)}, "", "", behind), Console(quiet=True), 8)
        done = [served(number, 10) for number in range(8)]
        assert (watch.look(done[:5]), behind.primary.is_running()) == (1, True)
        assert (watch.look(done[:6]), behind.primary.is_running()) == (1, False)
        seen = watch.fail_over(done)
        assert (seen.after_requests, watch.look(done)) == (6, 1)
        assert seen.killed_at < seen.back_at
        behind.replica.kill()
        with pytest.raises(BufferUnavailable):
            watch.look(done)


def test_what_one_server_has_not_said_is_unknown_of_all() -> None:
    known, silent = TraceAccount(captured=3, delivered=3, dropped={"gap": 1}), TraceAccount(silent_s=9.0)
    both = together([known, silent])
    assert (both.captured, both.delivered, both.dropped, both.silent_s) == (None, None, None, 9.0)


def test_the_table_and_the_picture_have_a_row_per_replica() -> None:
    console = Console(width=100, record=True)
    console.print(replicas_table(fleet()))
    shown = console.export_text()
    assert "1.50 -> 1.50 -> 1.50 -> 1.50" in shown
    assert ["0.5.23" in shown, "unknown" in shown] == [True, True]
    upper, lower = fleet_figure(as_json(fleet())).axes
    assert [len([line for line in axes.lines if line.get_gid() == "swap"]) for axes in (upper, lower)] == [1, 2]
    (line,) = [line for line in lower.lines if line.get_gid() == "length py"]
    assert [length for _, length in line.get_xydata().tolist()] == [1.5]
    assert upper.get_xlim() == lower.get_xlim()
