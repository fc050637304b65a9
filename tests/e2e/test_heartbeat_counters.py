"""The counters in the real server's heartbeat, against SGLang's answers and the traces that were delivered."""

import time
from bisect import bisect_right
from collections import Counter
from importlib.metadata import version

import pytest
from paceline.buffer.board.counters import CONTEXT_STARTS, OUTPUT_STARTS, counters_of
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.redis_members import speculators
from paceline.buffer.board.speculation import Speculation
from paceline.buffer.code_version import code_version
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_client import connect
from paceline.dashboards.exporter.collector import BoardCollector
from scraped import scrape, value
from waiting import until

pytestmark = pytest.mark.e2e

TOKENS = 24
STARTS = {"output": OUTPUT_STARTS, "context": CONTEXT_STARTS}
#: The request whose answer is long, and its tokens.
LONG = 4
LONG_TOKENS = 600


def counters(rig):
    return counters_of(rig.status().counters)


def jobs_of(rig):
    """Requests of two labels and three kinds of sampling, some ended by a stop token, some not captured."""
    kinds = [{}, {"temperature": 0.8}, {"frequency_penalty": 0.5}, {}]
    params = [{"paceline_label": "py"}, {"paceline_label": "chat/de"}, {}, {"paceline_opt_out": True}]
    return [
        {
            "rid": f"counted-{i}",
            "text": rig.texts[i][400 : 520 + 10 * i],
            "max_tokens": LONG_TOKENS if i == LONG else TOKENS if i % 3 else 1 + i,
            "custom_params": params[i // 2 % 4],
            **kinds[i % 4],
        }
        for i in range(16)
    ]


@pytest.fixture(scope="module")
def wave(rig):
    """(counters before, counters after, jobs, replies) of one wave of requests."""
    rig.drained()
    until(lambda: counters(rig) is not None and counters(rig).scheduler is not None, "the first counters")
    last_at = time.time() + 2.5  # the scheduler reports to the courier every second, the courier to the board
    until(lambda: counters(rig).at > last_at, "counters of what was served so far")
    before, jobs = counters(rig), jobs_of(rig)
    replies = rig.generate_all(jobs)
    rig.drained()
    ended = before.scheduler.requests_ended + len(jobs)
    until(lambda: counters(rig).scheduler.requests_ended >= ended, "the scheduler to report the wave")
    return before, counters(rig), jobs, replies


def grown(before, after, rows, value):
    """What `value` of every row of `rows` has grown by, by the row's key."""
    key = lambda row: (getattr(row, "label", None), getattr(row, "kind", None))  # noqa: E731 - a name for one line
    found = Counter()
    for row in rows(after):
        found[key(row)] += value(row)
    for row in rows(before):
        found[key(row)] -= value(row)
    return +found


def kind_of(job):
    if "frequency_penalty" in job:
        return "edited"
    return "sampled" if "temperature" in job else "greedy"


def test_served_cells_add_up_to_the_rounds_of_the_traces_that_were_delivered(rig, wave):
    before, after, jobs, _ = wave
    rounds, accepted, requests = Counter(), Counter(), Counter()
    for job in jobs:
        traces = rig.traces_of(job["rid"])
        cell = job["custom_params"].get("paceline_label", ""), kind_of(job)
        rounds[cell] += sum(len(trace.rounds) for trace in traces)
        accepted[cell] += sum(int(trace.rounds.accepted.sum()) for trace in traces)
        requests[cell] += bool(traces)
    assert len(+rounds) >= 6
    cells = lambda found: found.served.cells  # noqa: E731 - a name for one line
    assert grown(before, after, cells, lambda cell: cell.rounds) == +rounds
    assert grown(before, after, cells, lambda cell: cell.accepted) == +accepted
    assert grown(before, after, cells, lambda cell: cell.ended[0]) == +requests
    assert grown(before, after, cells, lambda cell: cell.ended[1]) == +rounds
    assert sum(after.served.request_lengths) - sum(before.served.request_lengths) == requests.total()
    assert after.traces.delivered - before.traces.delivered == requests.total()


def test_every_round_tries_the_first_position_and_every_accepted_draft_stands_in_one(rig, wave):
    before, after, *_ = wave
    positions = lambda found: found.served.positions  # noqa: E731 - a name for one line
    cells = lambda found: found.served.cells  # noqa: E731 - a name for one line
    total = lambda value, rows: grown(before, after, rows, value).total()  # noqa: E731 - a name for one line
    assert total(lambda row: row.tried[0], positions) == total(lambda cell: cell.rounds, cells) > 0
    assert total(lambda row: sum(row.stood), positions) == total(lambda cell: cell.accepted, cells)
    for i in range(1, rig.steps):  # of a chain of one length, what stood is tried at the next position
        assert total(lambda row, i=i: row.tried[i], positions) == total(lambda row, i=i: row.stood[i - 1], positions)


def test_rounds_are_in_the_buckets_where_those_of_the_traces_begin(rig, wave):
    before, after, jobs, replies = wave
    found = {name: [[0, 0] for _ in starts] for name, starts in STARTS.items()}
    for job, reply in zip(jobs, replies, strict=True):
        for trace in rig.traces_of(job["rid"]):
            for start, accepted in zip(trace.rounds.starts, trace.rounds.accepted, strict=True):
                context = trace.offset + int(start) + 1
                begins = {"output": context - reply["meta_info"]["prompt_tokens"], "context": context}
                for name, length in begins.items():
                    row = found[name][bisect_right(STARTS[name], length) - 1]
                    row[0] += 1
                    row[1] += int(accepted)
    assert [rounds > 0 for rounds, _ in found["output"]] == [True, True, True, False, False]
    assert [rounds > 0 for rounds, _ in found["context"]] == [True, True, False, False]
    positions = lambda found: found.served.positions  # noqa: E731 - a name for one line
    for name, buckets in found.items():
        for place, (rounds, accepted) in enumerate(buckets):
            at = lambda kind, row, n=name, i=place: sum(getattr(row, f"{n}_{kind}")[i : i + 1])  # noqa: E731 - as above
            assert grown(before, after, positions, lambda row, at=at: at("rounds", row)).total() == rounds
            assert grown(before, after, positions, lambda row, at=at: at("accepted", row)).total() == accepted


def test_the_scheduler_counts_what_sglang_answered_captured_or_not(wave):
    before, after, jobs, replies = wave
    metas = [reply["meta_info"] for reply in replies]
    now, then = after.scheduler, before.scheduler
    assert now.requests_ended - then.requests_ended == len(jobs)
    assert now.rounds - then.rounds == sum(meta.get("spec_verify_ct", 0) for meta in metas)
    assert now.accepted - then.accepted == sum(meta.get("spec_num_correct_drafts", 0) for meta in metas)


def test_steps_commit_the_tokens_that_were_served_but_for_the_first_of_each_request(rig, wave):
    before, after, _, replies = wave
    metas = [reply["meta_info"] for reply in replies]
    assert not any(meta["num_retractions"] for meta in metas)
    steps = lambda found: found.scheduler.steps  # noqa: E731 - a name for one line
    tokens = grown(before, after, steps, lambda cell: cell.tokens).total()
    assert tokens == sum(meta["completion_tokens"] - 1 for meta in metas)
    requests = grown(before, after, steps, lambda cell: cell.requests).total()
    assert requests == sum(meta.get("spec_verify_ct", 0) for meta in metas)
    cells = after.scheduler.steps
    assert {cell.draft_steps for cell in cells} == {rig.steps}
    assert {cell.bucket for cell in cells} <= {1, 2, 4, 8}
    assert all(sum(cell.durations) == cell.steps for cell in cells)


def test_the_schedulers_time_is_all_accounted_for(rig, wave):
    before, after, *_ = wave
    now, then = after.scheduler.seconds, before.scheduler.seconds
    spent = {kind: now[kind] - then.get(kind, 0.0) for kind in now}
    assert all(took_s >= 0.0 for took_s in spent.values())
    assert spent["decode"] > 0.0
    assert spent["prefill"] > 0.0
    assert sum(cell.seconds for cell in after.scheduler.steps) == pytest.approx(now["decode"], abs=0.01)
    uptime_s = after.at - rig.status().server.started_at
    assert 0.5 * uptime_s < sum(now.values()) <= uptime_s


def test_a_heartbeat_says_who_runs(rig, wave):
    _, after, *_ = wave
    server = rig.status().server
    assert after.boot == server.boot
    assert (server.paceline, server.sglang) == (code_version(), version("sglang"))
    assert server.speculation == Speculation(
        algorithm="EAGLE3", num_steps=rig.steps, eagle_topk=1, num_draft_tokens=rig.steps + 1, adaptive=False
    )


def test_the_exporter_tells_what_the_real_server_counts(rig, wave):
    _, counted, *_ = wave
    with connect(rig.redis_url) as client:
        boards = {name: RedisVersionBoard(client, BufferConfig(speculator=name)) for name in speculators(client)}
        found = scrape(BoardCollector(lambda: [*boards], boards.__getitem__))
    of = {"member": "replica:e2e-0"}
    assert value(found, "paceline_up") == value(found, "paceline_capture_on", **of) == 1.0
    cells, steps = counted.served.cells, counted.scheduler.steps
    assert value(found, "paceline_verify_rounds_total", **of) == sum(cell.rounds for cell in cells)
    assert value(found, "paceline_label_verify_rounds_total", **of, label="chat/de") == sum(
        cell.rounds for cell in cells if cell.label == "chat/de"
    )
    assert value(found, "paceline_committed_tokens_total", **of) == sum(cell.tokens for cell in steps)
    assert value(found, "paceline_decode_step_seconds_count", **of) == sum(cell.steps for cell in steps)
    assert value(found, "paceline_traces_captured_total", **of) == counted.traces.captured
    assert value(found, "paceline_engine_requests_total", **of) == counted.scheduler.requests_ended
