"""Trace windows hold exactly what the server committed, whatever ends or interrupts a request."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from paceline.buffer.stream.feature_rows import FeatureDtype, quantised
from paceline.buffer.stream.trace import TreeShape
from paceline.serving.capture.scaled_rows import scaled_rows
from paceline.serving.courier.assembler import IDLE_CLOSE_S
from paceline.serving.wire.counts import DropReason
from paceline.serving.wire.request_forward import Commit, RequestPrefill
from toy_server import FACTS, STEPS, TOP_K, ToyServer, assembler, feed


def assert_is_what_was_served(trace, server):
    """Tokens, rounds and feature rows of `trace` equal the server's own record at its offset."""
    lo = trace.offset
    assert trace.tokens.tolist() == server.tokens[lo : lo + len(trace.tokens)]
    record = {root: (drafted, accepted) for root, drafted, accepted in server.served}
    for start, drafted, accepted in zip(trace.rounds.starts, trace.rounds.drafted, trace.rounds.accepted, strict=True):
        assert record[lo + int(start)] == (drafted.tolist(), int(accepted))
    for i, row in enumerate(trace.features):
        assert row.tolist() == server.state(lo + i).tolist()


@pytest.mark.parametrize("seed", range(8))
def test_a_request_becomes_one_trace_equal_to_the_servers_record(seed):
    server = ToyServer(seed)
    made, counts = assembler()
    forwards = [server.prefill(), *(server.verify() for _ in range(9)), server.verify(finish="length")]
    (trace,) = feed(made, forwards)
    assert_is_what_was_served(trace, server)
    assert len(trace.tokens) == len(server.tokens)
    assert len(trace.features) == len(server.tokens) - 1
    assert (trace.offset, trace.context_len, trace.replay_exact, trace.finish) == (0, 7, True, "length")
    assert (trace.target_version, trace.replica, trace.tenant) == ("7", "rep", "tenant-a")
    assert (counts.captured, len(made), counts.rounds) == (1, 0, 10)


@pytest.mark.parametrize("order", ["pvpvv", "vppvp", "vvvpv"])
def test_steps_without_drafts_between_verify_rounds_leave_the_window_whole(order):
    server = ToyServer(5)
    made, counts = assembler()
    forwards = [server.prefill(), *(server.plain() if kind == "p" else server.verify() for kind in order)]
    (trace,) = feed(made, [*forwards, server.plain(finish="length")])
    assert_is_what_was_served(trace, server)
    assert (len(trace.tokens), len(trace.features)) == (len(server.tokens), len(server.tokens) - 1)
    assert (trace.replay_exact, trace.finish, counts.captured, counts.rounds) == (True, "length", 1, 6)
    is_plain = [kind == "p" for kind in [*order, "p"]]
    assert trace.rounds.teacher_ids.shape == (6, STEPS + 1, TOP_K)
    assert np.isneginf(trace.rounds.teacher_logprobs).all(axis=(1, 2)).tolist() == is_plain
    assert np.isfinite(trace.rounds.teacher_logprobs).all(axis=(1, 2)).tolist() == [not plain for plain in is_plain]


@pytest.mark.parametrize(("topks", "is_exact"), [((2, 2), True), ((2, 3), False), ((0, 0), False)])  # 0: unknown
def test_a_window_of_trees_is_exact_while_they_grow_alike(topks, is_exact):
    server = ToyServer(5)
    made, _ = assembler()
    trees = [TreeShape(STEPS, topk, 4) if topk else None for topk in topks]
    begun = [server.prefill(), server.plain()]
    rounds = [server.verify()._replace(is_tree=True, tree=tree) for tree in trees]
    (trace,) = feed(made, [*begun, *rounds, server.plain(finish="length")])
    assert (trace.is_tree, trace.tree, trace.replay_exact) == (True, trees[-1], is_exact)


def test_every_window_of_a_request_carries_the_key_of_its_prompt():
    made, _ = assembler(window_tokens=6)
    server = ToyServer(0)
    server.facts = replace(FACTS, prompt="0123456789abcdef")
    found = feed(made, [server.prefill(), *(server.verify() for _ in range(9)), server.verify(finish="length")])
    assert len(found) > 2
    assert {trace.prompt for trace in found} == {"0123456789abcdef"}


