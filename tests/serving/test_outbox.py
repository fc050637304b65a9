"""Forwards leave the scheduler thread many at once, in their order, and soon when a request ends."""

import pytest
import torch
from paceline.serving.breaker import Breaker
from paceline.serving.capture import courier_sender, outbox
from paceline.serving.capture.courier_sender import CourierSender
from paceline.serving.capture.device_output import Chosen, ForwardOutput
from paceline.serving.capture.outbox import Outbox
from paceline.serving.wire.messages import BEST_IDS, VERDICTS, VerifyHead, arrays_of
from paceline.serving.wire.request_forward import Commit

GOES_ON, ENDS = (Commit(1, (8,), ""),), (Commit(1, (8,), "length"),)


class Line:
    """Remembers what a CourierSender was given."""

    def __init__(self):
        self.batches, self.lost = [], []

    def has_room(self, size_bytes):
        return True

    def offer(self, forwards):
        self.batches.append([forward.head.request_ids[0] for forward in forwards])
        self.last = forwards
        return True

    def lose(self, request_ids, commits, *, may_begin):
        self.lost.append((request_ids, commits, may_begin, len(self.batches)))


@pytest.fixture
def box():
    return Outbox(Line(), Breaker(), lambda: False)


def forward(name, tokens=3, make_head=None):
    chosen = Chosen(rows=(0,), request_ids=(name,), is_greedy=(True,), draft_version=0, target_version="0")
    tensors = {VERDICTS: torch.zeros(1, tokens + 2, dtype=torch.int64), BEST_IDS: torch.arange(tokens).view(1, -1)}

    def head(commits, dtype):
        return VerifyHead(
            request_ids=chosen.request_ids,
            draft_version=0,
            target_version="0",
            commits=commits,
            is_greedy=chosen.is_greedy,
            feature_dtype=dtype,
        )

    return ForwardOutput(
        chosen=chosen,
        tensors=tensors,
        make_head=make_head or head,
        on_consume=lambda *_: None,
        on_copy_failed=lambda *_: None,
    )


def test_forwards_wait_until_there_are_enough_of_them(box):
    for number in range(outbox.MAX_FORWARDS):
        assert box.sender.batches == []
        box.add(forward(f"r{number}"), GOES_ON)
    assert box.sender.batches == [[f"r{number}" for number in range(outbox.MAX_FORWARDS)]]
    assert arrays_of(box.sender.last[0])[BEST_IDS].tolist() == [[0, 1, 2]]
    assert box.sender.last[0].head.commits == GOES_ON
    box.flush()
    assert len(box.sender.batches) == 1  # nothing waits: nothing is sent


def test_a_request_that_ends_and_a_look_after_the_courier_send_what_waits(box):
    box.add(forward("a"), GOES_ON)
    box.add(forward("b"), ENDS)
    box.add(forward("c"), GOES_ON)
    assert box.sender.batches == [["a", "b"]]
    box.flush()
    assert box.sender.batches == [["a", "b"], ["c"]]


def test_large_forwards_do_not_pile_up(box, monkeypatch):
    size_bytes = sum(tensor.nbytes for tensor in forward("x").tensors.values())
    monkeypatch.setattr(outbox, "MAX_BYTES", 3 * size_bytes)
    for name in "abcdefg":
        box.add(forward(name), GOES_ON)
    assert box.sender.batches == [["a", "b", "c"], ["d", "e", "f"]]


def test_a_forward_that_cannot_be_sent_costs_its_own_requests_alone(box):
    def broken(_commits, _dtype):
        raise ValueError("no head")

    box.add(forward("a"), GOES_ON)
    box.add(forward("bad", make_head=broken), GOES_ON)
    box.add(forward("b"), ENDS)
    assert box.sender.batches == [["a"], ["b"]]
    assert box.sender.lost == [(("bad",), GOES_ON, False, 1)]  # after what was captured before it


def test_while_a_canary_drafts_on_any_replica_every_forward_goes_at_once():
    is_canary = [True]
    box = Outbox(Line(), Breaker(), lambda: is_canary[0])
    for name in "ab":
        box.add(forward(name), GOES_ON)
    is_canary[0] = False
    box.add(forward("c"), GOES_ON)
    assert box.sender.batches == [["a"], ["b"]]


def test_a_full_line_costs_the_scheduler_thread_no_serialisation(tmp_path, monkeypatch):
    sender, encoded = CourierSender(f"ipc://{tmp_path}/line", 8000), []
    box, encode = Outbox(sender, Breaker(), lambda: False), courier_sender.encode_message
    monkeypatch.setattr(courier_sender, "encode_message", lambda message: encoded.append(message) or encode(message))
    for number in range(40):
        box.add(forward(f"r{number}", tokens=30), ENDS)
    sent = [head.request_ids[0] for message in encoded for head in [forward.head for forward in message.forwards]]
    assert 0 < len(sent) == len(encoded) < 40
    assert sorted(sent + list(sender._lost.named)) == sorted(f"r{number}" for number in range(40))
    sender.close()
