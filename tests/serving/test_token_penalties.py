"""Penalties of every verified node, against an account kept token by token; ends of answers."""

import random
from array import array
from types import SimpleNamespace

import pytest
import torch
from paceline.serving.target.sglang_tokens import SglangTokens
from paceline.serving.target.token_penalties import chain_paths, tree_paths

V, W = 50, 4
KINDS = {
    "frequency": {"frequency_penalty": 0.8},
    "presence": {"presence_penalty": -0.7},
    "repetition": {"repetition_penalty": 1.2},
    "min_new_tokens": {"min_new_tokens": 9, "stop_token_ids": {4, 7, V + 3}},
    "all": {"frequency_penalty": 0.3, "presence_penalty": 0.1, "repetition_penalty": 0.9, "min_new_tokens": 7},
    "none": {},
}


def request(kind, output):
    params = {
        "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0,
        "stop_token_ids": None, "stop_strs": [], "stop_regex_strs": [],
    }  # fmt: skip
    tokenizer = SimpleNamespace(eos_token_id=2, additional_stop_token_ids={11})
    return SimpleNamespace(
        sampling_params=SimpleNamespace(**params | KINDS[kind]), output_ids=array("q", output), tokenizer=tokenizer,
        eos_token_ids={5}, origin_input_ids=[1],
    )  # fmt: skip


def as_without_speculation(reqs, tokens, logits):
    """`logits` after the `tokens` of every request, by the definition of each penalty, one token at a time."""
    out = []
    for req, answered, row in zip(reqs, tokens, logits, strict=True):
        params, edited = req.sampling_params, row.clone()
        frequency, seen = torch.zeros(V), torch.zeros(V, dtype=torch.bool)
        for token in answered:
            frequency[token] += params.frequency_penalty
            seen[token] = True
        for token in range(V):
            edited[token] += -frequency[token] - (params.presence_penalty if seen[token] else 0.0)
            if len(answered) < params.min_new_tokens and token in {2, 5, 11} | (params.stop_token_ids or set()):
                edited[token] = -torch.inf
            if seen[token]:
                scale = params.repetition_penalty
                edited[token] = edited[token] * scale if edited[token] < 0 else edited[token] / scale
        out.append(edited)
    return torch.stack(out)


def verify(reqs, seed, tree=None):
    """A round of these requests: (what is verified, its batch, its logits, the way to every node)."""
    width = len(tree[0]) if tree else W
    made = torch.Generator().manual_seed(seed)
    drafts = torch.randint(V, (len(reqs), width), generator=made)
    drafts[:, 0] = torch.tensor([req.output_ids[-1] for req in reqs])
    drafts[:, -1] = drafts[:, 0]  # so that something comes again within the round
    logits = torch.randn(len(reqs) * width, V, generator=made)
    children, siblings = (torch.tensor([row] * len(reqs)) for row in tree or ([-1] * width, [-1] * width))
    info = SimpleNamespace(acc_additive_penalties=torch.zeros(len(reqs), V), acc_scaling_penalties=None)
    verified = SimpleNamespace(
        draft_token=drafts.flatten().int(), draft_token_num=width, tree_topk=2 if tree else 1,
        retrieve_next_token=children, retrieve_next_sibling=siblings,
    )  # fmt: skip
    return verified, SimpleNamespace(reqs=reqs, device="cpu", sampling_info=info), logits, drafts


def sampled(tokens, verified, batch, logits):
    """The logits that SGLang's eagle_sample meets, and the penalties that it is left to apply."""
    met = []

    def sample(_input, batch, output, *, watermark_state):
        met.append((output.next_token_logits.clone(), batch.sampling_info.acc_additive_penalties))
        return "result"

    output = SimpleNamespace(next_token_logits=logits)
    assert tokens.around_verify(sample, verified, batch, output, watermark_state=None) == "result"
    return met[0]


def reqs_of_all_kinds(seed):
    rng = random.Random(seed)
    return [request(kind, [rng.randrange(V) for _ in range(rng.randint(1, 12))]) for kind in KINDS]