def test_every_window_of_a_request_carries_its_label_and_counts_a_refused_one():
    made, counts = assembler(window_tokens=6)
    named, odd = ToyServer(0), ToyServer(1)
    named.facts, odd.facts = replace(FACTS, label="chat/de"), replace(FACTS, is_label_refused=True)
    traces = []
    for server, name in ((named, "n"), (odd, "o")):
        forwards = [server.prefill(request_id=name), *(server.verify(request_id=name) for _ in range(9))]
        traces.append(feed(made, [*forwards, server.verify(finish="length", request_id=name)]))
    assert [{trace.label for trace in found} for found in traces] == [{"chat/de"}, {""}]
    assert len(traces[1]) > 2
    assert (counts.labels_refused, counts.captured) == (len(traces[1]), len(traces[0]) + len(traces[1]))
    assert counts.labels_refused == len(traces[1])


@pytest.mark.parametrize("visible", [1, 2])
def test_a_round_cut_by_the_end_of_the_request_keeps_only_visible_tokens(visible):
    server = ToyServer(3)
    made, _ = assembler()
    (trace,) = feed(made, [server.prefill(), server.verify(), server.verify(visible=visible, finish="stop")])
    assert_is_what_was_served(trace, server)
    assert len(trace.tokens) == len(server.tokens)
    last_root, _, accepted = server.served[-1]
    assert trace.visible_accepted()[-1] == min(accepted, len(server.tokens) - 1 - last_root)


def test_a_cached_prefix_moves_the_window_past_it_and_is_not_replayable():
    server = ToyServer(1, prompt_len=12, cached=5)
    made, _ = assembler()
    (trace,) = feed(made, [server.prefill(), server.verify(finish="length")])
    assert_is_what_was_served(trace, server)
    assert (trace.offset, trace.context_len, trace.replay_exact) == (5, 7, False)


def test_prefill_chunks_are_joined():
    server = ToyServer(2, prompt_len=10)
    whole = server.prefill()
    first = RequestPrefill(
        "r", 0, "7", FACTS, 0, whole.ids[:6], whole.features[:6], whole.feature_dtype, Commit(-1, (), "")
    )
    second = RequestPrefill("r", 0, "7", FACTS, 6, whole.ids[6:], whole.features[6:], whole.feature_dtype, whole.commit)
    made, counts = assembler()
    (trace,) = feed(made, [first, second, server.verify(finish="length")])
    assert_is_what_was_served(trace, server)
    assert (trace.context_len, trace.replay_exact, counts.captured) == (10, True, 1)


@pytest.mark.parametrize(
    ("before", "after", "versions"),
    [
        ((3, "7"), (4, "7"), [(3, "7"), (4, "7")]),
        ((3, "8"), (3, "8+1"), [(3, "8"), (3, "8+1")]),
    ],
    ids=["swap", "target update"],
)
def test_other_weights_inside_a_request_close_the_window_of_the_old_ones(before, after, versions):
    server = ToyServer(4)
    made, counts = assembler()
    served = [server.prefill(*before), *(server.verify(*before) for _ in range(4)), server.verify(*after)]
    old, new = feed(made, [*served, server.verify(*after, finish="length")])
    for trace in (old, new):
        assert_is_what_was_served(trace, server)
    assert [(trace.draft_version, trace.target_version) for trace in (old, new)] == versions
    assert (len(old.rounds), old.replay_exact, old.finish) == (4, True, "")
    assert (len(new.rounds), new.replay_exact, new.finish) == (2, False, "length")
    assert new.context_len == 8  # context_tokens
    assert counts.captured == 2


def test_a_long_request_is_cut_into_windows_that_share_no_round():
    server = ToyServer(5)
    made, counts = assembler(window_tokens=24, context_tokens=10)
    traces = feed(made, [server.prefill(), *(server.verify() for _ in range(30)), server.verify(finish="length")])
    roots = [trace.offset + int(start) for trace in traces for start in trace.rounds.starts]
    assert roots == [root for root, _, _ in server.served]
    for trace in traces:
        assert_is_what_was_served(trace, server)
    assert [trace.replay_exact for trace in traces] == [True] + [False] * (len(traces) - 1)
    assert counts.captured == len(traces) > 2


def test_a_retracted_request_that_is_prefilled_again_continues_in_a_new_window():
    server = ToyServer(6)
    made, counts = assembler()
    forwards = [
        server.prefill(),
        *(server.verify() for _ in range(3)),
        server.prefill(start=2),
        server.verify(finish="length"),
    ]
    before, after = feed(made, forwards)
    assert_is_what_was_served(before, server)
    assert_is_what_was_served(after, server)
    assert (before.finish, after.offset, after.replay_exact) == ("", 2, False)
    assert counts.captured == 2


