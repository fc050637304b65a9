"""The schema of a member's status: what one release sends, the next one must read."""

from pathlib import Path

import msgspec
import pytest
from paceline.buffer.board.member_board import MemberSeen
from paceline.buffer.board.member_status import (
    AlarmSaid,
    GoodputSaid,
    MemberStatus,
    MlflowRuns,
    MlflowWait,
    MlflowWaiting,
    PacingSaid,
    ProcessSaid,
    Speculation,
    SwapSaid,
    WorkSaid,
    read_status,
)

GOLDEN = Path(__file__).parent / "golden"
PROCESS = ProcessSaid(boot="b1", started_at=900.5, host="gpu-1", paceline="0.1.0", sglang="0.5.23")
SERVER = MemberStatus(
    at=1000.25,
    boot="b1",
    wanted="replica:r",
    standing_alarms=[AlarmSaid(name="hook_silent", detail="200 rounds, none captured", action="tell")],
    alarms=[AlarmSaid(name="silent_death", detail="accept length 1.0", action="roll_back", version=3, at=990.0)],
    draft_version=4,
    capture="on",
    captured=12,
    delivered=8,
    dropped={"gap": 1},
    open=2,
    queued=1,
    payload_bytes=4096,
    swap="on",
    is_canary=True,
    swaps=[
        SwapSaid(
            number=4,
            before=3,
            at=980.0,
            stage_ms=30.0,
            commit_ms=1.5,
            running=2,
            accept_length_before=2.0,
            accept_length_after=2.5,
        )
    ],
    pacing=PacingSaid(
        policy="goodput", goodput=[GoodputSaid(bucket=4, tokens_per_s=99.0, plain_tokens_per_s=88.0, steps=50)]
    ),
    server=msgspec.structs.replace(
        PROCESS,
        speculation=Speculation(algorithm="EAGLE3", num_steps=3, eagle_topk=1, num_draft_tokens=4, adaptive=False),
    ),
)
LEARNER = MemberStatus(
    at=1000.25,
    boot="b2",
    ended=True,
    beat_last_at=1000.0,
    kind="learning",
    why="3 traces pending",
    learn="rest",
    learn_reason="nothing new",
    fault="OSError: full",
    left="SystemExit: 1",
    stalled="ConfigError: no such folder",
    work=WorkSaid(phase="train", phase_s=5.0, block=1, blocks=4, step=3, steps=9),
    beat=True,
    pending_registrations=2,
    mlflow=MlflowRuns(run_page="https://mlflow/{run}", runs={"4": "ab12"}),
    mlflow_waiting=MlflowWaiting(
        at=999.0, count=2, longest=[MlflowWait(what="draft 4", since=950.0, why="no answer", action="start it")]
    ),
    learner=msgspec.structs.replace(PROCESS, boot="b2", sglang=""),
)


@pytest.mark.parametrize(("file", "expected"), [("status_server.json", SERVER), ("status_learner.json", LEARNER)])
def test_a_status_of_this_release_is_read_by_every_later_one(file: str, expected: MemberStatus) -> None:
    found, fault = read_status(msgspec.json.decode((GOLDEN / file).read_bytes()))
    assert fault == ""
    assert found == expected


def test_what_is_not_sent_is_unknown_and_what_a_later_release_sends_is_ignored() -> None:
    found, fault = read_status({"draft_version": 4, "news": {"a": [1]}, "work": {"phase": "p", "phase_s": 1, "x": 2}})
    assert fault == ""
    assert (found.draft_version, found.captured, found.open, found.dropped) == (4, None, None, None)
    assert (found.process.sglang, found.pacing, found.beat) == ("", None, None)
    assert found.work == WorkSaid(phase="p", phase_s=1.0)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"draft_version": "4"},
        {"alarms": "none"},
        {"standing_alarms": [{"name": 3}]},
        {"swaps": [{"number": 1}]},
        {"work": {"phase": 7, "phase_s": 1.0}},
        {"dropped": {"gap": "x\x1b[2J"}},
    ],
)
def test_a_spoilt_status_says_so_and_nothing_of_it_is_believed(spoilt: dict[str, object]) -> None:
    one = MemberSeen(status={"capture": "on", **spoilt}, last_seen_at=9.0, is_alive=True)
    assert one.said == MemberStatus()
    assert one.fault.startswith("status cannot be read: ")
    assert one.fault.isprintable()
