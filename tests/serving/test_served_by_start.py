"""Rounds by where they begin, counted again from the traces of the same forwards, one round after the other."""

from collections import Counter

from paceline.buffer.board.counters import CONTEXT_STARTS, OUTPUT_STARTS
from paceline.serving.watch.served_counts import ServedCounts
from served_rounds import prefill, verify
from toy_server import ToyServer, assembler

#: Of one request each. The last one found a part of its prompt in the cache.
PROMPT_TOKENS = {"short": 7, "long": 600, "longest": 9000}
CACHED = {"longest": 8500}
OUTPUT_TOKENS = 2300


def bucket(starts, length):
    return max(place for place, start in enumerate(starts) if length >= start)


def test_every_round_of_the_traces_is_in_the_bucket_where_it_begins():
    counts, traces = ServedCounts(), []
    for name, tokens in PROMPT_TOKENS.items():
        server = ToyServer(tokens, tokens, CACHED.get(name, 0))
        made, _ = assembler(window_tokens=200)
        forwards = [server.prefill(request_id=name)]
        while (output := len(server.tokens) - tokens) < OUTPUT_TOKENS:
            kind = server.plain if len(forwards) % 10 == 0 else server.verify
            forwards.append(kind(version=int(output > 700), request_id=name))
        for forward in [*forwards, server.verify(version=1, request_id=name, finish="length")]:
            counts.add(forward)
            traces += made.add(forward, 0.0)
    rounds, accepted = Counter(), Counter()
    for trace in traces:
        for start, drafted, kept in zip(trace.rounds.starts, trace.rounds.drafted, trace.rounds.accepted, strict=True):
            if (drafted >= 0).any():
                context = trace.offset + int(start) + 1
                output = context - PROMPT_TOKENS[trace.request_id]
                for axis, place in (("o", bucket(OUTPUT_STARTS, output)), ("c", bucket(CONTEXT_STARTS, context))):
                    rounds[axis, trace.draft_version, place] += 1
                    accepted[axis, trace.draft_version, place] += int(kept)
    found = counts.counters()
    assert len(traces) > 30
    assert {place for axis, _, place in rounds if axis == "o"} == {*range(len(OUTPUT_STARTS))}
    assert {place for axis, _, place in rounds if axis == "c"} == {*range(len(CONTEXT_STARTS))}
    for row in found.positions:
        for axis, mine, of_them in (
            ("o", row.output_rounds, row.output_accepted),
            ("c", row.context_rounds, row.context_accepted),
        ):
            assert mine == [rounds[axis, row.draft, place] for place in range(len(mine))]
            assert of_them == [accepted[axis, row.draft, place] for place in range(len(mine))]
            assert sum(mine) == row.tried[0] == sum(c.rounds for c in found.cells if c.draft == row.draft)
            assert sum(of_them) == sum(row.stood)


def test_a_round_belongs_where_it_begins_and_not_where_its_drafts_end():
    counts = ServedCounts()
    counts.add(prefill("r"))
    for output, context in ((255, 511), (256, 512), (2047, 8191), (2048, 8192), (90_000, 90_000)):
        counts.add(verify("r", 1, 3, output=output, root=context - 1))
    (row,) = counts.counters().positions
    assert (row.output_rounds, row.output_accepted) == ([1, 1, 0, 1, 2], [3, 3, 0, 3, 6])
    assert (row.context_rounds, row.context_accepted) == ([1, 1, 1, 2], [3, 3, 3, 6])


def test_a_courier_goes_on_from_counters_of_a_release_without_buckets_and_then_from_its_own():
    counts, later = ServedCounts(), ServedCounts()
    counts.add(prefill("r"))
    counts.add(verify("r", 1, 2, output=300))
    before = counts.counters()
    (row,) = before.positions
    row.output_rounds, row.output_accepted, row.context_rounds, row.context_accepted = [], [], [], []
    later.adopt(before)
    later.add(prefill("s"))
    later.add(verify("s", 1, 1, output=600))
    last = ServedCounts()
    last.adopt(later.counters())
    (row,) = last.counters().positions
    assert (row.tried, row.stood) == ([2, 2, 1], [2, 1, 0])
    assert (row.output_rounds, row.output_accepted) == ([0, 0, 1], [0, 0, 1])
