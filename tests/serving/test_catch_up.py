"""Catching the draft's cache up: what it reads and when, and that no fault leaves the hooks."""

from types import SimpleNamespace

import pytest
import torch
from paceline.buffer.board.member_status import CatchUpSaid
from paceline.serving.pacing import sglang_catch_up, sglang_why_not
from paceline.serving.pacing.sglang_catch_up import NOT_RUN, SglangCatchUp
from paceline.serving.pacing.sglang_draft_reading import _before_rotation

WIDTH = 4
UNSET = "PACELINE_CATCH_UP_BYTES is not set, and by default only a CPU server without overlap schedule catches up"
EXTEND, DECODE = SimpleNamespace(is_extend=lambda: True), SimpleNamespace(is_extend=lambda: False)


class Engine:
    """A batch at steps 0 and more, position by position; `reads` are what the draft was given."""

    def __init__(self, monkeypatch, max_bytes=10_000, why="", disable_radix_cache=False):
        self.reads, self.discounts, self.interrupts, self.lost, self.switch = [], 0, 0, [], []
        self.ends = {}
        self.fault = None
        monkeypatch.setattr(sglang_catch_up, "why_not", lambda *_: why)
        monkeypatch.setattr(sglang_catch_up, "read_missed", self.read)
        monkeypatch.setattr(SglangCatchUp, "_skip", lambda _self, skips: self.switch.append(skips))
        monkeypatch.setattr(
            SglangCatchUp, "_reads_ended_here", staticmethod(lambda: not disable_radix_cache), raising=True
        )
        self.catch_up = SglangCatchUp(max_bytes, self.discount, self.interrupt)
        self.catch_up.on_lost = lambda batch: self.lost.append([req.rid for req in batch.reqs])
        self.worker = SimpleNamespace(draft_worker="draft worker")

    def discount(self):
        self.discounts += 1

    def interrupt(self):
        self.interrupts += 1

    def read(self, draft_worker, _batch, unread, kept):
        if self.fault:
            raise self.fault
        assert draft_worker == "draft worker"
        hidden, tokens = kept.read([one.missed for one in unread])
        self.reads.append([(one.req.rid, one.pool_row, one.missed.start, one.missed.end) for one in unread])
        assert hidden[:, 0].tolist() == [p for one in unread for p in range(one.missed.start, one.missed.end)]
        assert (tokens - 100).tolist() == [p for one in unread for p in range(one.missed.start, one.missed.end)]
        rows = torch.arange(1.0, len(unread) + 1)[:, None]
        return SimpleNamespace(topk_p=rows, topk_index=rows.long(), hidden_states=rows.expand(-1, 2))

    def batch(self, *rids):
        reqs = [
            SimpleNamespace(
                rid=rid, skip_radix_cache_insert=False,
                kv=SimpleNamespace(req_pool_idx=ord(rid), kv_committed_len=self.ends[rid]),
            )
            for rid in rids
        ]  # fmt: skip
        nothing = torch.zeros(len(rids), 1)
        spec_info = SimpleNamespace(topk_p=nothing, topk_index=nothing.long(), hidden_states=torch.zeros(len(rids), 2))
        lens = torch.tensor([self.ends[rid] for rid in rids])
        return SimpleNamespace(reqs=reqs, seq_lens_cpu=lens, device="cpu", spec_info=spec_info, forward_mode=DECODE)

    def prefill(self, **ends):
        self.ends |= ends
        batch = self.batch(*ends)
        batch.forward_mode = EXTEND
        self.catch_up.before_forward(self.worker, batch)

    def plain(self, *rids):
        """A step without drafts; SGLang warms the cache itself where it was told not to skip."""
        batch = self.batch(*rids)
        self.catch_up.before_forward(self.worker, batch)
        if self.switch[-1]:
            hidden = batch.seq_lens_cpu[:, None].expand(-1, WIDTH).float()
            output = SimpleNamespace(
                logits_output=SimpleNamespace(hidden_states=hidden), next_token_ids=100 + batch.seq_lens_cpu
            )
            self.catch_up.after_skipped(None, self.worker, batch, output)
        else:
            self.catch_up.before_warming("draft worker", batch, None)
        self.ends |= {rid: self.ends[rid] + 1 for rid in rids}

    def drafting(self, *rids):
        """A step with drafts, all of them refused; what SGLang drafts from."""
        batch = self.batch(*rids)
        self.catch_up.before_forward(self.worker, batch)
        self.catch_up.before_draft("draft worker", batch)
        self.catch_up.before_warming("draft worker", batch, None)
        self.ends |= {rid: self.ends[rid] + 1 for rid in rids}
        return batch.spec_info


