"""Which requests of a batch are captured, and the teacher's best token."""

from array import array
from types import SimpleNamespace

import pytest
import torch
from paceline.buffer.stream.trace import Sampling, VerdictRule, prompt_key
from paceline.serving.breaker import Breaker
from paceline.serving.capture import sglang_capture, sglang_requests
from paceline.serving.capture.courier_sender import CourierSender
from paceline.serving.capture.device_output import Chosen, ForwardOutput
from paceline.serving.capture.outbox import Outbox
from paceline.serving.capture.prefill_rows import WindowSizes
from paceline.serving.capture.request_choice import RequestChoice
from paceline.serving.capture.sglang_capture import CaptureSettings, SglangCapture
from paceline.serving.capture.sglang_requests import LABEL_KEY, OPT_OUT_KEY, OPT_OUT_MARK, TENANT_KEY
from paceline.serving.capture.teacher import best_tokens
from paceline.serving.courier.split import split
from paceline.serving.wire.counts import CaptureCounts, DropReason, SkipReason
from paceline.serving.wire.messages import FEATURES, PrefillHead, VerifyHead, arrays_of
from paceline.serving.wire.request_forward import Commit, RequestFacts, TeacherWidth
from sglang_double import batch_of, request

FACTS = RequestFacts(tenant="", sampling=Sampling(), verdict_rule=VerdictRule.GREEDY)


class Draft:
    version = 3


class Target:
    version = "7"


@pytest.fixture
def capture():
    settings = CaptureSettings(TeacherWidth(4, 1), features=True, sizes=WindowSizes(2048, 512))
    return SglangCapture(
        settings, None, RequestChoice(1.0, CaptureCounts(), lambda: Draft.version, lambda: Target.version), Breaker()
    )


def batch(**opted_out):
    """Requests by id, and whether each opted out."""
    return batch_of([request(rid, custom_params={OPT_OUT_KEY: is_out}) for rid, is_out in opted_out.items()])


@pytest.mark.guarantee("odd-requests")
@pytest.mark.parametrize("odd", ["x", [1], 5, True, None, {}])
def test_custom_params_of_any_kind_are_served_and_captured(capture, odd):
    assert capture.choice.is_captured(request("a", top_k=40.0, custom_params=odd))
    facts = sglang_requests.facts_of(request("a", top_k=1, custom_params=odd))
    assert (facts.tenant, facts.sampling) == ("", Sampling(0.0, 1, 1.0, edited=False))
    assert list(map(type, (facts.sampling.top_k, facts.sampling.top_p))) == [int, float]


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens"])
def test_a_trace_says_that_what_was_answered_so_far_edited_the_logits(name):
    req = request("a")
    setattr(req.sampling_params, name, 2)
    assert sglang_requests.facts_of(req).sampling.edited


def test_a_request_is_known_by_the_key_of_its_whole_prompt_also_once_it_has_answered():
    keys = [
        sglang_requests.facts_of(request("a", prompt=array("q", prompt), output=output)).prompt
        for prompt, output in [((5, 6), ()), ((5, 6), (7, 8)), ((5, 7), ()), ((5, 6, 7), ())]
    ]
    assert keys[:2] == [prompt_key((5, 6))] * 2
    assert len(set(keys)) == 3


