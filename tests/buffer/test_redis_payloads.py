"""Payloads beside the stream of traces: they come with their entries, leave with them, and never stay for ever."""

import pytest
from paceline.buffer import redis_stream
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.keys import LEDGER, PAYLOAD, TRACES
from paceline.buffer.redis_payloads import NO_PAYLOAD, read_rows, send
from paceline.buffer.redis_stream import RedisTraceBuffer
from paceline.buffer.trace_codec import encode_trace

GRACE_MS = 60_000
CONFIG = BufferConfig(max_age_s=3600.0)


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


def test_a_longer_bound_on_age_keeps_the_payloads_that_are_there_and_a_shorter_one_changes_none(
    redis_client, make_trace
):
    lengths = (3600.0, 7200.0, 60.0)
    buffers = [RedisTraceBuffer(redis_client, BufferConfig(max_age_s=age)) for age in lengths]
    ids = [buffer.append([make_trace(seed)])[0] for seed, buffer in enumerate(buffers)]
    left_s = [ttl_ms(redis_client, entry_id) / 1000 for entry_id in ids]
    assert left_s == pytest.approx([7260.0, 7260.0, 120.0], abs=30.0)


def test_a_bound_on_age_beyond_what_redis_can_count_still_lets_traces_in(redis_client, make_trace):
    buffer = RedisTraceBuffer(redis_client, BufferConfig(max_age_s=1e15))
    buffer.append([make_trace(0)])
    assert trace_ids(buffer.claim("a", 9)) == ["trace-0"]


def test_a_payload_without_an_entry_expires_within_a_minute(redis_client):
    prefix = PAYLOAD.name("default")
    with redis_client.pipeline(transaction=False) as trip:
        send(trip, prefix, "new-a-", [b"never entered"])
        trip.execute()
    assert redis_client.get(prefix + "new-a-1") == b"never entered"
    assert 0 < ttl_ms(redis_client, "new-a-1") <= 60_000


def test_what_comes_before_a_missing_payload_is_stored_and_nothing_else(redis_client, buffer):
    for name in ("new-1", "new-3"):
        redis_client.set(PAYLOAD.name("default", name), b"abc")
    with pytest.raises(BufferUnavailable, match="payload 2 is not there"):
        buffer._run("append", "new-", "3 a", "3 b", "3 c")
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

    def late(client, prefix, page):
        if page:
            other.append([make_trace(1)])
        return read_rows(client, prefix, page)

    with monkeypatch.context() as patched:
        patched.setattr(redis_stream, "read_rows", late)
        buffer.claim("a", 1)
    counts = other.counts()
    assert (counts.delivered, counts.trimmed, counts.dead_lettered) == (2, 1, 0)
    assert counts.delivered == counts.pending + counts.trimmed
    assert other.dead_letters(9) == []


def test_what_an_older_release_wrote_into_its_entries_is_read_beside_what_has_payloads(
    redis_client, buffer, make_trace
):
    (first,) = buffer.append([make_trace(0)])
    ms, ordinal = first.split("-")
    redis_client.xadd(TRACES.name("default"), {"trace": encode_trace(make_trace(1))}, id=f"{ms}-{int(ordinal) + 1}")
    assert trace_ids(buffer.replay(9)) == ["trace-0", "trace-1"]
    assert trace_ids(buffer.claim("a", 9)) == ["trace-0", "trace-1"]


def test_payloads_of_a_stream_that_was_deleted_leave_with_the_next_call(redis_client, buffer, make_trace):
    buffer.append([make_trace(seed) for seed in range(3)])
    redis_client.delete(TRACES.name("default"))
    assert buffer.claim("a", 9) == []
    assert named(redis_client) == set()
    ids = buffer.append([make_trace(1)])
    assert named(redis_client) == set(ids)