def test_forwards_of_several_requests_interleave():
    servers = {f"r{i}": ToyServer(10 + i) for i in range(4)}
    made, _ = assembler()
    forwards = [server.prefill(request_id=name) for name, server in servers.items()]
    for turn in range(5):
        forwards += [s.verify(request_id=n, finish="length" if turn == 4 else "") for n, s in servers.items()]
    traces = feed(made, forwards)
    assert [trace.request_id for trace in traces] == list(servers)
    for trace in traces:
        assert_is_what_was_served(trace, servers[trace.request_id])


def test_a_forward_that_does_not_continue_the_window_drops_it_as_a_gap():
    server = ToyServer(7)
    made, counts = assembler()
    first, _, third = server.prefill(), server.verify(), server.verify()
    assert feed(made, [first, third, server.verify(finish="length")]) == []
    assert counts.dropped == {DropReason.GAP: 1}
    assert (counts.captured, len(made)) == (1, 0)


def test_a_request_that_lost_a_forward_is_dropped_and_its_later_forwards_are_ignored():
    server = ToyServer(8)
    made, counts = assembler()
    feed(made, [server.prefill(), server.verify()])
    made.lose({"r": DropReason.QUEUE_FULL})
    made.lose({"r": DropReason.QUEUE_FULL})
    assert feed(made, [server.verify(), server.verify(finish="length")]) == []
    assert (counts.captured, counts.dropped) == (1, {DropReason.QUEUE_FULL: 1})


@pytest.mark.parametrize("after", [(4, "7"), (3, "8")], ids=["swap", "target update"])
def test_other_weights_before_the_first_round_make_one_trace_that_cannot_be_replayed(after):
    server = ToyServer(14)
    made, counts = assembler()
    (trace,) = feed(made, [server.prefill(3, "7"), server.verify(*after), server.verify(*after, finish="length")])
    assert_is_what_was_served(trace, server)
    assert (trace.draft_version, trace.target_version) == after
    assert (trace.replay_exact, trace.context_len) == (False, 7)
    assert (counts.captured, counts.dropped) == (1, {})


def test_a_target_update_between_two_chunks_of_a_prompt_cannot_be_replayed():
    server = ToyServer(2, prompt_len=10)
    whole = server.prefill()
    first = whole._replace(ids=whole.ids[:6], features=whole.features[:6], commit=Commit(-1, (), ""))
    rest = whole._replace(ids=whole.ids[6:], features=whole.features[6:], start=6, target_version="8")
    made, counts = assembler()
    (trace,) = feed(made, [first, rest, server.verify(target="8", finish="length")])
    assert_is_what_was_served(trace, server)
    assert (trace.target_version, trace.replay_exact, counts.captured) == ("8", False, 1)


def test_a_prompt_longer_than_a_window_keeps_its_newest_tokens_as_context():
    server = ToyServer(15, prompt_len=60)
    made, counts = assembler(window_tokens=24, context_tokens=10)
    (trace,) = feed(made, [server.prefill(), server.verify(), server.verify(finish="length")])
    assert_is_what_was_served(trace, server)
    assert (trace.offset, trace.context_len, trace.replay_exact) == (51, 10, False)
    assert (counts.captured, counts.dropped) == (1, {})


def test_feature_rows_that_are_not_at_their_tokens_drop_the_window():
    server = ToyServer(16)
    made, counts = assembler()
    forwards = [server.prefill(), server.verify(), server.verify(), server.verify(finish="length")]
    forwards[1] = forwards[1]._replace(features=np.zeros((0, 0), np.float32))
    assert feed(made, forwards) == []
    assert (counts.captured, counts.dropped, len(made)) == (1, {DropReason.INVALID: 1}, 0)


@pytest.mark.guarantee("no-content-in-logs")
def test_an_invalid_window_names_positions_and_never_content(caplog):
    server = ToyServer(17)
    made, counts = assembler()
    first, verify = server.prefill(), server.verify(finish="length")
    wrong = verify._replace(drafted=verify.drafted + 1, accepted=3, commit=verify.commit._replace(tokens=(5, 6, 7, 8)))
    assert feed(made, [first, wrong]) == []
    assert counts.dropped == {DropReason.INVALID: 1}
    assert "round at 7: got another token than accepted draft 0" in caplog.text