def test_the_draft_reads_what_it_missed_before_it_drafts_and_nothing_twice(monkeypatch):
    engine = Engine(monkeypatch)
    engine.prefill(a=5)
    engine.plain("a")
    engine.plain("a")
    engine.prefill(b=9)  # its own prefill has just been read by the draft
    engine.plain("a", "b")
    engine.prefill(c=3)
    assert engine.reads == []
    drafts = engine.drafting("a", "c", "b")
    assert engine.reads == [[("a", ord("a"), 5, 8), ("b", ord("b"), 9, 10)]]
    assert drafts.topk_index[:, 0].tolist() == [1, 0, 2]  # c drafts from its prefill
    assert drafts.hidden_states.tolist() == [[1, 1], [0, 0], [2, 2]]
    engine.drafting("a", "c", "b")
    assert (len(engine.reads), engine.discounts) == (1, 1)
    engine.plain("c", "a")
    assert engine.drafting("c", "a").topk_p.tolist() == [[1], [2]]
    assert engine.reads[1:] == [[("c", ord("c"), 5, 6), ("a", ord("a"), 10, 11)]]
    assert engine.catch_up.said() == CatchUpSaid(reason="", passes={"drafting": 2}, positions=6)


def test_a_full_buffer_is_read_once_and_used_again(monkeypatch):
    engine = Engine(monkeypatch, max_bytes=5 * (WIDTH * 4 + 8))
    engine.prefill(a=5, b=7)
    for _ in range(7):
        engine.plain("a", "b")
    assert engine.switch == [True, True, False, True, True, False, True]
    # The step that is not skipped is SGLang's own to read.
    assert [(rid, start, end) for read in engine.reads for rid, _, start, end in read] == [
        ("a", 5, 7), ("b", 7, 9), ("a", 8, 10), ("b", 10, 12),
    ]  # fmt: skip
    engine.drafting("a", "b")
    assert engine.catch_up.said().passes == {"full": 2, "drafting": 1}
    assert engine.discounts == 3


@pytest.mark.parametrize("named", [{"checkpoint": True}, {"is_insert": True}, {}])
def test_a_request_that_leaves_its_cache_to_others_is_read_up_to_its_end(monkeypatch, named):
    engine = Engine(monkeypatch)
    engine.prefill(a=5, b=5)
    for _ in range(4):
        engine.plain("a", "b")
    (req,) = engine.batch("a").reqs
    req.kv.kv_committed_len = 8  # the fourth step was launched before its end was known
    engine.catch_up.before_release(req, None, **named)
    assert engine.reads == [[("a", ord("a"), 5, 8)]]
    assert (engine.interrupts, engine.discounts) == (1, 0)
    engine.drafting("b")
    assert engine.reads[1:] == [[("b", ord("b"), 5, 9)]]


@pytest.mark.parametrize(
    ("disable_radix_cache", "named"), [(True, {"checkpoint": True}), (False, {"is_insert": False})]
)
def test_a_cache_that_nobody_finds_again_is_not_read(monkeypatch, disable_radix_cache, named):
    engine = Engine(monkeypatch, disable_radix_cache=disable_radix_cache)
    engine.prefill(a=5)
    engine.plain("a")
    engine.catch_up.before_release(engine.batch("a").reqs[0], None, **named)
    engine.prefill(a=20)  # the same name again
    engine.plain("a")
    engine.drafting("a")
    assert engine.reads == [[("a", ord("a"), 20, 21)]]


def test_a_fault_ends_it_with_the_running_requests_lost_and_reaches_nobody(monkeypatch):
    engine = Engine(monkeypatch)
    engine.prefill(a=5, b=5)
    engine.plain("a", "b")
    engine.fault = RuntimeError("no memory")
    drafts = engine.drafting("a", "b")
    assert drafts.topk_index.tolist() == [[0], [0]]  # SGLang goes on with what it has
    assert engine.lost == [["a", "b"]]
    assert engine.switch[-1] is False
    assert engine.catch_up.said().reason == "RuntimeError: no memory"
    engine.fault = None
    engine.plain("a", "b")
    engine.drafting("a", "b")
    engine.catch_up.before_release(engine.batch("a").reqs[0], None)
    assert engine.reads == []
    assert engine.lost == [["a", "b"]]