@pytest.mark.guarantee("labels-are-plain-names", "odd-requests")
@pytest.mark.parametrize(
    ("label", "kept", "is_refused"),
    [
        ("code", "code", False),
        ("chat/de", "chat/de", False),
        ("9" * 128, "9" * 128, False),
        (None, "", False),
        ("", "", False),
        ("9" * 129, "", True),
        ("two words", "", True),
        ("code\n", "", True),
        ("/code", "", True),
        ("c\N{LATIN SMALL LETTER O WITH DIAERESIS}de", "", True),
        (5, "", True),
        (["code"], "", True),
        ({}, "", True),
    ],
)
def test_a_label_is_kept_where_it_is_short_plain_text_and_anything_else_is_captured_without(
    capture, label, kept, is_refused
):
    req = request("a", custom_params={LABEL_KEY: label})
    assert capture.choice.is_captured(req)
    facts = sglang_requests.facts_of(req)
    assert (facts.label, facts.is_label_refused, facts.tenant) == (kept, is_refused, "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"multimodal_inputs": object()}, SkipReason.NOT_TEXT),
        ({"input_embeds": [[0.5]]}, SkipReason.NOT_TEXT),
        ({"custom_params": {OPT_OUT_KEY: True}}, SkipReason.OPTED_OUT),
        ({"extra_key": OPT_OUT_MARK}, SkipReason.OPTED_OUT),
        ({"routing_key": f"{OPT_OUT_MARK}/7"}, SkipReason.OPTED_OUT),
    ],
)
def test_what_is_no_plain_text_request_of_this_target_is_skipped_and_counted(capture, changes, reason):
    served = batch_of([request("a", prompt=range(1), **changes)], extend_lens=[1], prefix_lens=[0])
    capture._before_draft_prefill(None, served, None)
    assert capture._prefill is None
    assert capture.choice._counts.skipped == {reason: 1}


def test_an_adapter_stands_for_label_and_tenant_where_the_client_named_none(capture):
    named = {"custom_params": {LABEL_KEY: "poems", TENANT_KEY: "ann"}}
    reqs = [request("a", lora_id="7f"), request("b", lora_id="7f", **named), request("c"), request("d", lora_id="8e")]
    refs = {"7f": SimpleNamespace(lora_name="poet"), "8e": SimpleNamespace(lora_name="of two words")}
    worker = SimpleNamespace(model_runner=SimpleNamespace(lora_manager=SimpleNamespace(lora_refs=refs)))
    worker = SimpleNamespace(target_worker=worker)
    facts = [sglang_requests.facts_of(req, sglang_requests.adapter_of(worker, req)) for req in reqs]
    assert [(one.label, one.tenant) for one in facts] == [
        ("poet", "poet"), ("poems", "ann"), ("", ""), ("", "of two words")
    ]  # fmt: skip
    assert not any(one.is_label_refused for one in facts)


def test_without_hidden_states_a_request_with_an_adapter_is_skipped_and_counted():
    counts = CaptureCounts()
    choice = RequestChoice(1.0, counts, int, str, takes_adapters=False)
    served = batch_of([request("a", prompt=range(1), lora_id="7f")], extend_lens=[1], prefix_lens=[0])
    assert choice.choose(served, is_prefill=True) is None
    assert counts.skipped == {SkipReason.LORA: 1}


def test_a_skipped_request_counts_once_whatever_chunks_its_prompt_is_read_in_and_however_often(capture):
    out = {"prompt": range(10), "custom_params": {OPT_OUT_KEY: True}}

    def prefill(req, start, count):
        capture._before_draft_prefill(None, batch_of([req], extend_lens=[count], prefix_lens=[start]), None)
        return capture.choice._counts.skipped[SkipReason.OPTED_OUT]

    chunks = [prefill(request("a", **out), start, count) for start, count in [(0, 4), (4, 4), (8, 2)]]
    assert chunks == [0, 0, 1]
    assert prefill(request("a", output=range(3), **out), 0, 13) == 1  # retracted, and read again
    assert prefill(request("b", **out), 9, 1) == 2  # all but its last token is in the radix cache