def test_an_abort_in_a_round_keeps_the_rounds_before_it():
    server = ToyServer(11)
    made, _ = assembler()
    forwards = [server.prefill(), server.verify(), server.verify()]
    seen = len(server.tokens)
    forwards.append(server.verify(visible=0, finish="abort"))
    server.served.pop()
    (trace,) = feed(made, forwards)
    assert (trace.finish, len(trace.rounds), len(trace.tokens)) == ("abort", 2, seen)


def test_a_window_that_does_not_grow_is_closed_after_a_while():
    server = ToyServer(12)
    made, _ = assembler()
    feed(made, [server.prefill(), server.verify()], now=100.0)
    assert made.close_idle(100.0 + IDLE_CLOSE_S) == []
    (trace,) = made.close_idle(100.1 + IDLE_CLOSE_S)
    assert (trace.finish, len(trace.rounds)) == ("abandoned", 1)


def test_overshoot_forwards_after_the_end_are_ignored():
    server = ToyServer(13)
    made, counts = assembler()
    forwards = [server.prefill(), server.verify(finish="length")]
    overshoot = server.verify(visible=0, finish="length")  # SGLang commits nothing after the end
    (trace,) = feed(made, [*forwards, overshoot])
    assert len(trace.rounds) == 1
    assert (counts.captured, counts.dropped) == (1, {})


@pytest.mark.parametrize("kind", [FeatureDtype.INT8, FeatureDtype.E4M3])
def test_features_are_quantised_as_a_window_closes_and_replay_is_not_claimed_to_be_exact(kind):
    """What goes on as the context of the next window is quantised once, from what was captured."""
    given = {}
    for form in (None, kind):
        server = ToyServer(5)
        made, counts = assembler(window_tokens=24, context_tokens=10, kind=form)
        rounds = (server.verify() for _ in range(12))
        given[form] = feed(made, [server.prefill(), *rounds, server.verify(finish="length")])
        assert counts.dropped == {}
    assert len(given[kind]) == 2
    for whole, trace in zip(given[None], given[kind], strict=True):
        codes, scales = quantised(whole.features, whole.feature_dtype, kind)
        assert (trace.feature_dtype, trace.replay_exact, len(trace.prefix)) == (kind, False, 0)
        assert (trace.features.tolist(), trace.feature_scales.tolist()) == (codes.tolist(), scales.tolist())
        assert (trace.tokens.tolist(), trace.offset) == (whole.tokens.tolist(), whole.offset)
    assert given[None][0].replay_exact


def sent_quantised(forward):
    """The forward as a GPU sends it that quantises: a row is its scale's bytes and its codes."""
    rows = scaled_rows(torch.from_numpy(forward.features)).numpy()
    return forward._replace(features=rows, feature_dtype=FeatureDtype.INT8)


def test_features_that_a_device_has_quantised_are_kept_as_the_courier_would_have_made_them():
    given = {}
    for is_sent in (False, True):
        server = ToyServer(5)
        made, counts = assembler(window_tokens=24, context_tokens=10, kind=FeatureDtype.INT8)
        forwards = [server.prefill(), *(server.verify() for _ in range(12)), server.verify(finish="length")]
        given[is_sent] = feed(made, [sent_quantised(one) if is_sent else one for one in forwards])
        assert counts.dropped == {}
    assert len(given[True]) == 2
    for ours, theirs in zip(given[False], given[True], strict=True):
        assert (theirs.feature_dtype, theirs.replay_exact) == (FeatureDtype.INT8, False)
        assert theirs.features.tolist() == ours.features.tolist()
        assert theirs.feature_scales.tolist() == ours.feature_scales.tolist()


def test_a_row_that_a_device_could_not_quantise_costs_its_window_and_is_counted():
    server = ToyServer(5)
    made, counts = assembler(kind=FeatureDtype.INT8)
    bad = server.prefill()
    bad.features[2, 1] = np.nan
    assert feed(made, [sent_quantised(bad), sent_quantised(server.verify(finish="length"))]) == []
    assert counts.dropped == {DropReason.INVALID: 1}


@pytest.mark.parametrize("kind", [FeatureDtype.INT8, FeatureDtype.E4M3])
def test_features_that_cannot_be_quantised_cost_their_window_and_are_counted(kind):
    server = ToyServer(5)
    made, counts = assembler(kind=kind)
    bad = server.prefill()
    bad.features[2, 1] = np.nan
    assert feed(made, [bad, server.verify(finish="length")]) == []
    assert counts.dropped == {DropReason.INVALID: 1}
