"""With `--enable-mixed-chunk` running requests decode inside prefills: each such step is a round without drafts."""

import math

import numpy as np
import pytest
import torch
from learned_draft import swap_in_learned
from paceline.buffer.stream.trace import NO_DRAFT, VerdictRule
from paceline.learner.judging.replay import replay_logprobs, replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.learner.training.batch import collate
from paceline.policies.acceptance import Tally, identity, proposed_drafts
from paceline.policies.rejection import (
    EstimatedRounds,
    expected_tally,
    served_beside_expected,
    target_logprobs,
    why_not_estimated,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

REQUESTS, CHUNK_TOKENS = 24, 32
MIXED = ["--enable-mixed-chunk", "--chunked-prefill-size", str(CHUNK_TOKENS)]
MIXED += ["--max-total-tokens", "16384", "--disable-radix-cache", "--random-seed", "5"]
#: Of each wave; the others are greedy.
SAMPLED = range(0, REQUESTS, 4)


@pytest.fixture(scope="module")
def mixed_rig(start_rig, models, tmp_path_factory):
    """Room for all requests and no cached prefix, so that every round can be replayed."""
    with start_rig(models, tmp_path_factory.mktemp("mixed"), MIXED, {}) as made:
        yield made


def serve(rig, label, sampled=SAMPLED):
    """Requests of different lengths, so that some begin while others run; answers and traces by request id."""
    jobs = [
        {"rid": f"{label}-{i}", "text": rig.texts[i][: 150 + 20 * (i % 5)], "max_tokens": 32 + 8 * (i % 3)}
        | ({"temperature": 0.7} if i in sampled else {})
        for i in range(REQUESTS)
    ]
    replies = {reply["meta_info"]["id"]: reply for reply in rig.generate_all(jobs)}
    status = rig.drained()
    assert status.account.captured == status.account.delivered + sum(status.account.dropped.values())
    assert status.account.dropped == {}
    return {rid: (reply, rig.traces_of(rid)) for rid, reply in replies.items()}


@pytest.fixture(scope="module")
def first_served(mixed_rig):
    """Drafted by random weights."""
    return serve(mixed_rig, "first")


@pytest.fixture(scope="module")
def learned_served(mixed_rig, first_served):
    """Folder of a draft that was trained on those traces and swapped in, and what was served with it."""
    folder = swap_in_learned(mixed_rig, [trace for _, traces in first_served.values() for trace in traces])
    return folder, serve(mixed_rig, "learned")


def test_every_committed_token_is_in_one_trace_and_every_round_is_counted_once(mixed_rig, first_served, learned_served):
    tokenizer = AutoTokenizer.from_pretrained(mixed_rig.target)
    plain = verified = 0
    for rid, (reply, traces) in (first_served | learned_served[1]).items():
        (trace,), meta, i = traces, reply["meta_info"], int(rid.rpartition("-")[2])
        prompt = tokenizer(mixed_rig.texts[i][: 150 + 20 * (i % 5)], add_special_tokens=False).input_ids
        assert trace.tokens.tolist() == prompt + reply["output_ids"], rid
        assert (trace.offset, trace.context_len, trace.replay_exact) == (0, len(prompt), True), rid
        # SGLang counts rounds that verify; each of the others committed one token.
        proposed = proposed_drafts(trace)
        assert int((proposed > 0).sum()) == meta["spec_verify_ct"], rid
        assert int(trace.rounds.accepted.sum()) == meta["spec_num_correct_drafts"], rid
        starts, accepted = trace.rounds.starts, trace.rounds.accepted
        assert (starts[0], np.diff(starts).tolist()) == (len(prompt), (accepted[:-1] + 1).tolist()), rid
        assert 0 < len(trace.tokens) - 1 - starts[-1] <= accepted[-1] + 1, rid  # max_tokens may cut the last round
        plain, verified = plain + int((proposed == 0).sum()), verified + int((proposed > 0).sum())
    assert plain > 100
    assert verified > 100


def test_features_and_what_is_known_of_the_teacher_equal_transformers(mixed_rig, learned_served):
    model = AutoModelForCausalLM.from_pretrained(mixed_rig.target, dtype=torch.float32).eval()
    for rid, (_, (trace,)) in learned_served[1].items():
        with torch.no_grad():
            out = model(torch.tensor([trace.tokens.tolist()]), output_hidden_states=True)
        wanted = torch.cat([out.hidden_states[layer + 1] for layer in (0, 1, 2)], dim=-1)[0]
        assert len(trace.features) >= len(trace.tokens) - 1, rid
        assert np.abs(trace.features - wanted[: len(trace.features)].numpy()).max() < 2e-3, rid
        is_plain = proposed_drafts(trace) == 0
        assert np.isneginf(trace.rounds.teacher_logprobs[is_plain]).all(), rid
        roots = torch.from_numpy(trace.rounds.starts[~is_plain].astype(np.int64))
        ids = torch.from_numpy(trace.rounds.teacher_ids[~is_plain, 0].astype(np.int64))
        best = out.logits[0, roots].max(-1).values
        assert float((best - out.logits[0, roots].gather(1, ids)[:, 0]).max()) < 1e-3, rid
        sampled = int(rid.rpartition("-")[2]) in SAMPLED
        logprobs = trace.rounds.teacher_logprobs[~is_plain, 0].astype(np.float32)
        exact = out.logits[0, roots].log_softmax(-1).gather(1, ids).numpy()
        assert np.abs(logprobs - (exact if sampled else 0.0)).max() < 2e-2, rid
    labels = collate([trace for _, (trace,) in learned_served[1].values()], torch.device("cpu"), soft=True)
    assert float((labels.teacher_probs_BTK.sum(-1) - 1.0).abs().max()) < 1e-3


def test_replaying_the_draft_that_served_gives_the_served_counts(mixed_rig, learned_served):
    folder, served = learned_served
    traces = [trace for _, (trace,) in served.values()]
    draft = load_draft(folder, load_target_embedding(mixed_rig.target))
    pairs = [
        identity(trace, runs) for trace, runs in zip(traces, replay_traces(draft, traces, mixed_rig.steps), strict=True)
    ]
    compared = sum(compared for _, compared in pairs)
    assert compared == sum(int((trace.rounds.drafted[:, 0] != NO_DRAFT).sum()) for trace in traces)
    assert sum(equal for equal, _ in pairs) == compared > 200
    assert sum(int(trace.rounds.accepted.sum()) for trace in traces) > 100


@pytest.fixture(scope="module")
def rejecting_served(start_rig, models, tmp_path_factory):
    """Target, a draft that was trained and swapped in, and traces of it at temperature 0.7 under rejection sampling."""
    more = [*MIXED, "--speculative-use-rejection-sampling"]
    with start_rig(models, tmp_path_factory.mktemp("rejecting"), more, {}) as rig:
        first = serve(rig, "first")
        folder = swap_in_learned(rig, [trace for _, traces in first.values() for trace in traces])
        learned = serve(rig, "learned", sampled=range(REQUESTS))
        yield rig, folder, [trace for _, (trace,) in learned.values()]


def test_under_rejection_sampling_a_step_without_drafts_leaves_its_request_to_the_gate(rejecting_served):
    rig, folder, traces = rejecting_served
    draft, whole, judged = load_draft(folder, load_target_embedding(rig.target)), EstimatedRounds(), Tally()
    for trace, logq in zip(traces, replay_logprobs(draft, traces, rig.steps), strict=True):
        assert (trace.verdict_rule, why_not_estimated(trace)) == (VerdictRule.REJECTION, "")
        judged += expected_tally(trace, logq)
        whole += served_beside_expected(trace, logq)
    plain = [int((proposed_drafts(trace) == 0).sum()) for trace in traces]
    assert sum(count > 0 for count in plain) > REQUESTS // 2
    assert np.isnan(target_logprobs(traces[np.argmax(plain)])[traces[np.argmax(plain)].rounds.starts[0] + 1 :]).any()
    assert judged.rounds > whole.rounds > 100
    assert whole.accepted > 30
    assert abs(whole.accepted - whole.expected) < 5 * math.sqrt(whole.variance)
