"""The table is plain arithmetic, and what a tiny run through real processes counts is what was streamed."""

import sys

import numpy as np
import pytest
from paceline.benchmarks import width
from paceline.benchmarks.wide import fitting, ingest
from paceline.benchmarks.wide.deployed import ProcessorTime
from paceline.benchmarks.wide.hand_over import by_width
from paceline.benchmarks.wide.staged import staged
from paceline.benchmarks.wide.stations import Claimed, Journey, Station, since, travel
from paceline.benchmarks.wide.traffic import Load, Spent
from paceline.buffer.board.member_status import TracesSaid
from paceline.buffer.config import BufferConfig
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.serving.wire.counts import DropReason

PROMPT, REQUESTS = 30, 3
TINY = Load(
    hidden=16, prompt_tokens=PROMPT, requests=REQUESTS, at_once=2, output_tokens=12, draft_steps=2, chunk_tokens=8
)


def test_a_station_is_divided_by_tokens_and_saturates_at_one_core():
    assert Station("hook", 6000, 0.5).line(200) == "| hook | 30 | 2500.00 | 400 |"
    assert Station("idle", 0, 0.0).line(200) == "| idle | 0 | 0.00 | not measurable |"


def test_what_is_spent_is_a_difference_clock_by_clock():
    assert ProcessorTime(5.0, 7.0, 9.0).since(ProcessorTime(1.0, 2.0, 3.0)) == ProcessorTime(4.0, 5.0, 6.0)


def test_each_station_has_its_own_clock_and_its_own_bytes():
    spent = Spent(hooks_s=1.0, hand_over_s=2.0, captured_bytes=10)
    claimed = Claimed(
        tokens=4, outcomes={"learned": 3, "no_features": 0}, array_bytes=40, payload_bytes=30, cpu_s=7.0, encode_s=8.0
    )
    counts = {"captured": 9, "delivered": 5, "dropped": {"queue_full": 3, "gap": 1}}
    cpu, claims = ProcessorTime(3.0, 4.0, 5.0), ProcessorTime(0.0, 0.0, 6.0)
    made = Journey(
        spent=spent,
        line_bytes=20,
        cpu=cpu,
        claim_cpu=claims,
        counts=counts,
        claimed=claimed,
        courier_peak_bytes=8_000_000,
    )
    assert [(each.size_bytes, each.cpu_s) for each in made.stations()] == [
        (10, 1.0), (20, 2.0), (20, 3.0), (30, 4.0), (30, 8.0), (30, 5.0), (30, 6.0), (40, 7.0),
    ]  # fmt: skip
    assert width.counts_line("waits", made) == "| waits | 9 | 5 | gap: 1, queue_full: 3 | learned: 3 |"
    assert width.summary(made) == "0 output tokens, 4 tokens in traces; the courier held 8 MB at most"


def test_counts_are_of_what_was_streamed_last():
    before = TracesSaid(captured=5, delivered=3, dropped={"gap": 1, "fault": 1})
    after = TracesSaid(captured=9, delivered=5, dropped={"gap": 2, "fault": 1, "queue_full": 1})
    assert since(after, before) == {"captured": 4, "delivered": 2, "dropped": {"gap": 1, "queue_full": 1}}


def test_every_token_that_is_streamed_is_in_a_trace_that_a_learner_decodes(tmp_path):
    made = travel(tmp_path, TINY)
    assert (made.counts["captured"], made.counts["delivered"], made.counts["dropped"]) == (REQUESTS, REQUESTS, {})
    assert made.spent.prompts == REQUESTS
    # Between half and one and a half times the mean, and what the last round brings beyond.
    assert REQUESTS * 6 <= made.spent.output_tokens <= REQUESTS * (18 + 2)
    assert made.claimed.tokens == REQUESTS * PROMPT + made.spent.output_tokens
    # Every token has a row but the last one of each request, which no forward has read.
    assert made.claimed.array_bytes == (made.claimed.tokens - REQUESTS) * 3 * 16 * 2
    assert made.claimed.outcomes["learned"] == REQUESTS
    assert sum(made.claimed.outcomes.values()) == REQUESTS
    assert made.line_bytes > made.spent.captured_bytes > made.claimed.array_bytes


def test_what_finds_no_room_on_the_line_is_counted_with_its_reason(tmp_path):
    made = travel(tmp_path, TINY, is_held=False, capture_memory_bytes=2)
    dropped = {DropReason.QUEUE_FULL.value: REQUESTS}
    assert (made.counts["captured"], made.counts["delivered"], made.counts["dropped"]) == (REQUESTS, 0, dropped)
    assert (made.claimed.tokens, sum(made.claimed.outcomes.values())) == (0, 0)


