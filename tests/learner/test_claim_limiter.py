"""ClaimLimiter: among many traces the one that no round survives ends alone, and soon."""

import json
from pathlib import Path

import pytest
from paceline.buffer.base import MAX_DELIVERIES
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable, LeaseLost
from paceline.buffer.lease import Lease
from paceline.buffer.testing.memory_stream import MemoryTraceBuffer
from paceline.learner.claim_limiter import ClaimLimiter

DIED = RuntimeError("of a trace")


def gone(*_):
    raise BufferUnavailable("gone")


HELD, LOST, UNKNOWN = (Lease(granted=True, ask=ask) for ask in (lambda: True, lambda: False, gone))


def test_everything_is_taken_until_a_round_fails_and_again_when_what_failed_is_learnt(tmp_path: Path) -> None:
    caution, taken = ClaimLimiter(400, tmp_path / "attempt"), []
    caution.fail(DIED, HELD)  # nothing had been claimed
    caution.take(map(str, range(400)))
    for first in (None, 0, 100, 200, 300):
        if first is None:
            caution.fail(DIED, HELD)
        else:
            caution.take(map(str, range(first, first + 100)))
            caution.succeed()
        taken.append(caution.max_claim)
    assert taken == [100, 100, 100, 100, 400]


def test_suspects_that_come_no_more_are_forgotten(tmp_path: Path) -> None:
    caution = ClaimLimiter(8, tmp_path / "attempt")
    caution.take("abcdefgh")
    caution.fail(DIED, HELD)
    caution.take("xy")
    caution.succeed()
    assert caution.max_claim == 8


@pytest.mark.parametrize(
    ("failure", "lease"),
    [(LeaseLost("got lost"), HELD), (BufferUnavailable("gone"), HELD), (DIED, LOST), (DIED, UNKNOWN)],
)
def test_a_failure_of_the_house_accuses_nobody_and_is_owed_until_it_is_repaid(tmp_path: Path, failure, lease) -> None:
    caution, forgiven = ClaimLimiter(8, tmp_path / "attempt"), []
    caution.take("ba")
    caution.fail(failure, lease)
    caution.take("c")
    caution.fail(failure, lease)
    assert (caution.has_suspects, caution.max_claim) == (False, 8)
    assert not (tmp_path / "attempt").exists()
    with pytest.raises(BufferUnavailable):
        caution.repay(gone)
    for _ in range(2):
        caution.repay(forgiven.append)
    assert forgiven == [["a", "b", "c"]]


def test_a_failure_of_the_house_acquits_nobody(tmp_path: Path) -> None:
    caution = ClaimLimiter(8, tmp_path / "attempt")
    caution.take("abcdefgh")
    caution.fail(DIED, HELD)
    caution.take("ab")
    caution.fail(LeaseLost("got lost"), HELD)
    assert (caution.has_suspects, caution.max_claim) == (True, 2)
    assert json.loads((tmp_path / "attempt").read_text()) == list("abcdefgh")


def test_a_successor_suspects_what_is_left_of_what_killed_and_nothing_once_it_is_learnt(tmp_path: Path) -> None:
    path = tmp_path / "attempt"
    ClaimLimiter(8, path).take("abcdefgh")
    for left, most in (("abcdefgh", 2), ("cdefgh", 1)):
        caution = ClaimLimiter(8, path)
        caution.recall()
        assert (caution.has_suspects, caution.max_claim) == (True, most)
        caution.take(left[:2])
        caution.succeed()
    caution.take("efgh")
    caution.succeed()
    assert not path.exists()
    caution.recall()
    assert (caution.has_suspects, caution.max_claim) == (False, 8)


def test_what_memory_knows_goes_before_the_file_which_says_more(tmp_path: Path) -> None:
    caution = ClaimLimiter(400, tmp_path / "attempt")
    caution.take(map(str, range(400)))
    caution.fail(DIED, HELD)
    caution.take(map(str, range(100)))
    caution.fail(DIED, HELD)
    (tmp_path / "attempt").write_text(json.dumps(list(map(str, range(400)))))  # the disk took no more behind that
    caution.recall()
    assert caution.max_claim == 25


@pytest.mark.parametrize("left", ['["1-1", ', "", "7", "null"])
def test_a_file_that_cannot_be_read_suspects_nobody_and_is_replaced(tmp_path: Path, left: str) -> None:
    path = tmp_path / "attempt"
    path.write_text(left)
    caution = ClaimLimiter(8, path)
    caution.recall()
    assert (caution.has_suspects, caution.max_claim) == (False, 8)
    caution.begin()
    assert json.loads(path.read_text()) == []


def test_a_disk_that_takes_no_more_is_met_before_anything_is_claimed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="file"):
        ClaimLimiter(8, tmp_path / "file" / "attempt").begin()


@pytest.mark.guarantee("poison-trace")
@pytest.mark.parametrize("kills", [False, True], ids=["fails", "kills"])
@pytest.mark.parametrize("poison", [0, 137, 399])
def test_of_400_traces_only_the_poisonous_one_is_lost(make_trace, tmp_path: Path, poison: int, kills: bool) -> None:
    buffer, sizes = MemoryTraceBuffer(BufferConfig()), []
    caution = ClaimLimiter(400, tmp_path / "attempt")
    ids = buffer.append([make_trace(seed, rounds=1) for seed in range(400)])
    for _ in range(40):
        claimed = [entry.entry_id for entry in buffer.claim("a", caution.max_claim)]
        caution.take(claimed)
        if ids[poison] in claimed:
            sizes.append(len(claimed))
            if kills:
                caution = ClaimLimiter(400, tmp_path / "attempt")
                caution.recall()
            else:
                caution.fail(DIED, HELD)
            buffer.resume("a")
        else:
            buffer.ack(claimed, "learned")
            caution.succeed()
    assert (sizes[:3], sizes[-1], len(sizes)) == ([400, 100, 25], 1, MAX_DELIVERIES)
    counts = buffer.counts()
    assert (counts.acked, counts.dead_lettered, counts.pending) == ({"learned": 399}, 1, 0)
