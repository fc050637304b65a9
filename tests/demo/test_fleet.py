"""What several servers served together: sums where all have said, a row for each, and what is not accounted for."""

import json

import pytest
from paceline.demo.fleet.picture import fleet_figure
from paceline.demo.fleet.report import FleetRun, as_json, faults, fleet_run, replicas_table, together
from paceline.demo.lossless import Lossless
from paceline.demo.report import Run
from paceline.policies.acceptance import Tally
from paceline.rig.prompts import Prompt
from paceline.rig.reader import Swap, TraceAccount
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
    return fleet_run(parts, [served(0, 10), *a, *b], untraced=untraced, store="s3://drafts/demo")


def test_what_all_replicas_did_is_added_up_and_each_has_its_own() -> None:
    report = as_json(fleet())
    assert json.loads(json.dumps(report)) == report
    assert report["requests"] == {"sent": 40, "failed": 0, "untraced": 1}
    assert (report["traces"]["captured"], report["traces"]["dropped"]) == (40, {"gap": 2})
    assert [swap["at_s"] for swap in report["timeline"]["swaps"]] == [11.0, 12.0, 30.0]
    of_b = report["replicas"]["b"]
    assert (of_b["requests"], of_b["swaps"], of_b["accept_length"]["final"]) == (20, 2, 1.5)
    assert [swap["at_s"] for swap in of_b["timeline"]["swaps"]] == [11.0, 30.0]  # after the first request of all


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (fleet(), []),
        (
            fleet(("py-0", "py-1", "py-3")),
            ["3 answers have no trace, expected at most the 2 dropped: py-0, py-1, py-3"],
        ),
        (fleet(captured=20), ["traces are unaccounted for"]),
        (fleet(captured=None), ["traces are unaccounted for"]),
    ],
)
def test_answers_without_a_trace_are_a_fault_unless_they_were_counted_as_dropped(
    run: FleetRun, found: list[str]
) -> None:
    assert [fault[: len(expected)] for fault, expected in zip(faults(run), found, strict=True)] == found


def test_what_one_server_has_not_said_is_unknown_of_all() -> None:
    known, silent = TraceAccount(captured=3, delivered=3, dropped={"gap": 1}), TraceAccount(silent_s=9.0)
    both = together([known, silent])
    assert (both.captured, both.delivered, both.dropped, both.silent_s) == (None, None, None, 9.0)


def test_the_table_and_the_picture_have_a_row_per_replica() -> None:
    console = Console(width=100, record=True)
    console.print(replicas_table(fleet()))
    shown = console.export_text()
    assert "1.50 -> 1.50 -> 1.50 -> 1.50" in shown
    upper, lower = fleet_figure(as_json(fleet())).axes
    assert [len([line for line in axes.lines if line.get_gid() == "swap"]) for axes in (upper, lower)] == [1, 2]
    (line,) = [line for line in lower.lines if line.get_gid() == "length py"]
    assert [length for _, length in line.get_xydata().tolist()] == [1.5]
    assert upper.get_xlim() == lower.get_xlim()
