"""One window of real traffic, in four places: the page, the commands, /metrics and MLflow tell the same of it.

What is right is computed from the traces themselves, one request after the other.
"""

import json
import math
from dataclasses import dataclass

import pytest
from mlflow import MlflowClient
from paceline.buffer.board.audit import entry_time
from paceline.buffer.board.member_status import MemberStatus
from paceline.dashboards.served import WINDOW_S
from real_stack import LEARNER, MLFLOW_PAGES, REPLICA
from scraped import parsed, value
from waiting import until

pytestmark = [
    pytest.mark.window,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),  # MLflow's own query
]

#: Requests of one token, which have no verify round and are dropped for it.
TOO_SHORT = 3
STEPS = 3


@dataclass(frozen=True)
class Oracle:
    """What some requests were served, computed the long way."""

    requests: int
    rounds: int
    accept_length: float
    low: float
    high: float
    positions: list[float]


def oracle(traces) -> Oracle:
    """The mean, and its 95 % interval over requests drawn as wholes: Cochran 1977, eq. 6.13."""
    rounds = [len(trace.rounds) for trace in traces]
    accepted = [int(trace.rounds.accepted.sum()) for trace in traces]
    n, ratio = len(traces), sum(accepted) / sum(rounds)
    spread = sum((a - ratio * r) ** 2 for a, r in zip(accepted, rounds, strict=True)) * n / (n - 1)
    half = 1.959964 * math.sqrt(spread) / sum(rounds)
    reached = [
        [min(int(a), STEPS) for trace in traces for a in trace.rounds.accepted if a >= at] for at in range(STEPS)
    ]
    shares = [sum(a > at for a in some) / len(some) for at, some in enumerate(reached) if some]
    return Oracle(n, sum(rounds), 1 + ratio, max(1.0, 1 + ratio - half), 1 + ratio + half, shares)


@pytest.fixture(scope="module")
def ended(real):
    """All traffic has ended and counters stand still; the learner has told MLflow what it has to tell."""
    if real.board.read().live is None:
        pytest.fail("test_1_rollback.py puts drafts on the board")
    real.wave("more", 24)
    for number in range(TOO_SHORT):
        real.generate(f"short-{number}", real.texts[number][:200], 1)
    real.drained()
    real.learner.start()
    until(lambda: len(runs_of(real)) == len(real.board.read().rows), "the learner to name a run of every draft")
    until(lambda: all("rounds" in served for served in in_mlflow(real).values()), "MLflow's figures", 150.0)
    return in_mlflow(real)


def runs_of(real) -> dict[int, str]:
    """Draft -> its run in MLflow, as the learner says."""
    said = real.board.heartbeats().get(LEARNER, MemberStatus())
    return {int(number): run for number, run in said.mlflow.runs.items()} if said.mlflow else {}


def in_mlflow(real) -> dict[int, dict[str, float]]:
    """Draft -> what it served, as MLflow has it."""
    client = MlflowClient(real.env["PACELINE_MLFLOW_URI"])
    found = {number: client.get_run(run).data.metrics for number, run in runs_of(real).items()}
    begin = "served/"
    return {n: {k.removeprefix(begin): v for k, v in m.items() if k.startswith(begin)} for n, m in found.items()}


def traces_since(real, at):
    """Of the buffer, those that came after unix second `at`."""
    return [entry.trace for entry in real.buffer.replay(10_000) if entry_time(entry.entry_id) > at]


def assert_is(truth, requests, rounds, length, low, high):
    assert (requests, rounds) == (truth.requests, truth.rounds)
    assert (length, low, high) == pytest.approx((truth.accept_length, truth.low, truth.high), rel=1e-9)


def test_each_draft_has_the_same_figures_on_the_page_in_versions_in_metrics_and_in_mlflow(real, ended):
    lines = [json.loads(line) for line in real.command("versions", "--json").stdout.splitlines()]
    scraped, traces = parsed(real.metrics()), traces_since(real, 0.0)
    assert {trace.draft_version for trace in traces} == {line["number"] for line in lines} == {0, 1, 2}
    for line in lines:
        number = line["number"]
        truth = oracle([trace for trace in traces if trace.draft_version == number])
        assert_is(truth, line["requests"], line["rounds"], line["served_accept_length"], *line["served_interval"])
        on_page = real.panel("draft", draft=number)["served"]["py"]
        assert_is(truth, on_page["requests"], on_page["rounds"], on_page["accept_length"], *on_page["interval"])
        told = ended[number]
        ends = told["accept_length_low"], told["accept_length_high"]
        assert_is(truth, told["requests"], told["rounds"], told["accept_length"], *ends)
        rounds, accepted, *_ = (
            value(scraped, f"paceline_draft_verify_{name}_total", draft=str(number)) for name in ("rounds", "accepted")
        )
        assert (rounds, 1 + accepted / rounds) == (truth.rounds, pytest.approx(truth.accept_length))


