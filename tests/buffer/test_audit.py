"""The audit trail: every change in the order Redis took it in, readable whatever was written into it."""

import json

import pytest
from paceline.buffer.board.audit import AuditEntry, audit_fields, audit_line, audit_trail
from paceline.buffer.board.version import BoardEvent, VersionState

CANDIDATE = BoardEvent(
    number=3, state=VersionState.CANDIDATE, by="learner", why="trained", at=1_700_000_000.0, event_id="1700000000000-0"
)
LIVE = BoardEvent(
    number=3, state=VersionState.LIVE, by="operator:ann", why="by hand", at=1_600_000_000.0, event_id="1700000000999-0"
)
REFUSAL = AuditEntry(
    entry_id="1700000000500-7",
    at=1_700_000_000.5,
    by="operator:eve",
    what="refused: rollback",
    why="got no token",
    refused=True,
)


def test_entries_are_in_the_order_of_redis_whatever_their_writers_clocks_said():
    trail = audit_trail([CANDIDATE, LIVE], [REFUSAL], str)
    assert [(entry.by, entry.what, entry.why, entry.refused) for entry in trail] == [
        ("learner", "version 3 candidate", "trained", False),
        ("operator:eve", "refused: rollback", "got no token", True),
        ("operator:ann", "version 3 live", "by hand", False),
    ]


def test_ids_are_compared_as_numbers():
    late = AuditEntry(entry_id="1700000000500-10", at=0.0, by="b", what="", why="")
    assert audit_trail([], [late, REFUSAL], str) == [REFUSAL, late]


@pytest.mark.guarantee("audit-lines")
def test_a_reason_cannot_write_lines_of_its_own_or_steer_the_terminal():
    forged = AuditEntry(
        entry_id="1-0", at=0.0, by="x\x1b[2J", what="y", why="why\n2023-11-14 22:13:20Z  operator:ann\r\x9b31m"
    )
    line = audit_line(forged)
    assert line.isprintable()
    assert json.loads(json.dumps(audit_fields(forged)))["why"] == forged.why


def test_fields_are_plain_values():
    assert audit_fields(REFUSAL) == {
        "at": 1_700_000_000.5,
        "when": "2023-11-14 22:13:20Z",
        "by": "operator:eve",
        "what": "refused: rollback",
        "why": "got no token",
        "refused": True,
    }
