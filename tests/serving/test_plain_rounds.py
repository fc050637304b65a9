"""A decode step that rides in a prefill (`--enable-mixed-chunk`) is captured as a round without drafts."""

from types import SimpleNamespace

import pytest
import torch
from paceline.serving.breaker import Breaker
from paceline.serving.capture.plain_rounds import decoding_rows
from paceline.serving.capture.prefill_rows import WindowSizes
from paceline.serving.capture.request_choice import RequestChoice
from paceline.serving.capture.sglang_capture import CaptureSettings, SglangCapture
from paceline.serving.courier.split import running_ids, split
from paceline.serving.wire.counts import CaptureCounts, DropReason, SkipReason
from paceline.serving.wire.messages import READ_IDS
from paceline.serving.wire.request_forward import Commit, RequestVerify, TeacherWidth
from sglang_double import batch_of, request

WIDTH = TeacherWidth(sampled=4, greedy=1)
OUT = {"paceline_opt_out": True}


class Outbox:
    """Keeps what is committed, as the courier gets it."""

    def __init__(self):
        self.forwards, self.lost, self.lost_committed = [], [], []
        self.sender = SimpleNamespace(lose=self.lost.extend)

    def lose(self, chosen, commits, reason):
        self.lost_committed.append((chosen, commits, reason))

    def add(self, forward, commits):
        self.forwards.append(forward.to_wire(commits))


@pytest.fixture
def outbox():
    return Outbox()


@pytest.fixture
def capture(outbox):
    settings = CaptureSettings(WIDTH, features=True, sizes=WindowSizes(16, 4))
    return SglangCapture(settings, outbox, RequestChoice(1.0, CaptureCounts(), lambda: 3, lambda: "7"), Breaker())


class Mixed:
    """A prefill of six tokens of `new` and two of `out`, and a decode step of three requests that run already.

    SGLang's overlap schedule has not yet added the last committed tokens to the requests when this is launched.
    """

    def __init__(self):
        new, out = request("new", prompt=range(6)), request("out", prompt=range(2), custom_params=OUT)
        self.running = [
            request("a", prompt=range(4), output=range(2)),
            request("gone", prompt=range(3), output=range(5), custom_params=OUT),
            request("b", prompt=range(40), output=range(9), top_k=-1),  # longer than a window, and sampled
        ]
        self.batch = batch_of(
            [new, out, *self.running],
            decoding_reqs=self.running,
            extend_lens=[6, 2, 1, 1, 1],
            prefix_lens=[0, 0, 7, 9, 51],
            seq_lens=torch.tensor([6, 2, 8, 10, 52]),
            input_ids=torch.arange(11) + 100,
        )
        self.hidden = torch.arange(22.0).view(11, 2)
        self.result = SimpleNamespace(logits_output=SimpleNamespace(auxiliary_device_output=None))

    def launch(self, capture, features=True):
        capture.before_draft_prefill(None, self.batch, self.hidden if features else None, None)
        capture.after_prefill(self.result)

    def commit(self, *commits, finished=()):
        """The commits of the batch's requests; those named in `finished` had ended before."""
        for req in self.batch.reqs:
            req.finished = lambda rid=req.rid: rid in finished
            req.finished_reason = SimpleNamespace(to_json=lambda: {"type": "length"})
        host = self.result.logits_output.auxiliary_device_output.copy_to_host(torch.clone)
        host.consume(self.batch, [tokens and SimpleNamespace(output_index=1, token_ids=tokens) for tokens in commits])


def test_the_decode_steps_of_a_mixed_batch_are_rounds_of_one_token_at_their_place(capture, outbox):
    mixed = Mixed()
    mixed.launch(capture)
    mixed.commit([50], [51], [52], [53], [54])
    prefill, plain = outbox.forwards
    assert prefill.head.request_ids == ("new",)
    a, b = split(plain, WIDTH)
    for share, request_id, root, row, committed in ((a, "a", 7, 8, 52), (b, "b", 51, 10, 54)):
        assert isinstance(share, RequestVerify)
        assert (share.request_id, share.draft_version, share.target_version, share.root) == (request_id, 3, "7", root)
        assert (share.root_token, share.drafted.tolist(), share.accepted) == (100 + row, [], 0)
        assert share.features.tolist() == [mixed.hidden[row].tolist()]
        assert share.commit == Commit(1, (committed,), "")
        assert (share.teacher_ids.shape, share.teacher_logprobs.shape) == ((1, 0), (1, 0))
        assert (share.tree, share.committed_logprobs) == (None, None)


def test_what_is_prefilled_beside_decode_steps_is_captured_as_ever(capture, outbox):
    mixed = Mixed()
    mixed.launch(capture)
    mixed.commit([50], [51], [52], [53], [54])
    (share,) = split(outbox.forwards[0], WIDTH)
    assert (share.request_id, share.start, share.ids.tolist()) == ("new", 0, list(range(100, 106)))
    assert share.features.tolist() == mixed.hidden[:6].tolist()
    assert share.commit == Commit(1, (50,), "")


