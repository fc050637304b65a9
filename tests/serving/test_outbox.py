"""Forwards leave the scheduler thread many at once, in their order, and soon when a request ends."""

import pytest
import torch
from paceline.serving.breaker import Breaker
from paceline.serving.capture import outbox
from paceline.serving.capture.device_output import Chosen, HostForward
from paceline.serving.capture.outbox import Outbox
from paceline.serving.wire.messages import BEST_IDS, VERDICTS, VerifyHead, arrays_of
from paceline.serving.wire.request_forward import Commit

GOES_ON, ENDS = (Commit(1, (8,), ""),), (Commit(1, (8,), "length"),)


class Line:
    """Remembers what a CourierSender was told."""

    def __init__(self):
        self.letters, self.lost = [], []

    def offer(self, forwards):
        self.letters.append([forward.head.request_ids[0] for forward in forwards])
        self.last = forwards
        return True

    def lose(self, request_ids):
        self.lost += request_ids


@pytest.fixture
def box():
    return Outbox(Line(), Breaker(), lambda: False)


def step(name, tokens=3, make_head=None):
    chosen = Chosen((0,), (name,), (True,), 0)
    tensors = {VERDICTS: torch.zeros(1, tokens + 2, dtype=torch.int64), BEST_IDS: torch.arange(tokens).view(1, -1)}

    def head(commits, dtype):
        return VerifyHead(chosen.request_ids, 0, commits, chosen.is_greedy, dtype)

    return HostForward(chosen, tensors, make_head or head, lambda *_: None)


def test_forwards_wait_until_there_are_enough_of_them(box):
    for number in range(outbox.MAX_FORWARDS):
        assert box.link.letters == []
        box.add(step(f"r{number}"), GOES_ON)
    assert box.link.letters == [[f"r{number}" for number in range(outbox.MAX_FORWARDS)]]
    assert arrays_of(box.link.last[0])[BEST_IDS].tolist() == [[0, 1, 2]]
    assert box.link.last[0].head.commits == GOES_ON
    box.flush()
    assert len(box.link.letters) == 1  # nothing waits: nothing is sent


def test_a_request_that_ends_and_a_look_of_the_watch_send_what_waits(box):
    box.add(step("a"), GOES_ON)
    box.add(step("b"), ENDS)
    box.add(step("c"), GOES_ON)
    assert box.link.letters == [["a", "b"]]
    box.flush()
    assert box.link.letters == [["a", "b"], ["c"]]


def test_large_forwards_do_not_pile_up(box, monkeypatch):
    size_bytes = sum(tensor.nbytes for tensor in step("x").tensors.values())
    monkeypatch.setattr(outbox, "MAX_BYTES", 3 * size_bytes)
    for name in "abcdefg":
        box.add(step(name), GOES_ON)
    assert box.link.letters == [["a", "b", "c"], ["d", "e", "f"]]


def test_a_forward_that_cannot_be_sent_costs_its_own_requests_alone(box):
    def broken(_commits, _dtype):
        raise ValueError("no head")

    box.add(step("a"), GOES_ON)
    box.add(step("bad", make_head=broken), GOES_ON)
    box.add(step("b"), ENDS)
    assert (box.link.letters, box.link.lost) == ([["a", "b"]], ["bad"])


def test_while_a_canary_drafts_every_forward_goes_at_once():
    is_canary = [True]
    box = Outbox(Line(), Breaker(), lambda: is_canary[0])
    for name in "ab":
        box.add(step(name), GOES_ON)
    is_canary[0] = False
    box.add(step("c"), GOES_ON)
    assert box.link.letters == [["a"], ["b"]]
