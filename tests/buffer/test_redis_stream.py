"""What only the Redis buffer can get wrong: groups, restarts of a learner, protocols, races, edits by hand."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import redis
from fleet import version
from paceline.buffer.board.counters import Counters
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.redis_operator import OperatorAuth
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable, ConfigError, OperatorRefused
from paceline.buffer.keys import ALL_KEYS, BOUNDS, COUNTS, DEAD_LETTERS, LEDGER, PAYLOAD, TRACE_IDS, TRACES
from paceline.buffer.stream import redis_payloads
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.buffer.stream.trace_codec import encode_trace

CONFIG = BufferConfig()


def names(entries) -> list[str]:
    return [entry.trace.trace_id for entry in entries]


def balance(counts) -> int:
    return counts.delivered - counts.pending - counts.dead_lettered - sum(counts.acked.values()) - counts.trimmed


def test_a_restarted_learner_is_offered_what_it_left_pending_page_by_page_before_new_entries(redis_client, make_trace):
    before = RedisTraceBuffer(redis_client, CONFIG)
    ids = before.append([make_trace(seed) for seed in range(6)])
    before.claim("a", 3)
    before.claim("b", 1)
    before.ack(ids[:1], "trained")
    after = RedisTraceBuffer(redis_client, CONFIG)
    assert names(after.claim("a", 1)) == ["trace-1"]
    assert names(after.claim("a", 1)) == ["trace-2"]
    assert names(after.claim("a", 9)) == ["trace-4", "trace-5"]
    assert after.claim("a", 9) == []
    assert after.ack(ids, "trained") == 5


def test_an_entry_that_a_restarted_learner_claimed_again_is_not_idle(redis_client, make_trace):
    (entry_id,) = RedisTraceBuffer(redis_client, CONFIG).append([make_trace()])
    RedisTraceBuffer(redis_client, CONFIG).claim("a", 1)
    redis_client.xclaim(TRACES.name("default"), "learners", "a", 0, [entry_id], idle=CONFIG.claim_idle_ms, justid=True)
    assert names(RedisTraceBuffer(redis_client, CONFIG).claim("a", 1)) == ["trace-0"]
    assert RedisTraceBuffer(redis_client, CONFIG).claim("b", 1) == []


def test_entries_deleted_or_added_by_hand_do_not_stop_a_claim(redis_client, make_trace):
    buffer = RedisTraceBuffer(redis_client, BufferConfig(claim_idle_ms=0))
    ids = buffer.append([make_trace(0), make_trace(1)])
    buffer.claim("a", 1)
    redis_client.xdel(TRACES.name("default"), ids[0])
    redis_client.xadd(TRACES.name("default"), {"note": "by hand"})
    assert names(buffer.claim("b", 9)) == ["trace-1"]
    assert [raw for _, raw in buffer.dead_letters(9)] == [b""]
    assert names(buffer.replay(9)) == ["trace-1"]


def test_a_dead_letter_found_on_restart_is_buried_once(redis_client, make_trace):
    before = RedisTraceBuffer(redis_client, CONFIG)
    before.append([make_trace(0)])
    before.claim("a", 1)
    (entry_id,) = before._append_raw([b"bad"])
    redis_client.xreadgroup("learners", "a", {TRACES.name("default"): ">"})  # died between reading and burying
    after = RedisTraceBuffer(redis_client, CONFIG)
    assert names(after.claim("a", 9)) == ["trace-0"]
    assert after._run("bury", entry_id, "again", b"bad") == 0
    assert after.dead_letters(9) == [(after.dead_letters(1)[0][0], b"bad")]
    assert balance(after.counts()) == 0


def test_a_trace_that_was_stored_before_the_stream_was_deleted_is_stored_again(redis_client, make_trace):
    buffer = RedisTraceBuffer(redis_client, CONFIG)
    buffer.append([make_trace(0)])
    redis_client.delete(TRACES.name("default"), COUNTS.name("default"))
    buffer.append([make_trace(0)])
    assert names(buffer.claim("a", 9)) == ["trace-0"]
    assert (buffer.counts().delivered, buffer.counts().entries) == (1, 1)


def test_a_stream_without_stored_bounds_is_held_to_the_callers(redis_client, make_trace):
    """A release that stores no bounds may be writing; its traces must leave by age all the same."""
    now = [1_700_000_000.0]
    writer, reader = [
        RedisTraceBuffer(redis_client, BufferConfig(max_age_s=age), lambda: now[0]) for age in (60.0, 3600.0)
    ]
    writer.append([make_trace()])
    redis_client.delete(BOUNDS.name("default"))
    now[0] += 61.0
    assert reader.counts().entries == 1
    now[0] += 3600.0
    assert (reader.counts().entries, reader.counts().trimmed) == (0, 1)


def test_a_destroyed_group_is_made_again_from_the_beginning_and_the_balance_holds(redis_client, make_trace):
    buffer = RedisTraceBuffer(redis_client, BufferConfig(max_bytes=4 * len(encode_trace(make_trace(0)))))
    ids = buffer._append_raw([encode_trace(make_trace(0))] * 6)
    buffer.claim("a", 2)
    buffer.ack(ids, "trained")
    redis_client.xgroup_destroy(TRACES.name("default"), "learners")
    assert names(buffer.claim("a", 3)) == ["trace-0"] * 3
    buffer.append([make_trace(0)])
    counts = buffer.counts()
    assert (counts.delivered, counts.pending, counts.trimmed, balance(counts)) == (5, 4, 1, 0)
    assert counts.bytes == 4 * len(encode_trace(make_trace(0)))


@pytest.mark.parametrize("legacy_responses", [True, False])
@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_are_understood_in_every_shape_of_redis_py(
    redis_url, redis_client, make_trace, protocol, legacy_responses
):
    with redis.Redis.from_url(redis_url, protocol=protocol, legacy_responses=legacy_responses) as client:
        buffer = RedisTraceBuffer(client, CONFIG)
        ids = buffer.append([make_trace(seed) for seed in range(3)])
        buffer._append_raw([b"bad"])
        assert names(buffer.claim("a", 9)) == ["trace-0", "trace-1", "trace-2"]
        assert buffer.claim("a", 9) == []
        assert names(RedisTraceBuffer(client, CONFIG).claim("a", 2)) == ["trace-0", "trace-1"]
        assert names(RedisTraceBuffer(client, BufferConfig(claim_idle_ms=0)).claim("b", 1)) == ["trace-0"]
        assert buffer.ack(ids[:2], "trained") == 2
        assert names(buffer.replay(9)) == ["trace-0", "trace-1", "trace-2"]
        assert names(buffer.replay(9, acked_only=True)) == ["trace-0", "trace-1"]
        assert [raw for _, raw in buffer.dead_letters(9)] == [b"bad"]
        counts = buffer.counts()
        assert (counts.delivered, counts.pending, counts.dead_lettered, counts.acked) == (4, 1, 1, {"trained": 2})
        board = RedisVersionBoard(client, CONFIG)
        board.register(version(0), "test", "first")
        board.beat("replica-0", MemberStatus(draft_version=0), 60.0)
        assert board.read().rows[0].version == version(0)
        assert board.heartbeats() == {"replica-0": MemberStatus(draft_version=0)}


def test_a_client_that_decodes_replies_to_text_is_refused(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        with pytest.raises(ConfigError, match="got decode_responses=True, expected False"):
            RedisTraceBuffer(client, CONFIG)
        with pytest.raises(ConfigError, match="got decode_responses=True, expected False"):
            RedisVersionBoard(client, CONFIG)


def test_learners_that_claim_at_the_same_time_share_the_stream_without_overlap(redis_client, make_trace):
    buffer = RedisTraceBuffer(redis_client, CONFIG)
    ids = buffer.append([make_trace(seed, rounds=1) for seed in range(60)])
    with ThreadPoolExecutor(6) as pool:
        shares = list(pool.map(lambda n: buffer.claim(f"learner-{n}", 10), range(6)))
    assert sorted(entry.entry_id for share in shares for entry in share) == sorted(ids)


def test_an_entry_acked_by_many_at_the_same_time_is_counted_once(redis_client, make_trace):
    buffer = RedisTraceBuffer(redis_client, CONFIG)
    ids = buffer.append([make_trace(seed, rounds=1) for seed in range(20)])
    buffer.claim("a", 20)
    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(lambda _: buffer.ack(ids, "trained"), range(6))) == 20
    assert buffer.counts().acked == {"trained": 20}


def test_the_server_dates_entries_when_no_clock_is_given(redis_client, make_trace):
    buffer = RedisTraceBuffer(redis_client, CONFIG)
    seconds, micros = redis_client.time()
    (entry_id,) = buffer.append([make_trace()])
    assert 0 <= int(entry_id.partition("-")[0]) - (seconds * 1000 + micros // 1000) < 60_000


def test_speculators_do_not_see_each_other(redis_client, make_trace):
    one, other = (RedisTraceBuffer(redis_client, BufferConfig(speculator=name)) for name in ("one", "other"))
    one.append([make_trace(1)])
    assert other.claim("a", 9) == []
    assert names(one.claim("a", 9)) == ["trace-1"]


def test_every_key_in_redis_is_listed_with_its_type(redis_client, make_trace, monkeypatch):
    monkeypatch.setattr(redis_payloads, "APART_BYTES", 1)
    buffer, board = RedisTraceBuffer(redis_client, CONFIG), RedisVersionBoard(redis_client, CONFIG)
    (bad,) = buffer._append_raw([b"bad"])
    (good,) = buffer.append([make_trace()])
    buffer.ack([entry.entry_id for entry in buffer.claim("a", 9)], "trained")
    board.register(version(board.next_number()), "test", "first")
    board.claim("m", "a", 60.0)
    board.beat("m", MemberStatus(counters=Counters(at=1.0, boot="a")), 60.0)
    buffer.ask_for_round("trainer")
    auth = OperatorAuth(redis_client, CONFIG)
    auth.set_token("a token of some length", None, "operator:ann", "why")
    with pytest.raises(OperatorRefused):
        auth.require(None, "operator:eve", "rollback")
    with board.lease("l", 60.0):
        found = {name.decode(): redis_client.type(name).decode() for name in redis_client.scan_iter()}
    assert found.pop(PAYLOAD.name("default", bad)) == PAYLOAD.type
    member = {"payload:": good, "heartbeat:": "m", "last_reading:": "m", "history:": "m", "boot:": "m", "lease:": "l"}
    assert found == {key.name("default", member.get(key.suffix, "")): key.type for key in ALL_KEYS}
    assert all(name.startswith("paceline:{default}:") for name in found)


def test_a_batch_that_redis_has_no_memory_for_is_not_stored_in_part(redis_client, make_trace):
    buffer = RedisTraceBuffer(redis_client, CONFIG)
    (first,) = buffer.append([make_trace(0)])
    redis_client.config_set("maxmemory", 1)
    try:
        with pytest.raises(BufferUnavailable, match=r"maxmemory.*PACELINE_BUFFER_MAX_BYTES"):
            buffer.append([make_trace(1), make_trace(2)])
        assert names(buffer.claim("a", 9)) == ["trace-0"]
        assert buffer.ack([first], "trained") == 1
    finally:
        redis_client.config_set("maxmemory", 0)
    counts = buffer.counts()
    assert (counts.delivered, counts.acked, balance(counts)) == (1, {"trained": 1}, 0)


def test_a_batch_is_one_trip_and_what_it_repeats_is_counted_once(redis_client, make_trace, monkeypatch):
    monkeypatch.setattr(redis_payloads, "APART_BYTES", 1)
    traces, buffer = [make_trace(seed) for seed in range(4)], RedisTraceBuffer(redis_client, CONFIG)
    buffer.counts()  # the script is there
    redis_client.config_resetstat()
    ids = buffer.append([traces[3], *traces, traces[0]])
    calls = {name: row["calls"] for name, row in redis_client.info("commandstats").items()}
    assert (calls["cmdstat_set"], calls["cmdstat_evalsha"], calls["cmdstat_rename"]) == (6, 1, 4)
    assert [ids[4], ids[5]] == [ids[0], ids[1]]
    assert names(buffer.claim("a", 9)) == ["trace-3", "trace-0", "trace-1", "trace-2"]
    assert (buffer.append(traces), buffer.counts().delivered) == ([*ids[1:4], ids[0]], 4)


@pytest.mark.parametrize("apart_bytes", [1, redis_payloads.APART_BYTES])
def test_what_fails_is_told_of_without_its_bytes(redis_client, make_trace, monkeypatch, apart_bytes):
    monkeypatch.setattr(redis_payloads, "APART_BYTES", apart_bytes)
    buffer, traces = RedisTraceBuffer(redis_client, CONFIG), [make_trace(seed) for seed in range(3)]
    redis_client.config_set("maxmemory", 1)
    try:
        with pytest.raises(BufferUnavailable, match="maxmemory") as failed:
            buffer.append(traces)
    finally:
        redis_client.config_set("maxmemory", 0)
    assert "Command #" not in str(failed.value)  # after which redis-py repeats it
    assert len(set(buffer.append(traces))) == buffer.counts().delivered == 3


@pytest.mark.parametrize("restarted", [False, True])
def test_lower_bounds_make_room_in_a_redis_without_memory(redis_client, restarted):
    size = 1 << 20
    RedisTraceBuffer(redis_client, CONFIG)._append_raw([b"old" + bytes(size)] * 6)
    lower = RedisTraceBuffer(redis_client, replace(CONFIG, max_bytes=3 * size))  # what the error tells people to do
    redis_client.config_set("maxmemory", redis_client.info("memory")["used_memory"] - size)
    try:
        with pytest.raises(BufferUnavailable, match="maxmemory"):
            RedisTraceBuffer(redis_client, CONFIG)._append_raw([bytes(size)])
        if restarted:
            redis_client.script_flush()
        (newest,) = lower._append_raw([bytes(size)])
        assert redis_client.get(PAYLOAD.name("default", newest)) == bytes(size)
        assert (lower.counts().trimmed, lower.counts().entries) == (5, 2)
    finally:
        redis_client.config_set("maxmemory", 0)


def test_lower_bounds_make_room_for_small_traces_however_full_redis_is(redis_client, make_trace):
    RedisTraceBuffer(redis_client, CONFIG).append([make_trace(seed) for seed in range(6)])
    largest = max(len(encode_trace(make_trace(seed))) for seed in range(7))
    lower = RedisTraceBuffer(redis_client, replace(CONFIG, max_bytes=largest))
    redis_client.config_set("maxmemory", 1)
    try:
        lower.append([make_trace(6)])
        assert names(lower.claim("a", 9)) == ["trace-6"]
        assert lower.counts().trimmed == 6
    finally:
        redis_client.config_set("maxmemory", 0)


def test_a_batch_that_found_memory_for_its_beginning_alone_is_stored_once_when_it_is_sent_again(redis_client):
    size, buffer = 1 << 20, RedisTraceBuffer(redis_client, CONFIG)
    payloads, trace_ids = [bytes([n]) + bytes(size) for n in range(6)], [f"trace-{n}" for n in range(6)]
    buffer.counts()
    redis_client.config_set("maxmemory", redis_client.info("memory")["used_memory"] + 3 * size + (size >> 1))
    try:
        with pytest.raises(BufferUnavailable, match="maxmemory"):
            buffer._append_raw(payloads, trace_ids)
    finally:
        redis_client.config_set("maxmemory", 0)
    first = buffer.counts()
    assert 0 < first.delivered < 6
    assert first.bytes == first.delivered * (size + 1)
    assert len(list(redis_client.scan_iter(match=PAYLOAD.name("default") + "*"))) == first.delivered
    ids = buffer._append_raw(payloads, trace_ids)
    assert [redis_client.get(PAYLOAD.name("default", entry_id)) for entry_id in ids] == payloads
    assert (buffer.counts().delivered, balance(buffer.counts())) == (6, 0)


def test_a_full_redis_whose_stream_was_deleted_gets_its_memory_back(redis_client):
    size, buffer = 1 << 20, RedisTraceBuffer(redis_client, CONFIG)
    buffer._append_raw([bytes(size)] * 4)
    redis_client.delete(TRACES.name("default"))
    redis_client.config_set("maxmemory", redis_client.info("memory")["used_memory"] - size)
    try:
        assert buffer.claim("a", 9) == []
        (entry_id,) = buffer._append_raw([bytes(size)])
        assert redis_client.get(PAYLOAD.name("default", entry_id)) == bytes(size)
    finally:
        redis_client.config_set("maxmemory", 0)


@pytest.mark.parametrize("key", [TRACES, COUNTS])
def test_a_key_taken_by_another_program_is_reported_with_what_to_do(redis_client, make_trace, key):
    redis_client.set(key.name("default"), "taken")
    with pytest.raises(BufferUnavailable, match="another program uses a key"):
        RedisTraceBuffer(redis_client, CONFIG).append([make_trace()])


def test_a_dead_letter_that_cannot_be_buried_stays_pending(redis_client):
    buffer = RedisTraceBuffer(redis_client, CONFIG)
    buffer._append_raw([b"bad"])
    redis_client.set(DEAD_LETTERS.name("default"), "taken")
    with pytest.raises(BufferUnavailable, match="another program uses a key"):
        buffer.claim("a", 9)
    assert (buffer.counts().pending, balance(buffer.counts())) == (1, 0)


def test_a_long_batch_is_entered_whole_and_what_it_names_twice_is_stored_once(redis_client):
    buffer = RedisTraceBuffer(redis_client, CONFIG)
    payloads, trace_ids = [b"%d" % n for n in range(2503)], [f"trace-{n % 2500}" for n in range(2503)]
    ids = buffer._append_raw([*payloads, b"nameless"], [*trace_ids, ""])
    assert ids[2500:2503] == ids[:3]
    assert [entry_id.split("-")[1] for entry_id in (*ids[:2500], ids[-1])] == [str(n + 1) for n in range(2501)]
    assert buffer._append_raw(payloads, trace_ids) == ids[:2503]  # all of them are there
    speculator, counts = CONFIG.speculator, buffer.counts()
    assert (counts.delivered, counts.entries) == (2501, 2501)
    assert counts.bytes == sum(map(len, payloads[:2500])) + len(b"nameless")
    kept = redis_client.lrange(LEDGER.name(speculator), 0, -1)
    wanted = [f"{i} {len(p)} {name}" for i, p, name in zip(ids[:2500], payloads, trace_ids, strict=False)]
    assert [row.decode() for row in kept] == [*wanted, f"{ids[-1]} 8 "]
    assert redis_client.hlen(TRACE_IDS.name(speculator)) == 2500
    assert redis_client.hget(TRACE_IDS.name(speculator), "trace-2499").decode() == ids[2499]
