"""Payloads apart from the stream of traces: they come with their entries, leave with them, and never stay for ever.

Every payload is taken as a large one here, but where a test says otherwise.
"""

import pytest
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.keys import LEDGER, PAYLOAD, TRACES
from paceline.buffer.stream import redis_payloads
from paceline.buffer.stream.redis_payloads import APART_BYTES, NO_PAYLOAD, RedisPayloads
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.buffer.stream.trace_codec import encode_trace

GRACE_MS = 60_000
CONFIG = BufferConfig(max_age_s=3600.0)


@pytest.fixture(autouse=True)
def all_apart(monkeypatch) -> None:
    monkeypatch.setattr(redis_payloads, "APART_BYTES", 1)


@pytest.fixture
def buffer(redis_client) -> RedisTraceBuffer:
    return RedisTraceBuffer(redis_client, CONFIG)


def named(redis_client) -> set[str]:
    """What follows `payload:` in the name of every payload."""
    prefix = PAYLOAD.name("default")
    return {name.decode().removeprefix(prefix) for name in redis_client.scan_iter(match=f"{prefix}*")}


def ttl_ms(redis_client, entry_id: str) -> int:
    return redis_client.pttl(PAYLOAD.name("default", entry_id))


def trace_ids(entries) -> list[str]:
    return [entry.trace.trace_id for entry in entries]


def test_every_entry_has_its_payload_and_one_sent_twice_leaves_none(redis_client, buffer, make_trace):
    traces = [make_trace(seed) for seed in range(3)]
    ids = buffer.append([*traces, traces[1]])
    assert named(redis_client) == set(ids)
    assert len(set(ids)) == 3
    assert buffer.append(traces) == ids[:3]
    assert named(redis_client) == set(ids)
    assert redis_client.get(PAYLOAD.name("default", ids[2])) == encode_trace(traces[2])
    assert redis_client.xrange(TRACES.name("default"), ids[2])[0][1] == {b"bytes": b"%d" % len(encode_trace(traces[2]))}


def test_a_payload_leaves_with_its_entry_by_size_and_by_age(redis_client):
    now = [1_700_000_000.0]
    buffer = RedisTraceBuffer(redis_client, BufferConfig(max_bytes=10, max_age_s=60.0), lambda: now[0])
    ids = buffer._append_raw([b"1234", b"5678", b"90"])
    assert named(redis_client) == set(ids)
    ids += buffer._append_raw([b"ab"])
    assert named(redis_client) == set(ids[1:])
    now[0] += 61.0
    assert buffer.counts().trimmed == 4
    assert named(redis_client) == set()


def test_a_payload_expires_by_itself_a_minute_after_its_entry_may_leave(redis_client, buffer, make_trace):
    (entry_id,) = buffer.append([make_trace()])
    assert 3_600_000 < ttl_ms(redis_client, entry_id) <= 3_600_000 + GRACE_MS


def test_payloads_expire_by_the_longest_age_that_anybody_asked_for(redis_client, make_trace):
    lengths = (3600.0, 7200.0, 60.0)
    buffers = [RedisTraceBuffer(redis_client, BufferConfig(max_age_s=age)) for age in lengths]
    ids = [buffer.append([make_trace(seed)])[0] for seed, buffer in enumerate(buffers)]
    left_s = [ttl_ms(redis_client, entry_id) / 1000 for entry_id in ids]
    assert left_s == pytest.approx([7260.0] * 3, abs=30.0)


def test_a_bound_on_age_beyond_what_redis_can_count_still_lets_traces_in(redis_client, make_trace):
    buffer = RedisTraceBuffer(redis_client, BufferConfig(max_age_s=1e15))
    buffer.append([make_trace(0)])
    assert trace_ids(buffer.claim("a", 9)) == ["trace-0"]


def test_a_payload_without_an_entry_is_taken_back_and_expires_within_a_minute(redis_client, monkeypatch):
    taken = RedisTraceBuffer(redis_client, CONFIG)
    redis_client.set(TRACES.name("default"), "taken")
    with monkeypatch.context() as patched:
        patched.setattr(RedisPayloads, "_discard", lambda *_: None)  # it went away at this moment
        with pytest.raises(BufferUnavailable, match="another program uses a key"):
            taken._append_raw([b"never entered"])
    (name,) = named(redis_client)
    assert redis_client.get(PAYLOAD.name("default", name)) == b"never entered"
    assert 0 < ttl_ms(redis_client, name) <= 60_000
    with pytest.raises(BufferUnavailable, match="another program uses a key"):
        taken._append_raw([b"never entered either"])
    assert named(redis_client) == {name}


