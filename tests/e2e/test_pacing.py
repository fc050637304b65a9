"""Pacing in the real server: off where drafts do not pay, never another output, and traces exact at every length."""

import time
from collections import Counter

import pytest
import torch
from learned_draft import swap_in_learned
from paceline.buffer.stream.trace import NO_DRAFT
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.policies.acceptance import identity, proposed_drafts
from paceline.rig.models.target import greedy
from transformers import AutoModelForCausalLM, AutoTokenizer
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

REQUESTS, TOKENS, MOST = 24, 64, 5


def job(rig, label, i, **sampling):
    return {"rid": f"{label}-{i}", "text": rig.texts[i][:160], "max_tokens": TOKENS, **sampling}


def serve(rig, label):
    """Greedy requests and a few sampled ones, eight at a time; replies by request id, greedy ones alone last."""
    jobs = [job(rig, label, i) for i in range(REQUESTS)]
    sampled = [job(rig, f"{label}-warm", i, temperature=0.8) for i in range(8)]
    replies = {reply["meta_info"]["id"]: reply for reply in rig.generate_all([*jobs, *sampled])}
    rig.drained()
    return replies


def pacing(rig):
    """The replica's pacing status once everything served so far is in it."""
    reported_at = time.time() + 2.5  # the scheduler reports to the courier every second, the courier to the board
    until(lambda: (rig.status().at or 0.0) > reported_at, "the replica's next heartbeat")
    return rig.status().pacing


def steps_of(status):
    """Decode steps by length, all batch sizes together."""
    return sum((Counter({int(k): n for k, n in row.items()}) for row in status.steps.values()), Counter())


@pytest.fixture(scope="module")
def random_served(paced_rig):
    """Replies with the random draft, and the replica's pacing status after them."""
    return serve(paced_rig, "random"), pacing(paced_rig)


@pytest.fixture(scope="module")
def learned_draft(paced_rig, random_served):
    """A draft trained on what was just served, at any length, and live; it will be asked the same again."""
    return swap_in_learned(paced_rig, [entry.trace for entry in paced_rig.buffer.replay(10_000)])


@pytest.fixture(scope="module")
def learned_served(paced_rig, learned_draft):
    """The same requests again, drafted by the learned weights."""
    return serve(paced_rig, "learned"), pacing(paced_rig)


def test_a_random_draft_is_switched_off_most_of_the_time(random_served):
    _, status = random_served
    assert (status.policy, status.faults, status.unmatched, status.reason) == ("goodput", 0, 0, "")
    steps = steps_of(status)
    assert set(steps) <= set(range(MOST + 1))
    assert steps[0] > 0.5 * steps.total(), status.cost_ms
    assert steps.total() > steps[0]  # it was tried: that it is random is not known beforehand


def test_another_draft_is_tried_again(random_served, learned_served):
    before, after = (steps_of(status) for _, status in (random_served, learned_served))
    tried = after - before
    assert tried.total() > tried[0]
    assert learned_served[1]["faults"] == learned_served[1]["unmatched"] == 0


def test_every_answer_is_that_of_plain_decoding(paced_rig, random_served, learned_served):
    model = AutoModelForCausalLM.from_pretrained(paced_rig.target, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(paced_rig.target)
    for i in range(REQUESTS):
        ids = tokenizer(paced_rig.texts[i][:160], add_special_tokens=False).input_ids
        plain = list(greedy(model, ids, TOKENS))
        assert random_served[0][f"random-{i}"]["output_ids"] == plain
        assert learned_served[0][f"learned-{i}"]["output_ids"] == plain


def traces_in(rig):
    """Request id -> its traces: all that the server ever delivered."""
    found = {}
    for entry in rig.buffer.replay(10_000):
        found.setdefault(entry.trace.request_id, []).append(entry.trace)
    return found


def test_traces_hold_what_was_served_at_every_length(paced_rig, random_served, learned_served):
    replies, lengths = random_served[0] | learned_served[0], Counter()
    traces = traces_in(paced_rig)
    assert set(traces) == set(replies)
    for rid, (trace,) in traces.items():
        meta = replies[rid]["meta_info"]
        assert trace.tokens[trace.context_len :].tolist() == replies[rid]["output_ids"], rid
        assert int(trace.rounds.accepted.sum()) == meta["spec_num_correct_drafts"], rid
        assert len(trace.rounds) == meta["spec_verify_ct"], rid
        lengths.update((trace.rounds.drafted != NO_DRAFT).sum(axis=1).tolist())
    assert lengths[0] > 0
    assert lengths.total() > lengths[0]


@pytest.mark.parametrize("served", ["random_served", "learned_served"])
def test_replaying_the_draft_that_served_gives_every_round_as_it_was_served(served, paced_rig, learned_draft, request):
    replies, _ = request.getfixturevalue(served)
    folder = paced_rig.draft if served == "random_served" else learned_draft
    found = traces_in(paced_rig)
    traces = [trace for rid in replies for trace in found[rid]]
    draft = load_draft(folder, load_target_embedding(paced_rig.target))
    pairs = [identity(trace, runs) for trace, runs in zip(traces, replay_traces(draft, traces, MOST), strict=True)]
    compared = sum(compared for _, compared in pairs)
    drafted = sum(int((proposed_drafts(trace) > 0).sum()) for trace in traces)
    accepted = sum(int(trace.rounds.accepted.sum()) for trace in traces)
    assert 0 < compared == drafted
    assert sum(equal for equal, _ in pairs) == compared
    assert served == "random_served" or accepted > 0
