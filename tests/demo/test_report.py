"""The numbers of a run: pooled where they must be, and in the shape that --json promises."""

import io
import json

import pytest
from paceline.buffer.board.version import VersionState
from paceline.dashboards.tables import VersionLine
from paceline.demo.lossless import Lossless, spread
from paceline.demo.report import Run, accept_lengths, as_json, faults, print_closing, served_by_version
from paceline.demo.timeline import timeline
from paceline.policies.acceptance import Tally
from paceline.policies.readings.ratio_sums import RatioSums
from paceline.rig.prompts import Prompt
from paceline.rig.reader import Swap, TraceAccount
from paceline.rig.runs import machine
from paceline.rig.traffic import Arrival, Served
from rich.console import Console


def served(number: int, domain: str, accepted: int, rounds: int, **changes: object) -> Served:
    fields = {
        "prompt": Prompt(f"{domain}-{number}", domain, (1, 2)),
        "sent_at": float(number),
        "arrivals": (Arrival(number + 1.0, 5),),
        "output_ids": (1, 2, 3, 4, 5),
        "finish": "length",
        "tally": Tally(accepted, rounds),
        "retractions": 0,
    }
    return Served(**(fields | changes))


def results() -> list[Served]:
    """Twenty of py that improve from 1.0 to 2.0, then twenty of prose from 1.5 to 3.0, in shuffled order."""
    py = [served(number, "py", 0 if number < 10 else 10, 10) for number in range(20)]
    prose = [served(number, "prose", 5 if number < 30 else 20, 10) for number in range(20, 40)]
    return [*prose, *py]


def run(**changes: object) -> Run:
    fields = {
        "results": results(),
        "max_tokens": 5,
        "versions": [
            VersionLine(
                number=1,
                state=VersionState.LIVE,
                reason="better by 0.4",
                lead="better by 0.4",
                judged_accept_length=1.5,
                served_accept_length=1.4,
                rounds=800,
                predicted_accept_length=1.6,
            )
        ],
        "traces": TraceAccount(captured=100, delivered=97, dropped={"tap_full": 3}, learned=80, held_out=9, pending=8),
        "replay": (799, 800),
        "lossless": Lossless(40, ("py-3",)),
        "swapped": [Swap(1, 2.0, 4, 12.0)],
        "swaps": 3,
        "stalls_ms": [20.0, 40.0, 30.0],
        "quiet_ms": [10.0, 12.0, 35.0],
        "seconds": {"target": 150.04, "traffic": 60.0},
        "mlflow_uri": "sqlite:////tmp/[x]/mlflow.db",
    }
    return Run(**(fields | changes))


def test_accept_length_is_pooled_at_four_points_in_the_order_of_sending() -> None:
    assert accept_lengths(results()) == {"first": 1.0, "before_shift": 2.0, "after_shift": 1.5, "final": 3.0}


def test_one_domain_has_no_shift() -> None:
    one = [served(number, "own", number, 10) for number in range(10)]
    assert accept_lengths(one) == {"first": 1.35, "before_shift": None, "after_shift": None, "final": 1.55}
    assert accept_lengths([])["final"] == 1.0


def test_the_json_has_every_documented_field() -> None:
    report = as_json(run())
    assert json.loads(json.dumps(report)) == report
    assert report["by_version"] == [
        {
            "number": 1,
            "state": "live",
            "reason": "better by 0.4",
            "judged_accept_length": 1.5,
            "predicted_accept_length": 1.6,
            "served_accept_length": 1.4,
            "served_interval": None,
            "prediction_error": pytest.approx(-0.2),
            "error_half_width": None,
            "requests": 0,
            "rounds": 800,
        }
    ]
    assert report["traces"] == {
        "captured": 100,
        "delivered": 97,
        "dropped": {"tap_full": 3},
        "learned": 80,
        "held_out": 9,
        "rested": 0,
        "pending": 8,
    }
    assert report["replay"] == {"rounds": 800, "equal": 799}
    assert report["lossless"] == {"checked": 40, "identical": 39}
    stalls = {"p50": 30.0, "max": 40.0}
    quiet = {"p50": 12.0, "max": 35.0}
    assert report["swaps"] == {"count": 3, "stall_ms": stalls, "quiet_ms": quiet, "aborted": 0, "retracted": 0}
    assert report["timeline"] == timeline(results(), [Swap(1, 2.0, 4, 12.0)], run().versions)
    assert report["timeline"]["swaps"] == [{"number": 1, "at_s": 12.0}]
    assert report["throughput_tok_s"] == 5.0  # 200 tokens in 40 s
    assert report["seconds"] == {"target": 150.0, "traffic": 60.0}
    assert report["mlflow_uri"] == "sqlite:////tmp/[x]/mlflow.db"
    assert report["machine"] == machine()