def test_a_decode_step_counts_neither_as_a_beginning_nor_as_a_verify_round_of_sglangs(capture, outbox):
    mixed = Mixed()
    mixed.launch(capture)
    counted = capture.choice._counts.skipped
    assert counted == {SkipReason.OPTED_OUT: 1}  # `out`, which begins here; `gone` was counted then
    assert capture.choice.rounds == 0  # SGLang adds none to `spec_verify_ct` either
    mixed.commit([50], [51], [52], [53], [54])
    assert [forward.head.request_ids for forward in outbox.forwards] == [("new",), ("a", "b")]


def test_of_a_request_that_ended_while_its_step_was_under_way_nothing_is_committed(capture, outbox):
    mixed = Mixed()
    mixed.launch(capture)
    mixed.commit([50], [51], None, [53], [54], finished=("a",))
    _, plain = outbox.forwards
    assert running_ids(plain) == ["b"]
    assert split(plain, WIDTH)[0].commit == Commit(-1, (), "length")


def test_a_batch_of_decode_steps_alone_is_captured_without_a_prefill(capture, outbox):
    mixed = Mixed()
    mixed.batch.decoding_reqs = mixed.batch.reqs  # as where another rank prefills
    mixed.batch.extend_lens, mixed.batch.input_ids = [1] * 5, torch.arange(5) + 100
    mixed.hidden = torch.arange(10.0).view(5, 2)
    mixed.launch(capture)
    mixed.commit([50], [51], [52], [53], [54])
    (plain,) = outbox.forwards
    assert [(share.request_id, share.root, share.root_token) for share in split(plain, WIDTH)] == [
        ("new", 5, 100), ("a", 7, 102), ("b", 51, 104),
    ]  # fmt: skip


def test_without_hidden_states_a_decode_step_has_no_feature_row(capture, outbox):
    mixed = Mixed()
    mixed.launch(capture, features=False)
    mixed.commit([50], [51], [52], [53], [54])
    assert READ_IDS in {name for name, *_ in outbox.forwards[0].arrays}
    assert [len(share.features) for share in split(outbox.forwards[1], WIDTH)] == [0, 0]


def test_a_fault_loses_the_running_requests_of_the_batch_too(capture, outbox):
    mixed = Mixed()
    mixed.batch.seq_lens = None
    mixed.launch(capture)
    assert outbox.lost == ["new", "a", "b"]
    assert capture._breaker.faults == 1


def test_a_forward_that_an_update_finds_under_way_names_the_weights_that_it_was_launched_with(capture, outbox):
    mixed = Mixed()
    mixed.launch(capture)
    capture.choice._target_version = lambda: "8"  # the overlap schedule commits after the next launch
    mixed.commit([50], [51], [52], [53], [54])
    assert [forward.head.target_version for forward in outbox.forwards] == ["7", "7"]


def test_while_the_target_is_loaded_a_mixed_batch_loses_what_it_reads_and_what_it_decodes(capture, outbox):
    capture.choice._target_version = lambda: ""
    mixed = Mixed()
    mixed.launch(capture)
    mixed.commit([50], [51], None, [53], [54], finished=("a",))
    assert outbox.forwards == []
    assert [(chosen.request_ids, chosen.is_prefill) for chosen, _, _ in outbox.lost_committed] == [
        (("new",), True), (("a", "b"), False),
    ]  # fmt: skip
    assert [(commits, reason) for _, commits, reason in outbox.lost_committed] == [
        ((Commit(1, (50,), ""),), DropReason.TARGET_LOADING),
        ((Commit(-1, (), "length"), Commit(1, (54,), "")), DropReason.TARGET_LOADING),
    ]


def test_a_middle_chunk_that_a_target_read_while_it_was_loaded_loses_its_request(capture, outbox):
    capture.choice._target_version = lambda: ""
    mixed = Mixed()
    mixed.batch = batch_of(
        [request("long", prompt=range(60))], extend_lens=[8], prefix_lens=[8], input_ids=torch.arange(8)
    )
    mixed.launch(capture)
    mixed.commit(None)
    ((chosen, commits, _),) = outbox.lost_committed
    assert (chosen.request_ids, chosen.is_prefill, commits) == (("long",), True, (Commit(-1, (), ""),))


def test_a_prefill_without_running_requests_has_no_decode_step():
    reqs = [request("a"), request("b")]
    assert decoding_rows(batch_of(reqs)) == frozenset()
    assert decoding_rows(batch_of(reqs, decoding_reqs=[])) == frozenset()
    assert decoding_rows(batch_of(reqs, decoding_reqs=[reqs[1]])) == {1}