@pytest.mark.parametrize("seed", range(5))
def test_every_node_of_a_chain_has_the_penalties_of_decoding_without_speculation(seed):
    reqs, tokens = reqs_of_all_kinds(seed), SglangTokens()
    verified, batch, logits, drafts = verify(reqs, seed)
    before = [
        [*req.output_ids, *drafts[row, 1 : node + 1].tolist()] for row, req in enumerate(reqs) for node in range(W)
    ]
    expected = as_without_speculation([req for req in reqs for _ in range(W)], before, logits)
    kept = batch.sampling_info.acc_additive_penalties
    found, left = sampled(tokens, verified, batch, logits)
    assert left is None
    assert torch.equal(found, expected)
    assert batch.sampling_info.acc_additive_penalties is kept
    assert not tokens.fault


@pytest.mark.parametrize("seed", range(2))
def test_every_place_of_a_block_has_them_too_and_sglang_adds_none_of_its_own(seed):
    reqs, tokens, met = reqs_of_all_kinds(seed), SglangTokens(), []
    verified, batch, logits, drafts = verify(reqs, seed)
    info = batch.sampling_info
    info.penalizer_orchestrator = "SGLang's"
    batch.spec_info, batch.forward_mode = verified, SimpleNamespace(is_extend=lambda: False)

    def adjust(*, next_token_logits, sampling_info, draft_token_num):
        left = sampling_info.acc_additive_penalties, sampling_info.penalizer_orchestrator
        met.append((next_token_logits.clone(), *left, draft_token_num))

    tokens.before_block(None, batch)
    given = {"next_token_logits": logits, "sampling_info": info, "draft_token_num": W}
    tokens.around_adjust(adjust, **given)
    before = [
        [*req.output_ids, *drafts[row, 1 : node + 1].tolist()] for row, req in enumerate(reqs) for node in range(W)
    ]
    found, *rest = met.pop()
    assert torch.equal(
        found, as_without_speculation([req for req in reqs for _ in range(W)], before, verify(reqs, seed)[2])
    )
    assert rest == [None, None, W]
    assert info.penalizer_orchestrator == "SGLang's"
    reqs[0].output_ids = None  # a fault leaves the block to SGLang
    reqs[0].sampling_params.frequency_penalty = 1.0
    tokens.around_adjust(adjust, **given)
    assert met.pop()[1:3] == (info.acc_additive_penalties, "SGLang's")
    info.acc_additive_penalties = None
    tokens.around_adjust(adjust, **given)
    assert len(met) == 1


#: Nodes of a tree: root 0 with children 1 and 2, node 1 with children 3 and 4, node 3 with child 5.
TREE = [1, 3, -1, 5, -1, -1], [-1, 2, -1, 4, -1, -1]
WAYS = [[], [1], [2], [1, 3], [1, 4], [1, 3, 5]]


def test_every_node_of_a_tree_has_the_penalties_of_its_own_path():
    reqs, tokens = reqs_of_all_kinds(7), SglangTokens()
    verified, batch, logits, drafts = verify(reqs, 7, tree=TREE)
    before = [[*req.output_ids, *drafts[row, way].tolist()] for row, req in enumerate(reqs) for way in WAYS]
    expected = as_without_speculation([req for req in reqs for _ in WAYS], before, logits)
    found, _ = sampled(tokens, verified, batch, logits)
    assert torch.equal(found, expected)


def test_a_chain_is_a_tree_with_one_child_each():
    assert torch.equal(tree_paths([1, 2, 3, -1], [-1] * 4, "cpu"), chain_paths(4, "cpu"))


def test_a_prefill_counts_what_a_request_was_answered_before_it():
    reqs, tokens = [*reqs_of_all_kinds(3), request("all", [])], SglangTokens()
    expected = as_without_speculation(reqs, [req.output_ids for req in reqs], torch.ones(len(reqs), V))
    info = SimpleNamespace(
        acc_additive_penalties=torch.zeros(len(reqs), V), acc_scaling_penalties=torch.ones(len(reqs), V)
    )
    info.acc_additive_penalties[-1] = expected[-1] - 1.0  # of a request without an answer yet, as SGLang left it
    mode = SimpleNamespace(is_extend=lambda: True)
    tokens.before_forward(None, SimpleNamespace(reqs=reqs, device="cpu", sampling_info=info, forward_mode=mode))
    found = 1.0 + info.acc_additive_penalties
    found = torch.where(found < 0, found * info.acc_scaling_penalties, found / info.acc_scaling_penalties)
    assert torch.equal(found, expected)


