"""Caution: among many traces the one that no round survives ends alone, and soon."""

import pytest
from paceline.buffer.base import MAX_DELIVERIES
from paceline.buffer.config import BufferConfig
from paceline.buffer.memory import MemoryTraceBuffer
from paceline.learner.caution import Caution


def test_everything_is_taken_until_a_round_fails_and_again_when_what_failed_is_learnt() -> None:
    caution, taken = Caution(400), []
    caution.fail()  # Redis was away: nothing had been claimed
    caution.take(map(str, range(400)))
    for first in (None, 0, 100, 200, 300):
        if first is None:
            caution.fail()
        else:
            caution.take(map(str, range(first, first + 100)))
            caution.succeed()
        taken.append(caution.max_claim)
    assert taken == [100, 100, 100, 100, 400]


def test_suspects_that_come_no_more_are_forgotten() -> None:
    caution = Caution(8)
    caution.take("abcdefgh")
    caution.fail()
    caution.take("xy")
    caution.succeed()
    assert caution.max_claim == 8


@pytest.mark.parametrize("poison", [0, 137, 399])
def test_of_400_traces_only_the_poisonous_one_is_lost(make_trace, poison: int) -> None:
    buffer, caution, sizes = MemoryTraceBuffer(BufferConfig()), Caution(400), []
    ids = buffer.append([make_trace(seed, rounds=1) for seed in range(400)])
    for _ in range(40):
        claimed = [entry.entry_id for entry in buffer.claim("a", caution.max_claim)]
        caution.take(claimed)
        if ids[poison] in claimed:
            sizes.append(len(claimed))
            caution.fail()
            buffer.resume("a")
        else:
            buffer.ack(claimed, "learned")
            caution.succeed()
    assert (sizes[:3], sizes[-1], len(sizes)) == ([400, 100, 25], 1, MAX_DELIVERIES)
    counts = buffer.counts()
    assert (counts.acked, counts.dead_lettered, counts.pending) == ({"learned": 399}, 1, 0)