def test_a_prompt_longer_than_a_window_leaves_its_context_alone(tmp_path):
    made = travel(tmp_path, TINY, trace_tokens=16)
    assert made.counts["dropped"] == {}
    # A window of 16 tokens has 4 of context, one of them the first token of the output; what follows is as long as its
    # rounds make it, and every further window repeats 4 tokens.
    windows = made.counts["captured"]
    assert made.claimed.tokens == REQUESTS * 3 + made.spent.output_tokens + 4 * (windows - REQUESTS)


def test_forwards_grow_with_their_width_alone(tmp_path):
    found = by_width(tmp_path, TINY, [12, 4, 8], rounds=1)
    assert [each.hidden for each in found] == [4, 8, 12]
    steps = np.diff([each.forward_bytes for each in found])
    assert steps[0] == pytest.approx(steps[1])
    rows = steps[0] / (4 * 3 * 2)
    assert 1 <= rows <= TINY.at_once * (TINY.draft_steps + 1) + TINY.chunk_tokens
    assert found[0].over_narrowest.spread.median == 1.0
    assert found[0].line().startswith("| 4 | ")


def test_both_ways_of_ingest_store_the_same_bytes(redis_client):
    payloads = [b"a" * 7, b"b" * 9]
    buffer = RedisTraceBuffer(redis_client, BufferConfig())
    ingest._append(buffer, payloads)
    ingest._xadd(redis_client, payloads)
    stored = [[fields[b"trace"] for _, fields in redis_client.xrange(name)] for name in (buffer._traces, ingest.BARE)]
    assert stored == [payloads, payloads]


def test_the_ingest_is_the_bytes_of_a_round_over_its_seconds(tmp_path, monkeypatch):
    seconds = iter([9.0, 9.0, 4.0, 2.0, 4.0, 2.0, 4.0, 2.0])
    monkeypatch.setattr(ingest, "_timed", lambda *_: lambda: next(seconds))
    monkeypatch.setattr(
        ingest, "in_rounds", lambda ways, rounds, _: {n: [w() for _ in range(rounds)] for n, w in ways.items()}
    )
    found = ingest.against_bare(tmp_path, payload_bytes=1_000_000, depth=3, trips=2, rounds=3)
    assert (found.mb_per_s, found.bare_mb_per_s) == (6 / 4, 6 / 2)
    assert found.line().startswith("| 1,000,000 | 3 | 2 | 3 | ")


def test_the_bare_loop_makes_the_steps_of_the_fit():
    found = fitting.against_bare(hidden=512, vocabulary=64, traces=3, tokens=40, rounds=1)
    assert found.tokens == 4 * 3 * 40  # four passes
    assert found.tokens_per_s > 0 < found.bare_tokens_per_s


@pytest.mark.parametrize("bare", [[1.0], [1.0, 2.1], [1.0, 2.0, 3.0]])
def test_a_bare_loop_that_does_other_steps_is_no_comparison(bare):
    fitting.check_same([1.0, 2.0], [1.0, 2.0])
    with pytest.raises(SystemExit, match="expected those of the fit"):
        fitting.check_same([1.0, 2.0], bare)


def test_a_staged_draft_is_its_parameters_in_bfloat16(tmp_path):
    found = staged(tmp_path, 512, 64, repeats=1)
    heads, channels, inner = 4, 128, 512 * 7 // 2
    attention = 2 * 512 * (heads + 2) * channels + heads * channels * 512
    layer = attention + 3 * 512 * inner + 3 * 512  # norms of input, hidden state and MLP
    assert found.tensor_bytes == 2 * (3 * 512 * 512 + layer + 512 + 64 * 512)
    assert found.tensor_bytes < found.file_bytes < found.tensor_bytes + 5000


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], Load()),
        (["--quick"], Load(requests=16, at_once=16, output_tokens=32)),
        (
            ["--hidden", "2048", "--requests", "7", "--dtype", "float32"],
            Load(hidden=2048, layers=3, dtype="float32", prompt_tokens=8192, requests=7, at_once=7),
        ),
    ],
)
def test_the_load_is_what_the_command_line_asks(monkeypatch, given, expected):
    monkeypatch.setattr(sys, "argv", ["width", *given])
    assert width.load_of(width.parse()) == expected


def test_a_row_of_features_has_every_layer():
    assert Load().row_bytes == 4096 * 3 * 2
    assert Load(dtype="float32", layers=1, hidden=8).row_bytes == 32
