"""Traces of the real server hold exactly what it served, whatever ends, cuts or interrupts a request."""

import httpx
import numpy as np
import pytest
import torch
from paceline.buffer.stream.trace import prompt_key
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.policies.acceptance import identity
from transformers import AutoModelForCausalLM, AutoTokenizer
from waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def target_model(rig):
    return AutoModelForCausalLM.from_pretrained(rig.target, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenize(rig):
    tokenizer = AutoTokenizer.from_pretrained(rig.target)
    return lambda text: tokenizer(text, add_special_tokens=False).input_ids


@pytest.fixture(scope="module")
def served(rig):
    """Forty mixed requests: fresh, repeated (cached prefix), very short, ended by stop tokens and stop strings."""
    prompts = [rig.texts[i][200 * i : 200 * i + 150 + 20 * i] for i in range(8)]
    fresh = [{"rid": f"fresh-{i}", "text": text, "max_tokens": 48} for i, text in enumerate(prompts)]
    replies = rig.generate_all(fresh)
    waves = [
        [{**job, "rid": f"again-{i}"} for i, job in enumerate(fresh)],
        [
            {"rid": f"short-{i}", "text": text + " = x", "max_tokens": n}
            for i, (text, n) in enumerate(zip(prompts, (1, 2, 3, 5, 17, 33, 47, 48), strict=True))
        ],
        [
            {**job, "rid": f"token-{i}", "ignore_eos": False, "stop_token_ids": [replies[i]["output_ids"][12 + i]]}
            for i, job in enumerate(fresh)
        ],
        [{**job, "rid": f"string-{i}", "stop": [replies[i]["text"][20:23]]} for i, job in enumerate(fresh)],
    ]
    answers = {reply["meta_info"]["id"]: reply for reply in replies}
    texts = {job["rid"]: job["text"] for job in fresh}
    for wave in waves:
        answers |= {reply["meta_info"]["id"]: reply for reply in rig.generate_all(wave)}
        texts |= {job["rid"]: job["text"] for job in wave}
    rig.drained()
    return answers, texts


def one_trace_each(rig, answers):
    found = {entry.trace.request_id: entry.trace for entry in rig.buffer.replay(10_000)}
    return {rid: found[rid] for rid, reply in answers.items() if reply["meta_info"]["completion_tokens"] > 1}


def test_tokens_and_accepted_counts_equal_the_answers(rig, served, tokenize):
    answers, texts = served
    traces = one_trace_each(rig, answers)
    assert len(answers) == 40
    assert len(traces) >= 20  # an answer of one token, like one that met its stop string at once, has no verify round
    for rid, trace in traces.items():
        meta = answers[rid]["meta_info"]
        assert trace.tokens[trace.context_len :].tolist() == answers[rid]["output_ids"], rid
        assert trace.tokens[: trace.context_len].tolist() == tokenize(texts[rid])[trace.offset :], rid
        assert int(trace.rounds.accepted.sum()) == meta["spec_num_correct_drafts"], rid
        assert len(trace.rounds) == meta["spec_verify_ct"], rid
        assert trace.finish == meta["finish_reason"]["type"], rid


def test_a_cached_prefix_is_left_out_and_its_length_recorded_and_the_prompt_known(rig, served, tokenize):
    answers, texts = served
    traces = one_trace_each(rig, answers)
    cached = {rid: trace for rid, trace in traces.items() if rid.startswith("again")}
    assert all(trace.offset == answers[rid]["meta_info"]["cached_tokens"] > 0 for rid, trace in cached.items())
    keys = {rid: prompt_key(tokenize(texts[rid])) for rid in cached}
    assert {rid: trace.prompt for rid, trace in cached.items()} == keys
    assert [traces[f"fresh-{i}"].prompt for i in range(8)] == [keys[f"again-{i}"] for i in range(8)]
    assert not any(trace.replay_exact for trace in cached.values())
    assert sum(trace.replay_exact for trace in traces.values()) >= 8


def test_features_and_teacher_equal_transformers_also_after_the_rejection(rig, served, target_model, tokenize):
    answers, texts = served
    rejected = 0
    for rid, trace in one_trace_each(rig, answers).items():
        whole = tokenize(texts[rid])[: trace.offset] + trace.tokens.tolist()
        with torch.no_grad():
            out = target_model(torch.tensor([whole]), output_hidden_states=True)
        wanted = torch.cat([out.hidden_states[layer + 1] for layer in (0, 1, 2)], dim=-1)[0, trace.offset :]
        # The last token has no features yet, unless it is a draft that max_tokens let the round end on.
        is_draft_last = int(trace.rounds.starts[-1] + trace.rounds.accepted[-1]) + 1 >= len(trace.tokens)
        assert len(trace.features) == len(trace.tokens) - (not is_draft_last)
        assert np.abs(trace.features - wanted[: len(trace.features)].numpy()).max() < 2e-3
        if rid.startswith("fresh"):
            rejected += assert_teacher_is_right(trace, target_model)
    assert rejected > 100


def assert_teacher_is_right(trace, model):
    """Every verified node's best token, on the path that was really proposed; returns how many follow a rejection."""
    rejected = 0
    assert trace.rounds.teacher_ids.shape[2] == 1
    assert not trace.rounds.teacher_logprobs.any()  # greedy: all of the mass on it
    for r in range(0, len(trace.rounds), 3):
        start = int(trace.rounds.starts[r])
        path = trace.tokens[: start + 1].tolist() + trace.rounds.drafted[r].tolist()
        with torch.no_grad():
            logits = model(torch.tensor([path])).logits[0, start:]
        got = logits.gather(1, torch.from_numpy(trace.rounds.teacher_ids[r].astype(np.int64)))
        assert float((logits.max(dim=-1, keepdim=True).values - got).max()) < 1e-3
        rejected += trace.rounds.drafted.shape[1] - int(trace.rounds.accepted[r])
    return rejected


def test_replaying_the_draft_that_served_gives_the_served_counts(rig, served):
    answers, _ = served
    traces = list(one_trace_each(rig, answers).values())
    draft = load_draft(rig.draft, load_target_embedding(rig.target))
    pairs = [identity(trace, runs) for trace, runs in zip(traces, replay_traces(draft, traces, rig.steps), strict=True)]
    compared = sum(compared for _, compared in pairs)
    assert compared > 300
    assert sum(equal for equal, _ in pairs) == compared


def test_an_aborted_request_leaves_a_trace_of_what_was_seen_and_counts_that_add_up(rig):
    body = {"rid": "aborted", "text": rig.texts[3][:200], "stream": True}
    body["sampling_params"] = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": 400}
    with httpx.stream(
        "POST", f"http://127.0.0.1:{rig.port}/generate", json=body, timeout=60.0, trust_env=False
    ) as lines:
        chunks = (line for line in lines.iter_lines() if line.startswith("data: {"))
        for _ in range(5):
            next(chunks)
    until(lambda: rig.traces_of("aborted"), "the aborted request's trace")
    (trace,) = rig.traces_of("aborted")
    assert trace.finish == "abort"
    assert 1 < trace.committed_len < 400
    status = rig.drained()
    assert status.account.captured == status.account.delivered + sum(status.account.dropped.values())


def test_retracted_requests_lose_no_token(rig):
    # They must be such as could end early: what ignores EOS, 0.5.23 lets in only when all of it fits.
    may_end = {"max_tokens": 300, "ignore_eos": False}
    replies = rig.generate_all([{"rid": f"long-{i}", "text": rig.texts[i][:120], **may_end} for i in range(8)])
    assert any(reply["meta_info"]["num_retractions"] for reply in replies)
    rig.drained()
    for reply in replies:
        traces = rig.traces_of(reply["meta_info"]["id"])
        committed = [token for trace in traces for token in trace.tokens[trace.context_len :].tolist()]
        assert committed == reply["output_ids"]
        assert sum(int(t.rounds.accepted.sum()) for t in traces) == reply["meta_info"]["spec_num_correct_drafts"]


def test_prefill_in_chunks_is_one_trace_window(rig, tokenize):
    text = rig.texts[5][:900]
    assert len(tokenize(text)) > 2 * rig.chunk_tokens
    reply = rig.generate("chunked", text, max_tokens=12)
    rig.drained()
    (trace,) = rig.traces_of("chunked")
    assert trace.offset + trace.context_len == len(tokenize(text))
    assert trace.tokens[trace.context_len :].tolist() == reply["output_ids"]


@pytest.mark.guarantee("opt-out")
def test_a_client_may_opt_out_and_name_its_tenant(rig):
    rig.generate("private", rig.texts[6][:200], custom_params={"paceline_opt_out": True})
    rig.generate("named", rig.texts[6][:210], custom_params={"paceline_tenant": "acme"})
    rig.drained()
    assert rig.traces_of("private") == []
    assert [trace.tenant for trace in rig.traces_of("named")] == ["acme"]
    until(lambda: "opted_out" in rig.status().skipped, "the scheduler to report whom it skipped")
    assert rig.status().skipped["opted_out"] == 1


def test_a_client_may_name_a_label_and_an_odd_one_is_captured_without(rig):
    before = rig.status().account.labels_refused
    rig.generate("labelled", rig.texts[6][:220], custom_params={"paceline_label": "chat/de"})
    rig.generate("odd-label", rig.texts[6][:230], custom_params={"paceline_label": {"no": "text"}})
    rig.drained()
    labels = {name: {trace.label for trace in rig.traces_of(name)} for name in ("labelled", "odd-label")}
    assert labels == {"labelled": {"chat/de"}, "odd-label": {""}}
    until(lambda: rig.status().account.labels_refused == before + 1, "the courier to report the label that it refused")


def test_a_batch_of_which_a_part_opted_out_is_captured_for_the_rest_alone(rig):
    jobs = [{"rid": f"mixed-{i}", "text": rig.texts[i][300:480], "max_tokens": 24} for i in range(8)]
    for job in jobs[::2]:
        job["custom_params"] = {"paceline_opt_out": True}
    replies = rig.generate_all(jobs)
    rig.drained()
    for i, reply in enumerate(replies):
        traces = rig.traces_of(f"mixed-{i}")
        assert len(traces) == i % 2
        for trace in traces:
            assert trace.tokens[trace.context_len :].tolist() == reply["output_ids"]
            assert int(trace.rounds.accepted.sum()) == reply["meta_info"]["spec_num_correct_drafts"]


def test_redis_may_go_and_come_back_while_requests_are_served(rig):
    before = rig.generate("redis-before", rig.texts[7][:200])
    rig.drained()
    rig.redis.stop()
    try:
        during = rig.generate_all([{"rid": f"redis-gone-{i}", "text": rig.texts[7][:200]} for i in range(4)])
    finally:
        rig.redis.start()
    assert [reply["output_ids"] for reply in during] == [before["output_ids"]] * 4
    until(lambda: rig.status().buffer_error == "", "the replica to find Redis again")
    status = rig.drained()
    assert status.account.captured == status.account.delivered + sum(status.account.dropped.values())
    assert all(rig.traces_of(f"redis-gone-{i}") for i in range(4))  # the backlog outlived the gap


def test_every_captured_trace_is_in_the_buffer(rig):
    status, counts = rig.drained(), rig.buffer.counts()
    assert status.account.captured == status.account.delivered + sum(status.account.dropped.values())
    assert status.account.delivered == counts.delivered == counts.pending
    assert set(status.account.dropped) <= {"no_rounds"}
