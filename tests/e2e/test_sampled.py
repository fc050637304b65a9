"""Above temperature 0 the real server emits what plain sampling would, under both rules, and its traces say which."""

import json
import math
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import torch
from paceline.buffer.config import BufferConfig
from paceline.buffer.stream.trace import VerdictRule
from paceline.learner.judging.replay import replay_logprobs, replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.policies.acceptance import identity
from paceline.policies.rejection import EstimatedRounds, served_beside_expected, why_not_estimated
from paceline.rig.models.corpus import load_corpus
from paceline.serving.config import ServingConfig
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

LENGTH = 3
TEMPERATURE, TOP_K, TOP_P = 0.7, 12, 0.8
FREE, CUT, GREEDY = 600, 300, 60  # requests: tempered alone, cut by top-k and top-p, greedy among them
SURPRISE = 1e-6  # the batches a request lands in are not repeatable, so neither are its coins
LONG, LONG_TOKENS = 24, 40  # requests with a prompt each, and tokens of their answers
RULES = {"rig_elsewhere": VerdictRule.TARGET_ONLY, "rejecting_rig": VerdictRule.REJECTION}  # by fixture


class Target:
    """The exact distribution of what follows one prompt, from transformers."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        encode = AutoTokenizer.from_pretrained(folder)
        held_out = [text for text in load_corpus(("py",))["py"].held_out if len(text) > 3000]
        prompts = [encode(text[400:500], add_special_tokens=False).input_ids for text in held_out[:24]]
        self.prompt = max(prompts, key=lambda prompt: len(self.texts(prompt, tempered)))

    def logits(self, contexts):
        with torch.no_grad():
            return self.model(torch.tensor(contexts)).logits[:, -1]

    def texts(self, prompt, law, length=LENGTH, floor=8 / FREE):
        """Every text of `length` tokens that is at least as probable as `floor`."""
        found = {(): 1.0}
        for place in range(length):
            if not found:
                break  # a flat target: no text is that probable
            probs = law(self.logits([[*prompt, *text] for text in found]), place)
            found = {
                (*text, token): mass * float(row[token])
                for (text, mass), row in zip(found.items(), probs, strict=True)
                for token in (row * mass >= floor).nonzero().flatten().tolist()
            }
        return found

    def greedy(self):
        text = list(self.prompt)
        for _ in range(LENGTH):
            text.append(int(self.logits([text]).argmax()))
        return text[len(self.prompt) :]


def tempered(logits, _place):
    return (logits.double() / TEMPERATURE).softmax(-1)


def cut(logits, place):
    """top-k, then top-p: of what top-k kept after a draft, of the whole in the prefill, whose limits apply jointly."""
    best, token = tempered(logits, place).sort(dim=-1, descending=True)
    mass_before = best.cumsum(-1) - best
    whole = best[:, :TOP_K].sum(-1, keepdim=True) if place else 1.0
    kept = best * (mass_before < TOP_P * whole) * (torch.arange(best.shape[-1]) < TOP_K)
    return torch.zeros_like(kept).scatter(-1, token, kept / kept.sum(-1, keepdim=True))


def p_value(seen, expected):
    """Chi-square of the texts `seen` against the probable ones; all others are one cell."""
    counts, total = Counter(seen), len(seen)
    cells = sorted(((counts[text], total * mass) for text, mass in expected.items()), key=lambda cell: -cell[1])
    rest = total - sum(count for count, _ in cells), total - math.fsum(mean for _, mean in cells)
    while rest[1] < 5:  # too little for a cell of its own
        count, mean = cells.pop()
        rest = rest[0] + count, rest[1] + mean
    cells.append(rest)
    return chisquare([count for count, _ in cells], [mean for _, mean in cells]).pvalue


@pytest.fixture(scope="module")
def target(models):
    return Target(models[0])


@pytest.fixture(scope="module", params=RULES, ids=["target_only", "rejection"])
def served(request, target):
    """Rule, answers by kind of request, and their traces, from a server that saw the kinds mixed."""
    rig = request.getfixturevalue(request.param)
    answers = ask(rig.port, target.prompt)
    rig.drained()
    return RULES[request.param], answers, [entry.trace for entry in rig.buffer.replay(10_000)]


def ask(port, prompt):
    """Completions of the one prompt, 8 at a time; tokens by request id."""
    limits = {"top_k": TOP_K, "top_p": TOP_P}
    jobs = [(f"free-{i}", {"temperature": TEMPERATURE}) for i in range(FREE)]
    jobs += [(f"cut-{i}", {"temperature": TEMPERATURE, **limits}) for i in range(CUT)]
    jobs += [(f"greedy-{i}", {"temperature": 0.0}) for i in range(GREEDY)]
    random.Random(0).shuffle(jobs)

    def complete(job):
        rid, sampling = job
        params = {"ignore_eos": True, "max_new_tokens": LENGTH, **sampling}
        body = {"rid": rid, "input_ids": prompt, "sampling_params": params}
        reply = client.post(f"http://127.0.0.1:{port}/generate", json=body)
        return rid, json.loads(reply.content)["output_ids"]

    with httpx.Client(timeout=300.0, trust_env=False) as client, ThreadPoolExecutor(8) as pool:
        return dict(pool.map(complete, jobs))


def of_kind(answers, kind):
    return [tokens for rid, tokens in answers.items() if rid.startswith(kind)]


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize(("kind", "law"), [("free", tempered), ("cut", cut)])
def test_texts_come_with_their_probability_under_the_target(served, target, kind, law, length):
    _, answers, _ = served
    seen = [tuple(tokens[:length]) for tokens in of_kind(answers, kind)]
    expected = target.texts(target.prompt, law, length, floor=8 / len(seen))
    assert len(expected) >= 3
    assert p_value(seen, expected) > SURPRISE


def test_greedy_requests_among_them_stay_greedy(served, target):
    _, answers, _ = served
    assert of_kind(answers, "greedy") == [target.greedy()] * GREEDY


def test_traces_name_the_rule_each_request_was_judged_by(served):
    rule, answers, traces = served
    assert sorted(trace.request_id for trace in traces) == sorted(answers)  # one each, and of no other request
    judged = Counter((trace.request_id.partition("-")[0], trace.verdict_rule, trace.sampling) for trace in traces)
    assert {(kind, found): count for (kind, found, _), count in judged.items()} == {
        ("free", rule): FREE, ("cut", rule): CUT, ("greedy", VerdictRule.GREEDY): GREEDY,
    }  # fmt: skip
    recorded = {(kind, s.temperature, s.top_k if kind == "cut" else 0, s.top_p) for kind, _, s in judged}
    assert recorded == {("free", TEMPERATURE, 0, 1.0), ("cut", TEMPERATURE, TOP_K, TOP_P), ("greedy", 0.0, 0, 1.0)}
    for trace in traces:
        assert trace.tokens[trace.context_len :].tolist() == answers[trace.request_id]


def test_sampled_requests_bring_the_targets_top_k_at_every_node_and_greedy_ones_its_best(served, target):
    _, _, traces = served
    seen = Counter()
    for trace in sorted(traces, key=lambda trace: trace.request_id)[::20]:
        width = (
            1
            if trace.verdict_rule is VerdictRule.GREEDY
            else ServingConfig(redis_url=None, buffer=BufferConfig()).teacher_top_k
        )
        rounds = trace.rounds
        for r, start in enumerate(rounds.starts.tolist()):
            before = [*target.prompt[: trace.offset], *trace.tokens[: start + 1].tolist()]  # the prefix was cached
            with torch.no_grad():
                logits = target.model(torch.tensor([[*before, *rounds.drafted[r].tolist()]])).logits[0]
            wanted = logits[len(before) - 1 :].log_softmax(-1).topk(width)
            got = torch.tensor(rounds.teacher_logprobs[r]).float()
            assert got.shape == wanted.values.shape, trace.request_id
            assert (got - wanted.values * (width > 1)).abs().max() < 2e-2  # float16 on the wire; greedy ones bring 0
            seen[width] += int((torch.tensor(rounds.teacher_ids[r]) == wanted.indices).sum())
            seen[-width] += wanted.indices.numel()
    assert all(seen[width] > 0.99 * seen[-width] > 0 for width in (1, 4))  # equals may come in any order


def test_rejection_sampling_records_the_chance_of_every_committed_token_under_target_and_draft(served, target):
    rule, _, traces = served
    drafted = accepted = 0
    estimates = []
    for trace in traces:
        rid = trace.request_id
        chances = trace.rounds.committed_logprobs
        if rule is VerdictRule.TARGET_ONLY or rid.startswith("greedy"):
            assert chances is None, rid
            continue
        for r, (start, kept) in enumerate(zip(trace.rounds.starts, trace.visible_accepted(), strict=True)):
            committed = trace.tokens[start + 1 : start + kept + 2]
            known = chances[r, : len(committed), 0]
            if rid.startswith("cut"):
                assert np.isnan(known).all(), rid
                continue
            before = [*target.prompt[: trace.offset], *trace.tokens[: start + 1 + kept].tolist()]
            with torch.no_grad():
                logits = target.model(torch.tensor([before])).logits[0, -1 - kept :].double()
            wanted = (logits / TEMPERATURE).log_softmax(-1).gather(1, torch.tensor(committed).long()[:, None])[:, 0]
            np.testing.assert_allclose(known, wanted[: len(known)].numpy(), atol=1e-3, err_msg=rid)
            if rid.startswith("free") and start + 1 < len(trace.tokens):
                estimates.append(min(1.0, float(np.exp(chances[r, 0, 1] - chances[r, 0, 0]))))
                accepted, drafted = accepted + int(trace.rounds.accepted[r] > 0), drafted + 1
    if rule is VerdictRule.REJECTION:
        # What another draft would have had accepted can be estimated from these: here for the one that served.
        share, estimate = accepted / drafted, float(np.mean(estimates))
        noise = math.sqrt((share * (1 - share) + float(np.var(estimates))) / drafted)
        assert abs(share - estimate) < 5 * noise


def test_some_drafts_are_rejected_and_under_rejection_sampling_some_are_accepted(served):
    rule, _, traces = served
    accepted = sum(int(trace.rounds.accepted.sum()) for trace in traces)
    assert accepted < sum(trace.rounds.drafted.size for trace in traces)
    assert accepted > 0 or rule is VerdictRule.TARGET_ONLY  # there only its first choice is ever proposed


@pytest.fixture(scope="module")
def long_traces(request, served):
    """Traces of requests whose prompts no other one shares: a prefix from the cache is nothing to replay from."""
    rule, _, _ = served
    rig = request.getfixturevalue(next(name for name, of in RULES.items() if of is rule))
    texts = [rig.texts[i % len(rig.texts)][700 + 150 * (i // len(rig.texts)) :][:120] for i in range(LONG)]
    rig.generate_all(
        [
            {"rid": f"long-{i}", "text": text, "max_tokens": LONG_TOKENS, "temperature": TEMPERATURE}
            for i, text in enumerate(texts)
        ]
    )
    rig.drained()
    return [entry.trace for entry in rig.buffer.replay(10_000) if entry.trace.request_id.startswith("long-")]


def test_replay_of_the_draft_that_served_gives_what_was_served_or_its_expectation(served, long_traces, models):
    rule, _, _ = served
    traces = [trace for trace in long_traces if trace.replay_exact]
    assert len(traces) >= LONG // 2
    draft = load_draft(models[1], load_target_embedding(models[0]))
    if rule is VerdictRule.TARGET_ONLY:
        pairs = [identity(trace, runs) for trace, runs in zip(traces, replay_traces(draft, traces, 3), strict=True)]
        assert sum(equal for equal, _ in pairs) == sum(compared for _, compared in pairs) > 10 * len(traces)
        return
    whole = EstimatedRounds()
    for trace, logq in zip(traces, replay_logprobs(draft, traces, 3), strict=True):
        assert why_not_estimated(trace) == ""
        rounds = trace.rounds
        kept = trace.visible_accepted()
        for r, start in enumerate(rounds.starts.tolist()):
            known = min(int(kept[r]) + 1, len(trace.tokens) - 1 - start, 3)
            np.testing.assert_allclose(logq[start, :known], rounds.committed_logprobs[r, :known, 1], atol=2e-3)
        whole += served_beside_expected(trace, logq)
    assert whole.rounds == sum(len(trace.rounds) for trace in traces)
    assert abs(whole.accepted - whole.expected) < 5 * math.sqrt(whole.variance)
    assert whole.variance > 0