def test_what_comes_before_a_missing_payload_is_stored_and_nothing_else(redis_client, buffer):
    for name in ("new-1", "new-3"):
        redis_client.set(PAYLOAD.name("default", name), b"abc")
    with pytest.raises(BufferUnavailable, match="payload 2 is not there"):
        buffer._run("append", "new-", "3 a", b"", "3 b", b"", "3 c", b"")
    counts = buffer.counts()
    assert (counts.delivered, counts.entries, counts.bytes, counts.pending) == (1, 1, 3, 1)
    assert len(redis_client.lrange(LEDGER.name("default"), 0, -1)) == 1
    assert buffer._append_raw([b"abc"], ["a"])[0] in named(redis_client)
    assert buffer.counts().delivered == 1


def test_a_server_that_forgot_the_script_stores_a_batch_once(redis_client, buffer, make_trace):
    redis_client.script_flush()
    ids = buffer.append([make_trace(0), make_trace(1)])
    assert named(redis_client) == set(ids)
    assert buffer.counts().delivered == 2
    assert trace_ids(buffer.claim("a", 9)) == ["trace-0", "trace-1"]


def test_an_entry_without_its_payload_is_a_dead_letter_that_says_so(redis_client, buffer, make_trace):
    ids = buffer.append([make_trace(seed) for seed in range(3)])
    redis_client.delete(PAYLOAD.name("default", ids[1]))
    assert trace_ids(buffer.replay(9)) == ["trace-0", "trace-2"]
    assert trace_ids(buffer.claim("a", 9)) == ["trace-0", "trace-2"]
    assert buffer.dead_letters(9) == [(NO_PAYLOAD, b"")]
    counts = buffer.counts()
    assert (counts.delivered, counts.pending, counts.dead_lettered) == (3, 2, 1)


def test_an_entry_that_is_trimmed_while_it_is_claimed_is_counted_as_trimmed(
    redis_client, buffer, make_trace, monkeypatch
):
    buffer.append([make_trace(0)])
    other = RedisTraceBuffer(redis_client, BufferConfig(max_bytes=len(encode_trace(make_trace(1)))))

    in_time = RedisPayloads.rows

    def late(payloads, page):
        if page:
            other.append([make_trace(1)])
        return in_time(payloads, page)

    with monkeypatch.context() as patched:
        patched.setattr(RedisPayloads, "rows", late)
        buffer.claim("a", 1)
    counts = other.counts()
    assert (counts.delivered, counts.trimmed, counts.dead_lettered) == (2, 1, 0)
    assert counts.delivered == counts.pending + counts.trimmed
    assert other.dead_letters(9) == []


def test_small_payloads_are_inside_their_entries_as_those_of_earlier_releases_are(redis_client, buffer, monkeypatch):
    assert APART_BYTES == 65_536
    monkeypatch.setattr(redis_payloads, "APART_BYTES", APART_BYTES)
    payloads = [b"", b"a" * 65_535, b"b" * 65_536, b"c" * 10]
    ids = buffer._append_raw(payloads, ["w", "x", "y", "z"])
    assert buffer._append_raw(payloads, ["w", "x", "y", "z"]) == ids
    assert named(redis_client) == {ids[2]}
    assert redis_client.get(PAYLOAD.name("default", ids[2])) == payloads[2]
    inside = [fields for _, fields in redis_client.xrange(TRACES.name("default"))]
    assert inside == [{b"trace": b""}, {b"trace": payloads[1]}, {b"bytes": b"65536"}, {b"trace": payloads[3]}]
    assert buffer.counts().bytes == 131_081
    with pytest.raises(StopIteration):
        next(buffer.replay(9))  # none of them is a trace
    assert buffer.claim("a", 9) == []
    assert [raw for _, raw in buffer.dead_letters(9)] == payloads


def test_payloads_of_a_stream_that_was_deleted_leave_with_the_next_call(redis_client, buffer, make_trace):
    buffer.append([make_trace(seed) for seed in range(3)])
    redis_client.delete(TRACES.name("default"))
    assert buffer.claim("a", 9) == []
    assert named(redis_client) == set()
    ids = buffer.append([make_trace(1)])
    assert named(redis_client) == set(ids)


def test_a_payload_of_a_clock_that_was_set_back_outlives_its_entry(redis_client, make_trace):
    now = [1_700_000_000.0]
    buffer = RedisTraceBuffer(redis_client, CONFIG, lambda: now[0])
    buffer.append([make_trace(0)])
    now[0] -= 1000.0
    (entry_id,) = buffer.append([make_trace(1)])
    assert 4_600_000 < ttl_ms(redis_client, entry_id) <= 4_600_000 + GRACE_MS
