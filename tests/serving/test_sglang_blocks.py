"""What capture hears of DFLASH's worker; tests/e2e/test_dflash.py has the real one."""

from types import SimpleNamespace

import pytest
import torch
from paceline.serving.breaker import Breaker
from paceline.serving.capture.sglang_blocks import SglangBlocks, committed_nodes


class Heard:
    """A capture that notes what it is told, and what is told of every forward."""

    def __init__(self):
        self.told = []

    def before(self, worker, batch):
        assert worker is WORKER
        self.told.append(("forward", batch.name))

    def before_draft_prefill(self, _worker, batch, hidden):
        self.told.append(("prefill", batch.name, hidden))

    def after_prefill(self, result):
        self.told.append(("prefilled", result))

    def after_verify(self, result, verified, batch, output):
        self.told.append(("verified", batch.name, verified.hidden_states))
        self.result, self.verified = result, verified
        output.auxiliary_device_output = "captured"

    def lose_batch(self, batch):
        self.told.append(("lost", batch.name))


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def blocks(heard):
    made = SglangBlocks(heard.before)
    made.follow(heard, Breaker())
    return made


def batch_of(name, requests, *, is_extend=False):
    mode = SimpleNamespace(is_extend=lambda: is_extend, is_idle=lambda: False)
    return SimpleNamespace(name=name, reqs=[None] * requests, forward_mode=mode)


WORKER = SimpleNamespace()
CANDIDATES = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])
COMMITTED = torch.tensor([3, 1], dtype=torch.int32)


def forward(blocks, batch, steps):
    """Let `steps` happen inside of a forward of the worker; its result."""
    result = SimpleNamespace(logits_output=SimpleNamespace(auxiliary_device_output=None))

    def inner(_worker, _batch, *, on_publish):
        steps()
        assert on_publish == "kept"
        return result

    assert blocks.around_forward(inner, WORKER, batch, on_publish="kept") is result
    return result


def test_committed_nodes_are_counted_over_the_batch():
    assert committed_nodes(COMMITTED, 4).tolist() == [[0, 1, 2, -1], [4, -1, -1, -1]]


def test_a_verified_block_is_captured_and_attached_to_the_output_of_its_forward(blocks, heard, monkeypatch):
    monkeypatch.setattr(
        "paceline.serving.capture.sglang_blocks.attach",
        lambda output, captured: setattr(output, "auxiliary_device_output", captured),
    )

    def steps():
        accepted = (COMMITTED - 1, COMMITTED)
        blocks.after_accept(accepted, WORKER, candidates=CANDIDATES, next_token_logits="logits", target_predict=None)
        blocks.before_features(WORKER, target_hidden="features", commit_lens=COMMITTED)

    result = forward(blocks, batch_of("b", 2), steps)
    assert heard.told == [("forward", "b"), ("verified", "b", "features")]
    assert heard.verified.draft_token.tolist() == CANDIDATES.flatten().tolist()
    assert (heard.verified.draft_token_num, heard.verified.next_token_logits) == (4, "logits")
    assert heard.result[1] is COMMITTED
    assert heard.result[2].tolist() == [[0, 1, 2, -1], [4, -1, -1, -1]]
    assert result.logits_output.auxiliary_device_output == "captured"


def test_a_prefill_is_told_with_its_features_and_its_result(blocks, heard):
    result = forward(
        blocks, batch_of("p", 1, is_extend=True), lambda: blocks.before_features(WORKER, target_hidden="features")
    )
    assert heard.told == [("forward", "p"), ("prefill", "p", "features"), ("prefilled", result)]


def test_a_rank_without_capture_tells_of_its_forwards_alone(heard):
    blocks = SglangBlocks(heard.before)

    def steps():
        blocks.after_accept((None, COMMITTED), WORKER, candidates=CANDIDATES, next_token_logits=None)
        blocks.before_features(WORKER, target_hidden="features", commit_lens=COMMITTED)

    forward(blocks, batch_of("b", 2), steps)
    assert heard.told == [("forward", "b")]


def test_a_fault_costs_no_token_and_loses_the_requests_of_its_forward(blocks, heard):
    forward(blocks, batch_of("b", 2), lambda: blocks.after_accept(None, WORKER, candidates=None))
    assert heard.told == [("forward", "b"), ("lost", "b")]
    breaker = Breaker()
    blocks.follow(heard, breaker)
    for _ in range(3):
        forward(blocks, batch_of("b", 2), lambda: blocks.before_features(WORKER))
    assert "3 faults in a row, last in a forward of DFLASH: KeyError: 'target_hidden'" in breaker.reason
    heard.told.clear()
    forward(blocks, batch_of("b", 2), lambda: None)
    assert heard.told == [("forward", "b")]  # for the clock, and for penalties


def test_what_a_forward_raises_leaves_nothing_behind(blocks, heard):
    def fail(*_, **__):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        blocks.around_forward(fail, WORKER, batch_of("b", 2))
    heard.told.clear()
    blocks.before_features(WORKER, target_hidden="features")  # of nobody's forward
    assert heard.told == []


def test_logits_are_gathered_whole_where_sglang_would_leave_them_in_shards(blocks):
    processor = SimpleNamespace(defer_verify_gather=True)
    worker = SimpleNamespace(_target_logits_processor=processor)
    blocks.after_worker(None, worker)
    assert (processor.defer_verify_gather, worker._target_logits_processor) == (False, None)
    blocks.after_worker(None, SimpleNamespace())  # 0.5.22 has none