def test_positions_are_accepted_alike_on_the_page_in_metrics_and_in_mlflow(real, ended):
    live = real.board.read().live
    truth = oracle([trace for trace in traces_since(real, 0.0) if trace.draft_version == live])
    panel, scraped = real.panel("positions"), parsed(real.metrics())
    assert panel["draft"] == live
    assert [row["rate"] for row in panel["rows"]] == pytest.approx(truth.positions)
    counts = [
        [
            value(scraped, f"paceline_drafts_{name}_total", draft=str(live), position=str(at))
            for name in ("stood", "tried")
        ]
        for at in range(1, STEPS + 1)
    ]
    assert [stood / tried for stood, tried in counts] == pytest.approx(truth.positions)
    client = MlflowClient(real.env["PACELINE_MLFLOW_URI"])
    history = client.get_metric_history(runs_of(real)[live], "served/position_acceptance")
    assert [point.value for point in sorted(history, key=lambda point: point.step)] == pytest.approx(truth.positions)


def test_all_drafts_together_are_the_same_on_the_page_in_status_and_in_metrics(real, ended):
    status = json.loads(real.command("status", "--json").stdout)
    truth = oracle(traces_since(real, status["at"] - WINDOW_S))
    reading = next(each for each in status["readings"] if each["name"] == "accept_length")
    assert (reading["value"], reading["low"], reading["high"], reading["count"]) == pytest.approx(
        (truth.accept_length, truth.low, truth.high, truth.requests)
    )
    words = (
        f"accept length {truth.accept_length:.2f} ({truth.low:.2f} .. {truth.high:.2f}) over {truth.requests} requests"
    )
    assert words in sentence(status["answers"], "faster")
    assert words in sentence(real.panel("headline")["findings"], "faster")
    everything, scraped = oracle(traces_since(real, 0.0)), parsed(real.metrics())
    rounds, accepted = (value(scraped, f"paceline_verify_{name}_total") for name in ("rounds", "accepted"))
    assert (rounds, 1 + accepted / rounds) == (everything.rounds, pytest.approx(everything.accept_length))
    chart = real.panel("accept", span=900)
    stretches = [(length, count) for length, count in zip(chart["pooled"], chart["rounds"], strict=True) if count]
    shown = oracle(traces_since(real, chart["from"]))
    assert sum(count for _, count in stretches) == shown.rounds
    assert sum(length * count for length, count in stretches) / shown.rounds == pytest.approx(shown.accept_length)


def test_traces_are_counted_alike_on_the_page_in_status_and_in_metrics(real, ended):
    delivered, scraped = len(traces_since(real, 0.0)), parsed(real.metrics())
    captured = delivered + TOO_SHORT
    status = json.loads(real.command("status", "--json").stdout)
    words = f"{captured} captured = {delivered} delivered + {TOO_SHORT} dropped + 0 open + 0 queued: nothing lost"
    assert words in sentence(status["answers"], "loop")
    assert words in sentence(real.panel("headline")["findings"], "loop")
    assert value(scraped, "paceline_traces_captured_total", member=REPLICA) == captured
    assert value(scraped, "paceline_traces_total", member=REPLICA, fate="delivered") == delivered
    assert value(scraped, "paceline_traces_total", fate="dropped", reason="no_rounds") == TOO_SHORT
    assert value(scraped, "paceline_traces_total", fate="dropped") == TOO_SHORT
    assert value(scraped, "paceline_buffer_delivered_total", member=LEARNER) == delivered
    now = {each["name"]: each["value"] for each in status["readings"]}
    lately = len(traces_since(real, status["at"] - WINDOW_S))
    assert (now["traces_captured"], now["traces_dropped"]) == (lately + TOO_SHORT, TOO_SHORT)


def test_the_card_of_a_draft_links_to_its_run_in_mlflow(real, ended, tab):
    run = runs_of(real)[1]
    client = MlflowClient(real.env["PACELINE_MLFLOW_URI"])
    experiment = client.get_run(run).info.experiment_id
    assert client.get_run(run).info.run_name == "draft 1"
    page = tab(f"{real.page_url}?draft=1")
    link = page.wait_for_selector("#draft .commands a")
    expected = f"{MLFLOW_PAGES}/#/experiments/{experiment}/runs/{run}?workflowType=machine_learning"
    assert link.get_attribute("href") == expected


def sentence(findings, topic):
    return next(finding["sentence"] for finding in findings if finding["topic"] == topic)