def test_a_fault_leaves_the_round_to_sglang_and_three_in_a_row_leave_all():
    tokens = SglangTokens()
    for faults in range(1, 5):
        verified, batch, logits, _ = verify([request("frequency", [3]), request("presence", [4])], faults)
        batch.reqs[1].output_ids = None  # met when the first request's logits are made already
        before = logits.clone()
        found, left = sampled(tokens, verified, batch, logits)
        assert torch.equal(found, before)
        assert left is batch.sampling_info.acc_additive_penalties
        assert bool(tokens.fault) == (faults >= 3)


def test_without_penalties_nothing_is_asked_of_a_round():
    tokens, seen = SglangTokens(), []
    tokens.after_verify = lambda *arguments: seen.append(arguments)
    batch = SimpleNamespace(sampling_info=SimpleNamespace(acc_additive_penalties=None))  # no `reqs` to read
    assert tokens.around_verify(lambda *_: "result", "input", batch, "output") == "result"
    assert seen == [("result", "input", batch, "output")]


def test_the_last_result_is_committed_before_a_batch_with_penalties_is_launched():
    tokens = SglangTokens()

    def asked(batch, waiting):
        return tokens.after_overlaps(False, SimpleNamespace(result_queue=waiting), batch, None)

    def batch(is_required):
        return SimpleNamespace(
            sampling_info=SimpleNamespace(penalizer_orchestrator=SimpleNamespace(is_required=is_required))
        )

    assert asked(batch(is_required=True), ["result"]) is True
    assert asked(batch(is_required=True), []) is None
    assert asked(batch(is_required=False), ["result"]) is None
    assert asked(None, ["result"]) is None
    assert asked(SimpleNamespace(sampling_info=None), ["result"]) is None


class Request:
    """Ends at the first of its `texts`, in their order, that SGLang finds in what it was answered; as SGLang's does."""

    def __init__(self, texts):
        self.sampling_params = SimpleNamespace(stop_strs=texts, stop_regex_strs=[])
        self.output_ids, self.grammar, self.to_finish = array("q"), None, None
        self.reason = self.finished_len = None

    def finished(self):
        return self.reason is not None

    def update(self, new_tokens):
        if self.finished():
            return
        text = "".join(map(chr, self.output_ids[-new_tokens - 2 :]))
        found = [stop for stop in self.sampling_params.stop_strs if stop in text]
        if found:
            self.reason = found[0]
        elif chr(0) in text[-new_tokens:] or (self.grammar is not None and self.grammar.is_terminated()):
            self.reason = "EOS"


def answer(text, cuts, texts):
    """(what is shown of it, why it ended) where `text` arrives in rounds that end at `cuts`."""
    req, tokens = Request(texts), SglangTokens()
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        req.output_ids.extend(map(ord, text[begin:end]))
        tokens.around_finish(Request.update, req, end - begin)
        if req.finished():
            break
    return "".join(map(chr, req.output_ids[: req.finished_len])), req.reason


@pytest.mark.parametrize("texts", [["b"], ["c", "b"], ["cab", "b"], ["d"]], ids=str)
def test_an_answer_ends_at_the_same_token_however_many_come_in_a_round(texts):
    rng = random.Random(0)
    for _ in range(40):
        text = "".join(rng.choice("aaabc\0") for _ in range(12))
        cuts = sorted(rng.sample(range(1, 12), 3))
        assert answer(text, cuts, texts) == answer(text, range(1, 12), texts), (text, cuts)


def test_a_grammar_that_has_ended_ends_the_answer_at_its_last_token():
    req = Request(["z"])
    req.output_ids.extend([1, 2, 3])
    req.grammar = SimpleNamespace(is_terminated=lambda: True)
    SglangTokens().around_finish(Request.update, req, 3)
    assert (list(req.output_ids), req.finished_len, req.reason) == ([1, 2, 3], None, "EOS")
    assert req.grammar.is_terminated()


def test_a_fault_of_sglang_loses_no_token():
    req = Request(["z"])
    req.output_ids.extend([1, 2, 3])
    with pytest.raises(ZeroDivisionError):
        SglangTokens().around_finish(lambda *_: 1 / 0, req, 3)
    assert list(req.output_ids) == [1, 2, 3]
