"""The draft does not run while nothing is drafted, and drafts afterwards as if it had: compared on two real servers."""

import json

import httpx
import numpy as np
import pytest
from learned_draft import register, swap_in_learned
from paceline.buffer.board.version import VersionState
from paceline.buffer.stream.trace import NO_DRAFT
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.policies.acceptance import identity, proposed_drafts
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

REQUESTS, TOKENS, MOST = 12, 96, 3


def ask(rig, rid, prompt):
    """One greedy request; what it answers."""
    sampling = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": TOKENS}
    body = {"rid": rid, "sampling_params": sampling, **prompt}
    reply = httpx.post(f"http://127.0.0.1:{rig.port}/generate", json=body, timeout=300.0, trust_env=False)
    return json.loads(reply.content)


def is_flushed(port):
    return httpx.post(f"http://127.0.0.1:{port}/flush_cache", timeout=60.0, trust_env=False).is_success


def conversation(rig, label, tokenizer):
    """REQUESTS requests, four at a time, and then each with its answer as the prompt; output ids by request id."""
    texts = [text[:160] for text in rig.texts[:REQUESTS]]
    jobs = [{"rid": f"{label}-{i}", "text": text, "max_tokens": TOKENS} for i, text in enumerate(texts)]
    replies = rig.generate_all(jobs, concurrency=4)
    found = {reply["meta_info"]["id"]: reply["output_ids"] for reply in replies}
    for i, (text, reply) in enumerate(zip(texts, replies, strict=True)):
        read = tokenizer(text, add_special_tokens=False).input_ids
        again = ask(rig, f"{label}-again-{i}", {"input_ids": [*read, *reply["output_ids"]]})
        assert again["meta_info"]["cached_tokens"] > len(read)  # the first one's answer is in the cache
        found[f"{label}-again-{i}"] = again["output_ids"]
    rig.drained()
    return found


@pytest.fixture(scope="module")
def served(swept_rigs):
    """Server -> output ids by request id, of the same requests drafted by the same learned weights."""
    from transformers import AutoTokenizer

    caught_up, warm = swept_rigs["caught up"], swept_rigs["always warm"]
    tokenizer = AutoTokenizer.from_pretrained(caught_up.target)
    conversation(caught_up, "random", tokenizer)
    learned = swap_in_learned(caught_up, [entry.trace for entry in caught_up.buffer.replay(10_000)])
    for source in (warm.draft, learned):
        number = register(warm, source)
        warm.board.move(number, VersionState.LIVE, "test", source.name)
    until(lambda: warm.status().draft_version == number, "the swap")
    for rig in swept_rigs.values():  # what other weights have left in the cache
        until(lambda port=rig.port: is_flushed(port), "the server to flush its cache")
    return learned, {name: conversation(rig, "learned", tokenizer) for name, rig in swept_rigs.items()}


def traces_in(rig, rids):
    """The traces of these requests, by request id; each has one."""
    found = {entry.trace.request_id: entry.trace for entry in rig.buffer.replay(10_000)}
    return {rid: found[rid] for rid in rids}


def drafts_in(trace):
    """Position of a verify round's root -> its drafts, and how many of them were accepted."""
    drafted = [[int(token) for token in row if token != NO_DRAFT] for row in trace.rounds.drafted]
    roots = (trace.offset + trace.rounds.starts).tolist()
    return dict(zip(roots, zip(drafted, trace.visible_accepted().tolist(), strict=True), strict=True))


def test_answers_are_the_same_and_the_draft_was_caught_up_in_every_way(swept_rigs, served):
    _, answers = served
    assert answers["caught up"] == answers["always warm"]
    caught_up, warm = (swept_rigs[name].status().pacing.catch_up for name in ("caught up", "always warm"))
    assert caught_up.reason == ""
    assert caught_up.passes.keys() == {"drafting", "full", "ended"}
    assert caught_up.positions > 10 * REQUESTS
    assert (warm.reason, warm.passes) == ("PACELINE_CATCH_UP_BYTES is 0", {})


def test_what_is_drafted_and_accepted_is_what_a_draft_that_always_ran_drafts(swept_rigs, served):
    _, answers = served
    rids = answers["caught up"].keys()
    found, expected = (traces_in(swept_rigs[name], rids) for name in ("caught up", "always warm"))
    compared = accepted = 0
    for rid in rids:
        ours, theirs = drafts_in(found[rid]), drafts_in(expected[rid])
        for root in ours.keys() & theirs.keys():
            (drafted, kept), (wanted, kept_there) = ours[root], theirs[root]
            width = min(len(drafted), len(wanted))
            assert drafted[:width] == wanted[:width], (rid, root)
            assert min(kept, width) == min(kept_there, width), (rid, root)
            compared, accepted = compared + width, accepted + min(kept, width)
    assert compared > 10 * REQUESTS
    assert accepted > REQUESTS


def test_replay_gives_every_round_as_it_was_served(swept_rigs, served):
    learned, answers = served
    rig = swept_rigs["caught up"]
    traces = [trace for trace in traces_in(rig, answers["caught up"]).values() if trace.replay_exact]
    assert len(traces) > 2  # of the others, the draft's first states come from the cache
    draft = load_draft(learned, load_target_embedding(rig.target))
    pairs = [identity(trace, runs) for trace, runs in zip(traces, replay_traces(draft, traces, MOST), strict=True)]
    equal, compared = np.sum(pairs, axis=0)
    assert 0 < compared == sum(int((proposed_drafts(trace) > 0).sum()) for trace in traces)
    assert equal == compared
