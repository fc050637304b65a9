"""A Llama without flags of speculation, for which SGLang drafts trees: a path of each is captured, and replayed."""

import logging
from dataclasses import replace
from time import process_time

import numpy as np
import pytest
import torch
from learned_draft import swap_in_learned
from mtp_targets import glm_of
from paceline.buffer.drafts.single_file import draft_folder
from paceline.buffer.stream.trace import NO_DRAFT, TreeShape, VerdictRule
from paceline.learner.judging.replay import replay_traces
from served_drafts import accept_length, assert_replayed_as_served, loader
from transformers import AutoModelForCausalLM, AutoTokenizer

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.e2e, pytest.mark.servers]

REQUESTS, TOKENS, STEPS = 16, 48, 5
TREE = TreeShape(STEPS, 4, 8)  # what SGLang drafts for a Llama


def serve(rig, label, **sampling):
    texts = [text[:200] for text in rig.texts[:REQUESTS]]
    jobs = [{"rid": f"{label}-{i}", "text": text, "max_tokens": TOKENS, **sampling} for i, text in enumerate(texts)]
    replies = {reply["meta_info"]["id"]: reply for reply in rig.generate_all(jobs)}
    rig.drained()
    found = {entry.trace.request_id: entry.trace for entry in rig.buffer.replay(10_000)}
    return {rid: (reply, found[rid]) for rid, reply in replies.items()}


@pytest.fixture(scope="module")
def first_served(tree_rig):
    """Answers and traces by request id, drafted by random weights."""
    return serve(tree_rig, "first")


@pytest.fixture(scope="module")
def learned_served(tree_rig, first_served):
    """The same requests after a draft that was trained on their traces has been swapped in."""
    folder = swap_in_learned(tree_rig, [trace for _, trace in first_served.values()])
    return folder, serve(tree_rig, "learned")


def test_a_tree_is_captured_and_its_drafts_need_no_canary(tree_rig, first_served):
    status = tree_rig.status()
    assert (status.capture, status.capture_reason, status.swap) == ("on", "", "on")
    assert status.canary_window_s == 0.0


def test_traces_hold_the_accepted_path_as_it_was_served(tree_rig, first_served, learned_served):
    tokenizer = AutoTokenizer.from_pretrained(tree_rig.target)
    rejected = accepted = 0
    for rid, (reply, trace) in (first_served | learned_served[1]).items():
        meta, prompt = reply["meta_info"], tree_rig.texts[int(rid.rpartition("-")[2])][:200]
        assert trace.tokens[trace.context_len :].tolist() == reply["output_ids"], rid
        assert (trace.offset, trace.tree, trace.replay_exact) == (meta["cached_tokens"], TREE, True), rid
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        assert trace.tokens[: trace.context_len].tolist() == ids[trace.offset :], rid
        assert int(trace.rounds.accepted.sum()) == meta["spec_num_correct_drafts"], rid
        assert len(trace.rounds) == meta["spec_verify_ct"], rid
        assert trace.rounds.drafted.shape[1] == STEPS
        proposed = (trace.rounds.drafted != NO_DRAFT).sum(axis=1)
        # At most one draft after the accepted ones: the first that was rejected.
        assert set(proposed - trace.rounds.accepted) <= {0, 1}
        rejected += int((proposed - trace.rounds.accepted).sum())
        accepted += int(trace.rounds.accepted.sum())
    assert rejected > 200
    assert accepted > 200


def test_features_and_teacher_of_the_path_equal_transformers(tree_rig, learned_served):
    model = AutoModelForCausalLM.from_pretrained(tree_rig.target, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tree_rig.target)
    nodes = 0
    for rid, (_, trace) in learned_served[1].items():
        prompt = tokenizer(tree_rig.texts[int(rid.rpartition("-")[2])][:200], add_special_tokens=False).input_ids
        whole = prompt[: trace.offset] + trace.tokens.tolist()
        with torch.no_grad():
            out = model(torch.tensor([whole]), output_hidden_states=True)
        wanted = torch.cat([out.hidden_states[layer + 1] for layer in (0, 1, 2)], dim=-1)[0, trace.offset :]
        assert np.abs(trace.features - wanted[: len(trace.features)].numpy()).max() < 2e-3
        for r in range(0, len(trace.rounds), 2):
            start, drafts = int(trace.rounds.starts[r]), trace.rounds.drafted[r]
            path = whole[: trace.offset + start + 1] + drafts[drafts != NO_DRAFT].tolist()
            with torch.no_grad():
                logits = model(torch.tensor([path])).logits[0, trace.offset + start :]
            best = torch.from_numpy(trace.rounds.teacher_ids[r, : len(logits)].astype(np.int64))
            assert float((logits.max(dim=-1).values - logits.gather(1, best)[:, 0]).max()) < 1e-3
            nodes += len(logits)
    assert nodes > 200


