"""ClaimLimiter: among many traces, the one that no learning round survives is soon claimed alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from paceline.buffer.board.lease import Lease
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable, DeviceOutOfMemory, LeaseLost
from paceline.buffer.stream.trace_buffer import MAX_DELIVERIES
from paceline.learner.claim.claim_limiter import ClaimLimiter
from twins.memory_stream import MemoryTraceBuffer

DIED = RuntimeError("caused by a trace")


def gone(*_):
    raise BufferUnavailable("gone")


HELD, LOST, UNKNOWN = (Lease(granted=True, ask=ask) for ask in (lambda: True, lambda: False, gone))


def test_the_whole_claim_is_allowed_until_it_fails_and_again_once_it_is_learned(tmp_path: Path) -> None:
    limiter, taken = ClaimLimiter(400, tmp_path / "attempt"), []
    limiter.record_failure(DIED, HELD)  # nothing had been claimed
    limiter.record_claim(map(str, range(400)))
    for first in (None, 0, 100, 200, 300):
        if first is None:
            limiter.record_failure(DIED, HELD)
        else:
            limiter.record_claim(map(str, range(first, first + 100)))
            limiter.record_success()
        taken.append(limiter.claim_limit)
    assert taken == [100, 100, 100, 100, 400]


def test_suspects_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    limiter = ClaimLimiter(8, tmp_path / "attempt")
    limiter.record_claim("abcdefgh")
    limiter.record_failure(DIED, HELD)
    limiter.record_claim("xy")
    limiter.record_success()
    assert limiter.claim_limit == 8


@pytest.mark.parametrize(
    ("failure", "lease"),
    [
        (LeaseLost("got lost"), HELD),
        (BufferUnavailable("gone"), HELD),
        (DeviceOutOfMemory("full"), HELD),
        (DIED, LOST),
        (DIED, UNKNOWN),
    ],
)
def test_no_traces_fault_accuses_none_and_is_owed_until_it_is_forgiven(tmp_path: Path, failure, lease) -> None:
    limiter, forgiven = ClaimLimiter(8, tmp_path / "attempt"), []
    limiter.record_claim("ba")
    limiter.record_failure(failure, lease)
    limiter.record_claim("c")
    limiter.record_failure(failure, lease)
    assert (limiter.has_suspects, limiter.claim_limit) == (False, 8)
    assert not (tmp_path / "attempt").exists()
    with pytest.raises(BufferUnavailable):
        limiter.forgive_owed(gone)
    for _ in range(2):
        limiter.forgive_owed(forgiven.append)
    assert forgiven == [["a", "b", "c"]]


def test_no_traces_fault_acquits_none(tmp_path: Path) -> None:
    limiter = ClaimLimiter(8, tmp_path / "attempt")
    limiter.record_claim("abcdefgh")
    limiter.record_failure(DIED, HELD)
    limiter.record_claim("ab")
    limiter.record_failure(LeaseLost("got lost"), HELD)
    assert (limiter.has_suspects, limiter.claim_limit) == (True, 2)
    assert json.loads((tmp_path / "attempt").read_text()) == {"claimed": list("abcdefgh"), "parts": 4}


def test_a_restarted_learner_suspects_the_claim_that_killed_until_it_is_learned(tmp_path: Path) -> None:
    path = tmp_path / "attempt"
    ClaimLimiter(8, path).record_claim("abcdefgh")
    for left, limit in (("abcdefgh", 2), ("cdefgh", 1)):
        limiter = ClaimLimiter(8, path)
        limiter.load_attempt()
        assert (limiter.has_suspects, limiter.claim_limit) == (True, limit)
        limiter.record_claim(left[:2])
        limiter.record_success()
    limiter.record_claim("efgh")
    limiter.record_success()
    assert not path.exists()
    limiter.load_attempt()
    assert (limiter.has_suspects, limiter.claim_limit) == (False, 8)


def test_memory_overrides_the_file_which_may_name_more(tmp_path: Path) -> None:
    limiter = ClaimLimiter(400, tmp_path / "attempt")
    limiter.record_claim(map(str, range(400)))
    limiter.record_failure(DIED, HELD)
    limiter.record_claim(map(str, range(100)))
    limiter.record_failure(DIED, HELD)
    (tmp_path / "attempt").write_text(
        json.dumps({"claimed": list(map(str, range(400))), "parts": 4})
    )  # as if the disk had been full since
    limiter.load_attempt()
    assert limiter.claim_limit == 25


@pytest.mark.parametrize(
    "left", ['["1-1", ', "", "7", "null", '["1-1"]', '{"claimed": ["1-1"]}', '{"claimed": ["1-1"], "parts": null}']
)
def test_with_an_unreadable_file_nothing_is_suspected_and_the_file_is_replaced(tmp_path: Path, left: str) -> None:
    path = tmp_path / "attempt"
    path.write_text(left)
    limiter = ClaimLimiter(8, path)
    limiter.load_attempt()
    assert (limiter.has_suspects, limiter.claim_limit) == (False, 8)
    limiter.prepare()
    assert json.loads(path.read_text())["claimed"] == []


def test_a_full_disk_is_noticed_before_anything_is_claimed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="file"):
        ClaimLimiter(8, tmp_path / "file" / "attempt").prepare()


@pytest.mark.guarantee("poison-trace")
@pytest.mark.parametrize("kills", [False, True], ids=["fails", "kills"])
@pytest.mark.parametrize(
    ("traces", "poison", "first_sizes"),
    [
        (400, 0, [400, 100, 25]),
        (400, 137, [400, 100, 25]),
        (400, 399, [400, 100, 25]),
        (511, 100, [511, 127, 31]),
        (512, 7, [512, 102, 20]),
        (1000, 999, [1000, 200, 40]),
        (3000, 1234, [3000, 428, 61]),
    ],
)
def test_of_a_whole_claim_only_the_poisonous_trace_is_lost(
    make_trace, tmp_path: Path, traces: int, poison: int, first_sizes: list[int], kills: bool
) -> None:
    buffer, sizes = MemoryTraceBuffer(BufferConfig()), []
    most = 10**6  # however many a learner may claim, what it has claimed decides
    limiter = ClaimLimiter(most, tmp_path / "attempt")
    one = make_trace(0, rounds=1)
    ids = buffer.append([replace(one, trace_id=str(number)) for number in range(traces)])
    for _ in range(60):
        claimed = [entry.entry_id for entry in buffer.claim("a", limiter.claim_limit)]
        limiter.record_claim(claimed)
        if ids[poison] in claimed:
            sizes.append(len(claimed))
            if kills:
                limiter = ClaimLimiter(most, tmp_path / "attempt")
                limiter.load_attempt()
            else:
                limiter.record_failure(DIED, HELD)
            buffer.resume("a")
        else:
            buffer.ack(claimed, "learned")
            limiter.record_success()
    assert (sizes[:3], sizes[-1], len(sizes)) == (first_sizes, 1, MAX_DELIVERIES)
    counts = buffer.counts()
    assert (counts.acked, counts.dead_lettered, counts.pending) == ({"learned": traces - 1}, 1, 0)