def test_the_choice_of_an_unchanged_batch_is_remembered_and_of_a_changed_one_made_again(capture, monkeypatch):
    first = capture.choice.choose_again(batch(a=False, b=True))
    assert (first.rows, first.request_ids, first.draft_version) == ((0,), ("a",), 3)
    assert capture.choice.choose_again(batch(a=False, b=True)) is first
    assert capture.choice.choose_again(batch(b=True, a=False)).rows == (1,)
    monkeypatch.setattr(Draft, "version", 4)
    assert capture.choice.choose_again(batch(b=True, a=False)).draft_version == 4
    assert capture.choice.choose_again(batch(b=True, a=False)).target_version == "7"
    monkeypatch.setattr(Target, "version", "7+1")
    assert capture.choice.choose_again(batch(b=True, a=False)).target_version == "7+1"
    assert capture.choice.choose_again(batch()) is None


def test_a_new_request_under_an_old_id_is_chosen_again(capture):
    assert capture.choice.choose_again(batch(a=False)).rows == (0,)
    began = batch_of([request("a", custom_params={OPT_OUT_KEY: True})], extend_lens=[1], prefix_lens=[0])
    capture._before_draft_prefill(None, began, None)  # its prefill: the earlier one of that id has ended
    assert capture.choice.choose_again(batch(a=True)) is None


def test_a_copy_to_the_host_that_fails_costs_its_requests_a_forward_and_raises_nothing():
    lost, breaker = [], Breaker()
    outbox = SimpleNamespace(sender=SimpleNamespace(lose=lost.extend))
    settings = CaptureSettings(TeacherWidth(4, 1), features=True, sizes=WindowSizes(2048, 512))
    capture = SglangCapture(settings, outbox, RequestChoice(1.0, CaptureCounts(), lambda: 3, lambda: "7"), breaker)
    chosen = Chosen(rows=(0,), request_ids=("a",), is_greedy=(True,), draft_version=3, target_version="7")
    forward = ForwardOutput(
        chosen=chosen,
        tensors={"x": torch.zeros(1)},
        make_head=None,
        on_consume=None,
        on_copy_failed=capture._copy_failed,
    )

    def no_pinned_memory(_):
        raise RuntimeError("CUDA error: out of memory")

    assert forward.copy_to_host(no_pinned_memory).consume(None, []) is None
    assert (lost, breaker.faults) == (["a"], 1)


@pytest.mark.parametrize("hook", ["before_draft_prefill", "after_prefill", "after_verify"])
def test_a_fault_in_a_hook_body_raises_nothing_and_loses_the_requests_of_its_forward(hook, monkeypatch):
    lost, breaker = [], Breaker()
    outbox = SimpleNamespace(sender=SimpleNamespace(lose=lost.extend))
    settings = CaptureSettings(TeacherWidth(4, 1), features=True, sizes=WindowSizes(2048, 512))
    capture = SglangCapture(settings, outbox, RequestChoice(1.0, CaptureCounts(), lambda: 3, lambda: "7"), breaker)
    forward = ForwardOutput(
        chosen=Chosen(rows=(0,), request_ids=("a",), is_greedy=(True,), draft_version=3, target_version="7"),
        tensors={},
        make_head=None,
        on_consume=None,
        on_copy_failed=None,
    )
    capture._prefill = forward
    result, served = SimpleNamespace(logits_output=SimpleNamespace()), batch(a=False, b=True)
    arguments = {
        "before_draft_prefill": (None, served, None),
        "after_prefill": (result,),
        "after_verify": (result, None, served, None),
    }[hook]
    assert getattr(capture, hook)(*arguments) is None  # a result of another release: nothing in it is as expected
    assert (lost, breaker.faults) == (["a"], 1)


