"""Hidden states kept for the draft: every row comes back at its position, whatever requests come and go."""

import random

import pytest
import torch
from paceline.serving.pacing.kept_states import KeptStates, Missed

WIDTH = 6
ROW_BYTES = WIDTH * 4 + 8


def hidden_at(request_id, position):
    """A hidden state that no other position of any request has."""
    return torch.arange(WIDTH, dtype=torch.float32) + 100.0 * position + ord(request_id)


def token_after(request_id, position):
    return 1000 * ord(request_id) + position


def keep(kept, positions):
    """One step of a batch: request -> position."""
    hidden = torch.stack([hidden_at(*one) for one in positions.items()])
    tokens = torch.tensor([token_after(*one) for one in positions.items()], dtype=torch.int32)
    kept.keep(list(positions), list(positions.values()), hidden, tokens)


def test_what_was_kept_is_read_run_by_run_while_requests_come_and_go():
    random.seed(0)
    kept, position, expected = KeptStates(10_000), dict.fromkeys("abcdef", 0), {}
    for step in range(40):
        running = random.sample("abcdef", random.randint(1, 6))
        for request_id in running:
            position[request_id] += 1
            expected.setdefault(request_id, []).append(position[request_id])
        keep(kept, {request_id: position[request_id] for request_id in running})
        if step % 7 == 6:
            gone = random.choice(running)
            kept.forget(gone)
            del expected[gone]
            position[gone] += 10  # prefilled again elsewhere
    order = random.sample(sorted(expected), len(expected))
    runs = [kept.missed(request_id) for request_id in order]
    hidden, tokens = kept.read(runs)
    assert [range(run.start, run.end) for run in runs] == [range(expected[r][0], expected[r][-1] + 1) for r in order]
    at = [(request_id, p) for request_id in order for p in expected[request_id]]
    assert torch.equal(hidden, torch.stack([hidden_at(*one) for one in at]))
    assert tokens.tolist() == [token_after(*one) for one in at]


def test_the_buffer_holds_as_many_rows_as_its_bytes_allow_and_is_used_again_once_empty():
    kept = KeptStates(5 * ROW_BYTES + 3)
    assert kept.rows_left is None
    keep(kept, {"a": 4, "b": 9})
    keep(kept, {"a": 5, "b": 10})
    assert (kept.rows_left, len(kept)) == (1, 2)
    with pytest.raises(ValueError, match="got 2 more rows, expected at most 1"):
        keep(kept, {"a": 6, "b": 11})
    assert kept.missed("a") == Missed(4, [0, 2])
    kept.forget("a")
    assert kept.rows_left == 1
    kept.forget("b")
    assert (kept.rows_left, len(kept)) == (5, 0)
    keep(kept, {"c": 0})
    assert kept.missed("c") == Missed(0, [0])
    kept.clear()
    assert kept.missed("c") is None
    assert kept.rows_left == 5


def test_what_is_read_does_not_change_with_what_is_kept_after_it():
    kept = KeptStates(4 * ROW_BYTES)
    keep(kept, {"a": 1})
    hidden, tokens = kept.read([kept.missed("a")])
    kept.clear()
    keep(kept, {"b": 7})
    assert torch.equal(hidden[0], hidden_at("a", 1))
    assert tokens.tolist() == [token_after("a", 1)]