def test_of_a_prompt_longer_than_a_window_only_its_end_is_captured_as_context(tree_rig):
    model = AutoModelForCausalLM.from_pretrained(tree_rig.target, dtype=torch.float32).eval()
    text = tree_rig.texts[3][:1200]
    prompt = AutoTokenizer.from_pretrained(tree_rig.target)(text, add_special_tokens=False).input_ids
    reply = tree_rig.generate("long", text, TOKENS)
    tree_rig.drained()
    (trace,) = tree_rig.traces_of("long")
    assert len(prompt) > 4 * tree_rig.chunk_tokens > 160  # prefilled in chunks of which most are not handed on
    assert trace.offset == len(prompt) + 1 - 160 // 4
    assert trace.tokens[: trace.context_len].tolist() == prompt[trace.offset :]
    assert trace.tokens[trace.context_len :].tolist() == reply["output_ids"]
    assert len(trace.rounds) == reply["meta_info"]["spec_verify_ct"]
    with torch.no_grad():
        out = model(torch.tensor([prompt + reply["output_ids"]]), output_hidden_states=True)
    wanted = torch.cat([out.hidden_states[layer + 1] for layer in (0, 1, 2)], dim=-1)[0, trace.offset :]
    assert len(trace.features) >= len(trace.tokens) - 1
    assert np.abs(trace.features - wanted[: len(trace.features)].numpy()).max() < 2e-3


def test_every_round_is_replayed_as_it_was_served_and_another_draft_as_it_would_be(
    tree_rig, first_served, learned_served
):
    load, (folder, learned) = loader(tree_rig.target), learned_served
    first, second = ([trace for _, trace in each.values()] for each in (first_served, learned))
    assert_replayed_as_served(load(tree_rig.draft), first, STEPS, least_rounds=300)
    assert_replayed_as_served(load(folder), second, STEPS, least_rounds=100)
    # Greedy answers do not depend on the draft: the first one's traces tell what the second one had accepted.
    assert [trace.tokens.tolist() for trace in first] == [trace.tokens.tolist() for trace in second]
    assert accept_length(load(folder), first, STEPS) == accept_length(load(folder), second, STEPS)
    assert accept_length(load(folder), first, STEPS) > 1.5 * accept_length(load(tree_rig.draft), first, STEPS)
    for kind, traces in (("trees", second), ("chains", [replace(trace, tree=None) for trace in second])):
        before_s = process_time()
        replay_traces(load(folder), traces, STEPS, only_verdicts=True)
        per_1000 = 1000 * (process_time() - before_s) / sum(trace.committed_len for trace in traces)
        log.info("replay of 1000 tokens by %s: %.3f s", kind, per_1000)


def test_sampled_rounds_are_replayed_as_they_were_served_too(tree_rig, learned_served):
    warm = [trace for _, trace in serve(tree_rig, "warm", temperature=0.8, top_p=0.9).values()]
    assert {trace.verdict_rule for trace in warm} == {VerdictRule.TARGET_ONLY}
    assert_replayed_as_served(loader(tree_rig.target)(learned_served[0]), warm, STEPS, least_rounds=100)


def test_trees_of_the_layer_that_a_target_brings_are_replayed_too(models, start_rig, tmp_path):
    target = glm_of(models[0], tmp_path / "glm")
    shape = ["--speculative-num-steps", "4", "--speculative-eagle-topk", "3", "--speculative-num-draft-tokens", "8"]
    more = ["--speculative-algorithm", "NEXTN", "--trust-remote-code", "--disable-radix-cache"]
    with start_rig((target, target), tmp_path, more, {"PACELINE_CACHE_DIR": str(tmp_path)}, chain=shape) as rig:
        traces = [trace for _, trace in serve(rig, "layer").values()]
    assert {trace.tree for trace in traces} == {TreeShape(4, 3, 8)}
    assert_replayed_as_served(loader(target)(draft_folder(target, tmp_path / "own")), traces, 4, least_rounds=300)