@pytest.mark.parametrize("hook", ["before_draft_prefill", "after_verify"])
def test_a_fault_in_choosing_loses_every_request_of_the_batch_that_was_to_be_captured(hook, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("choosing")

    lost, breaker = [], Breaker()
    outbox = SimpleNamespace(sender=SimpleNamespace(lose=lost.extend))
    settings = CaptureSettings(TeacherWidth(4, 1), features=True, sizes=WindowSizes(2048, 512))
    capture = SglangCapture(settings, outbox, RequestChoice(1.0, CaptureCounts(), lambda: 3, lambda: "7"), breaker)
    monkeypatch.setattr(capture.choice, "choose", broken)
    served = batch(a=False, b=True, c=False)
    arguments = {"before_draft_prefill": (None, served, None), "after_verify": (None, None, served, None)}[hook]
    assert getattr(capture, hook)(*arguments) is None
    assert (lost, breaker.faults) == (["a", "c"], 1)


class Committed:
    """A verify round of requests a and b at its commit, on a real way to the courier: b ended in the round before."""

    def __init__(self, endpoint):
        self.sender, self.breaker = CourierSender(endpoint, 1 << 20), Breaker()
        self.box = Outbox(self.sender, self.breaker, lambda: False)
        settings = CaptureSettings(TeacherWidth(4, 1), features=True, sizes=WindowSizes(2048, 512))
        self.capture = SglangCapture(
            settings, self.box, RequestChoice(1.0, CaptureCounts(), lambda: 3, lambda: "7"), self.breaker
        )
        commits = (Commit(0, (7,), ""), Commit(0, (7,), "length"))
        self.box.add(self.forward("ab", PrefillHead), commits)
        self.reqs = [self.req("a", ""), self.req("b", "length")]
        self.commits = [SimpleNamespace(output_index=1, token_ids=[8]), None]

    def forward(self, ids, kind=VerifyHead):
        chosen = Chosen(
            rows=(0, 1),
            request_ids=tuple(ids),
            is_greedy=(True, True),
            draft_version=3,
            target_version="7",
            is_prefill=kind is PrefillHead,
        )

        def head(commits, dtype):
            if kind is PrefillHead:
                return PrefillHead(
                    request_ids=chosen.request_ids,
                    draft_version=3,
                    target_version="7",
                    commits=commits,
                    facts=(FACTS,) * 2,
                    spans=((0, 0, 1), (0, 1, 2)),
                    feature_dtype=dtype,
                )
            return VerifyHead(
                request_ids=chosen.request_ids,
                draft_version=3,
                target_version="7",
                commits=commits,
                is_greedy=chosen.is_greedy,
                feature_dtype=dtype,
            )

        return ForwardOutput(
            chosen=chosen,
            tensors={"x": torch.zeros(1)},
            make_head=head,
            on_consume=self.capture._consume,
            on_copy_failed=None,
        )

    @staticmethod
    def req(rid, finish):
        reason = SimpleNamespace(to_json=lambda: {"type": finish})
        return SimpleNamespace(rid=rid, finished=lambda: bool(finish), finished_reason=reason)

    def consume(self):
        assert self.forward("ab").consume(SimpleNamespace(reqs=self.reqs), self.commits) is None


@pytest.fixture
def committed(tmp_path):
    made = Committed(f"ipc://{tmp_path}/line")
    yield made
    made.sender.close()


def test_the_requests_of_a_batch_must_be_those_of_its_forward(committed, caplog):
    committed.reqs[0].rid = "c"
    committed.consume()
    assert "requests of a forward: got ('c', 'b'), expected ('a', 'b')" in caplog.text
    assert committed.breaker.faults == 1
    assert committed.sender._lost.message_fields()["lost"] == {"a": DropReason.FAULT}  # b had ended and lost nothing


def test_a_round_while_the_target_is_loaded_is_counted_and_loses_the_requests_that_still_run(committed, monkeypatch):
    attached = []
    monkeypatch.setattr(sglang_capture, "attach", lambda _, forward: attached.append(forward))
    monkeypatch.setattr(committed.capture.choice, "_target_version", lambda: "")
    committed.capture.after_verify(None, None, batch(a=False, b=False), None)
    (forward,) = attached
    forward.copy_to_host(None).consume(SimpleNamespace(reqs=committed.reqs), committed.commits)
    assert committed.capture.choice.rounds == 2  # SGLang counts them too, and the hook is not silent
    assert committed.sender._lost.message_fields()["lost"] == {"a": DropReason.TARGET_LOADING}
    assert committed.breaker.faults == 0


@pytest.mark.parametrize("broken", ["reqs", "commits", "outbox"])
def test_a_fault_at_the_commit_raises_nothing_and_loses_the_requests_that_still_run(committed, broken, monkeypatch):
    if broken == "outbox":
        monkeypatch.setattr(committed.box, "add", None)
    else:
        getattr(committed, broken).clear()
    committed.consume()
    assert committed.breaker.faults == 1
    assert committed.sender._lost.message_fields()["lost"] == {"a": DropReason.FAULT}


def test_a_prefill_that_faults_at_its_commit_is_the_beginning_of_its_requests(committed):
    committed.forward("cd", PrefillHead).consume(SimpleNamespace(reqs=[]), [])
    assert committed.sender._lost.message_fields()["lost"] == dict.fromkeys("cd", DropReason.FAULT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_token_has_the_highest_logit(dtype):
    logits = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[0, 0, 7] = logits[0, 0, 30] = 9.0
    found = best_tokens(logits)
    assert (found.dtype, found.shape) == (torch.int64, (2, 3))
    assert int(found[0, 0]) in ({7} if dtype is torch.float32 else {7, 30})
    for row, best in zip(logits.reshape(-1, 40).tolist(), found.reshape(-1).tolist(), strict=True):
        assert row[best] == max(row)


def verified(capture, monkeypatch, **opted_out):
    """What a verify round of these requests attaches, of three nodes each; row n of its features is full of n."""
    attached, count = [], len(opted_out)
    monkeypatch.setattr(sglang_capture, "attach", lambda _, forward: attached.append(forward))
    hidden = torch.arange(3.0 * count).view(-1, 1).expand(-1, 2).contiguous()
    out = SimpleNamespace(next_token_logits=torch.zeros(3 * count, 5), hidden_states=hidden)
    served = batch(**opted_out)
    served.seq_lens = torch.full((count,), 9)
    lens = [1 + row % 3 for row in range(count)]
    index = [[3 * row + node if node < lens[row] else -1 for node in range(3)] for row in range(count)]
    drafted = torch.zeros(3 * count, dtype=torch.int64)
    verify_input = SimpleNamespace(draft_token_num=3, tree_topk=1, draft_probs=None, draft_token=drafted)
    capture._after_verify((None, torch.tensor(lens), torch.tensor(index)), verify_input, served, out)
    return attached[0], hidden


@pytest.mark.guarantee("opt-out")
def test_no_feature_row_of_a_request_that_opted_out_leaves_the_process_beside_those_of_others(capture, monkeypatch):
    forward, _ = verified(capture, monkeypatch, out=True, a=False, b=False, too=True)
    assert forward.chosen.request_ids == ("a", "b")
    assert set(forward.tensors[FEATURES][:, 0].tolist()) <= set(range(3, 9))
    commits = (Commit(1, (5, 6), ""), Commit(1, (5, 6, 7), ""))
    arrays = arrays_of(forward.to_wire(commits))
    assert set(arrays[FEATURES][:, 0].tolist()) <= set(range(3, 9))
    first, second = split(forward.to_wire(commits), TeacherWidth(4, 1))
    assert (first.features[:, 0].tolist(), second.features[:, 0].tolist()) == ([3, 4], [6, 7, 8])


def test_where_every_request_is_captured_a_host_copies_no_feature_row(capture, monkeypatch):
    forward, hidden = verified(capture, monkeypatch, a=False, b=False, c=False)
    assert forward.tensors[FEATURES].data_ptr() == hidden.data_ptr()
    shares = split(forward.to_wire((Commit(1, (5,), ""),) * 3), TeacherWidth(4, 1))
    assert [share.features[:, 0].tolist() for share in shares] == [[0], [3, 4], [6, 7, 8]]