def test_a_gap_that_does_not_end_where_the_request_does_is_a_fault(monkeypatch):
    engine = Engine(monkeypatch)
    engine.prefill(a=5)
    engine.plain("a")
    engine.ends["a"] += 1
    engine.drafting("a")
    assert engine.catch_up.reason == "ValueError: kept states of a: got up to 6, expected 7"


def test_sglang_is_left_alone_where_it_cannot_be_done(monkeypatch):
    engine = Engine(monkeypatch, why="several ranks")
    assert engine.catch_up.said().reason == NOT_RUN
    engine.prefill(a=5)
    engine.drafting("a")
    assert engine.catch_up.said() == CatchUpSaid(reason="several ranks", passes={}, positions=0)
    assert engine.switch == engine.reads == []


def test_rotated_input_ids_are_the_tokens_after_each_position():
    lens, tokens = [3, 1, 4], torch.arange(10, 18)
    ids = _before_rotation(tokens)
    found, start = [], 0
    for length in lens:  # as EagleDraftWorker._draft_extend_for_prefill does it
        own = ids[start : start + length]
        found += [*own[1:].tolist(), int(tokens[start + length - 1])]
        start += length
    assert found == tokens.tolist()


@pytest.fixture
def server(monkeypatch):
    """Settings that allow it, to be changed, and a worker."""
    from sglang.srt import runtime_context

    resolved = SimpleNamespace(
        tp_size=1, enable_mixed_chunk=False, disable_overlap_schedule=True, speculative_use_rejection_sampling=False
    )
    for bag in ("get_parallel", "get_schedule", "get_spec"):
        monkeypatch.setattr(runtime_context, bag, lambda: resolved)
    runner = SimpleNamespace(device="cpu", model_config=SimpleNamespace(model_is_mrope=False))
    return resolved, SimpleNamespace(adaptive_controller=object(), draft_worker=SimpleNamespace(draft_runner=runner))


@pytest.mark.parametrize(
    ("changes", "max_bytes", "reason"),
    [
        ({}, 1000, ""),
        ({}, 0, "PACELINE_CATCH_UP_BYTES is 0"),
        ({}, None, ""),
        ({"disable_overlap_schedule": False}, 1000, ""),
        ({"disable_overlap_schedule": False}, None, UNSET),
        ({"tp_size": 2}, 1000, "several ranks (--tp-size): a fault of one would leave the others waiting"),
        ({"tp_size": 2}, None, "several ranks (--tp-size): a fault of one would leave the others waiting"),
        ({"enable_mixed_chunk": True}, 1000, "--enable-mixed-chunk reads running requests in prefills"),
        (
            {"speculative_use_rejection_sampling": True},
            1000,
            "--speculative-use-rejection-sampling needs the draft's chances",
        ),
    ],
)
def test_servers_on_which_the_draft_must_run_at_every_step_say_why(server, changes, max_bytes, reason):
    resolved, worker = server
    vars(resolved).update(changes)
    assert sglang_why_not.why_not(worker, max_bytes) == reason


def test_a_gpu_server_catches_up_only_where_it_is_told_to(server):
    _, worker = server
    worker.draft_worker.draft_runner.device = "cuda"
    assert [sglang_why_not.why_not(worker, given) for given in (None, 1000)] == [UNSET, ""]


def test_a_server_that_is_told_nothing_keeps_64_mib(monkeypatch):
    engine = Engine(monkeypatch, max_bytes=None)
    engine.prefill(a=5)
    engine.plain("a")
    assert engine.catch_up._kept.rows_left == (64 << 20) // (WIDTH * 4 + 8) - 1


def test_a_server_that_always_drafts_has_nothing_to_catch_up(server):
    _, worker = server
    worker.adaptive_controller = None
    assert sglang_why_not.why_not(worker, 1000).startswith("the server runs without --speculative-adaptive")


@pytest.mark.parametrize(
    ("max_bytes", "told"),
    [(1000, ["paceline: the draft also runs while nothing is drafted: a reason"]), (0, []), (None, [])],
)
def test_a_draft_that_runs_at_every_step_is_warned_of_only_where_it_was_to_stand_still(
    monkeypatch, caplog, max_bytes, told
):
    engine = Engine(monkeypatch, max_bytes, why="a reason")
    engine.prefill(a=3)
    assert engine.catch_up.said().reason == "a reason"
    assert caplog.messages == told
