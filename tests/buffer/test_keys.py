"""The list of keys: one name pattern, one slot, and scripts whose headers agree with it."""

import re
from pathlib import Path

import paceline.buffer
import pytest
from paceline.buffer.keys import ALL_KEYS, HEARTBEAT, TRACES

PACKAGE = Path(paceline.buffer.__file__).parent
#: As release 0.1 has them: whoever runs beside it must meet it there.
RELEASED = {
    "traces": "stream",
    "payload:": "string",
    "counts": "hash",
    "bounds": "hash",
    "ledger": "list",
    "trace_ids": "hash",
    "dead_letters": "stream",
    "buried": "set",
    "events": "stream",
    "next_number": "string",
    "heartbeat:": "string",
    "boot:": "string",
    "last_reading:": "string",
    "members": "zset",
    "seen": "zset",
    "history:": "stream",
    "lease:": "string",
    "asked_round": "stream",
    "operator_token": "stream",
    "refused_operators": "stream",
}


def test_names_carry_the_speculator_as_a_cluster_hash_tag():
    assert TRACES.name("chat") == "paceline:{chat}:traces"
    assert HEARTBEAT.name("chat", "replica{0}") == "paceline:{chat}:heartbeat:replica{0}"


def test_members_of_two_releases_meet_under_the_same_keys():
    assert RELEASED.items() <= {key.suffix: key.type for key in ALL_KEYS}.items()


def test_no_two_keys_share_a_name():
    assert len({key.suffix for key in ALL_KEYS}) == len(ALL_KEYS)
    assert all(key.holds and key.writer and key.reader and key.lifetime for key in ALL_KEYS)


@pytest.mark.parametrize(
    "script", sorted(PACKAGE.rglob("*.lua"), key=lambda path: path.name), ids=lambda path: path.name
)
def test_the_header_of_a_script_maps_every_key_it_touches_as_the_list_does(script):
    text = script.read_text()
    mapped = re.findall(
        r"^-- .*KEYS\[(\d)\] +paceline:\{speculator\}:([\w:]+?)(?:\{member\})? +(\w+) ", text, re.MULTILINE
    )
    listed = {key.suffix: key.type for key in ALL_KEYS}
    assert mapped
    assert {suffix: kind for _, suffix, kind in mapped} == {suffix: listed[suffix] for _, suffix, _ in mapped}
    assert {index for index, _, _ in mapped} == set(re.findall(r"KEYS\[(\d)\]", text))