def test_aborted_failed_and_retracted_requests_are_counted() -> None:
    bad = [
        served(0, "py", 0, 1, finish="abort"),
        served(1, "py", 0, 0, failure="ConnectError: gone", finish=""),
        served(2, "py", 0, 1, retractions=2),
    ]
    swaps = as_json(run(results=bad, stalls_ms=[], quiet_ms=[]))["swaps"]
    unknown = {"p50": None, "max": None}
    assert swaps == {"count": 3, "stall_ms": unknown, "quiet_ms": unknown, "aborted": 2, "retracted": 2}


def test_served_acceptance_belongs_to_the_version_on_the_trace(make_trace) -> None:
    traces = [make_trace(seed, draft_version=seed % 2, trace_id=str(seed)) for seed in range(6)]
    found = served_by_version(traces)
    assert {number: (sums.requests, sums.accepted, sums.rounds) for number, sums in found.items()} == {
        number: (
            3,
            sum(int(accepted) for trace in traces[number::2] for accepted in trace.rounds.accepted),
            sum(len(trace.rounds) for trace in traces[number::2]),
        )
        for number in (0, 1)
    }


def test_traces_of_one_request_are_drawn_together(make_trace) -> None:
    traces = [make_trace(seed, draft_version=1, trace_id=str(seed), request_id="r") for seed in range(3)]
    (sums,) = served_by_version(traces).values()
    assert sums == RatioSums.of(sums.rounds, sums.accepted)
    assert sums.rounds == sum(len(trace.rounds) for trace in traces)


@pytest.mark.parametrize(("captured", "verdict"), [(100, "all accounted for"), (101, "NOT ALL ACCOUNTED FOR")])
def test_the_closing_table_shows_the_results(captured: int, verdict: str) -> None:
    console = Console(file=io.StringIO(), width=140)
    traces = TraceAccount(captured=captured, delivered=97, dropped={"tap_full": 3}, learned=80, held_out=9, pending=8)
    print_closing(console, run(traces=traces))
    text = console.file.getvalue()
    assert "1.00 (first) -> 2.00 (before shift) -> 1.50 (after shift) -> 3.00 (final)" in text
    assert f"3 dropped: {verdict}" in text
    assert "39 of 40 requests identical" in text
    assert "around swaps, p50 30 ms, around swaps, max 40 ms" in text
    assert "half-way between them, p50 12 ms, half-way between them, max 35 ms" in text
    assert "mlflow ui --backend-store-uri sqlite:////tmp/[x]/mlflow.db" in text


def test_checked_requests_are_spread_over_the_whole_run() -> None:
    ordered = sorted(results(), key=lambda result: result.sent_at)
    assert [result.sent_at for result in spread(results(), 4)] == [0.0, 13.0, 26.0, 39.0]
    assert spread(results(), 40) == spread(results(), 99) == ordered
    assert spread(results(), 1) == ordered[:1]


def test_a_run_without_errors_has_no_faults() -> None:
    assert faults(run(lossless=Lossless(40, ()))) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"failure": "ConnectError: gone", "output_ids": (), "finish": ""}, "ConnectError: gone"),
        ({"output_ids": (1, 2)}, "got 2 tokens, expected 5"),
    ],
)
def test_a_request_without_its_whole_answer_is_a_fault(changes: dict, says: str) -> None:
    bad = [served(0, "py", 0, 1), served(1, "py", 0, 1, **changes), served(2, "py", 0, 1, **changes)]
    found = faults(run(results=bad, lossless=Lossless(3, ())))
    assert found == [f"2 of 3 requests failed; the first, py-1: {says}"]


def test_an_answer_that_the_model_ended_is_whole() -> None:
    ended = served(0, "py", 0, 1, output_ids=(1, 2), finish="stop")
    assert faults(run(results=[ended], lossless=Lossless(1, ()))) == []


def test_other_tokens_and_lost_traces_are_faults() -> None:
    lost = TraceAccount(captured=100, delivered=97, dropped={"tap_full": 3}, learned=80, held_out=9, pending=7)
    different, account = faults(run(lossless=Lossless(40, ("a", "b", "c", "d")), traces=lost))
    assert different == "4 of 40 requests differ from plain decoding: a, b, c"
    assert account.startswith("traces are unaccounted for: ")
    assert "pending=7" in account
