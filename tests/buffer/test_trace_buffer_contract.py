"""One contract, two buffers: every test runs on memory and on Redis and must not see a difference."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import redis
from paceline.buffer.config import BufferConfig
from paceline.buffer.keys import DEAD_LETTERS_KEPT, TRACES
from paceline.buffer.stream.trace_buffer import MAX_DELIVERIES, BufferCounts, TraceBuffer, entry_order
from paceline.buffer.stream.trace_codec import encode_trace
from twins.memory_stream import MemoryStream, MemoryTraceBuffer

IDLE_S = 600.0
BACKENDS = ["memory", "redis"]


@dataclass
class Clock:
    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class MemoryBackend:
    clock: Clock = field(default_factory=Clock)
    stream: MemoryStream = field(default_factory=MemoryStream)

    def open(self, **config: object) -> TraceBuffer:
        return MemoryTraceBuffer(BufferConfig(**config), self.clock, self.stream)

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds


@dataclass
class RedisBackend:
    client: redis.Redis
    clock: Clock = field(default_factory=Clock)

    def open(self, **config: object) -> TraceBuffer:
        from paceline.buffer.stream.redis_stream import RedisTraceBuffer

        return RedisTraceBuffer(self.client, BufferConfig(**config), self.clock)

    def pass_time(self, seconds: float) -> None:
        """Redis measures idleness by its own clock, so the pending entries are made older there."""
        self.clock.now += seconds
        key, group = TRACES.name("default"), "learners"
        if not self.client.exists(key):
            return
        for row in self.client.xpending_range(key, group, "-", "+", 1000):
            idle_ms = int(row["time_since_delivered"] + seconds * 1000)
            self.client.xclaim(key, group, row["consumer"], 0, [row["message_id"]], idle=idle_ms, justid=True)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> MemoryBackend | RedisBackend:
    if request.param == "memory":
        return MemoryBackend()
    return RedisBackend(request.getfixturevalue("redis_client"))


@pytest.fixture
def buffer(backend) -> TraceBuffer:
    return backend.open()


def names(entries) -> list[str]:
    return [entry.trace.trace_id for entry in entries]


def balance(counts: BufferCounts) -> int:
    """Zero when no trace is lost or counted twice."""
    return counts.delivered - counts.pending - counts.dead_lettered - sum(counts.acked.values()) - counts.trimmed


def test_a_new_buffer_is_empty(buffer):
    assert buffer.counts() == BufferCounts(delivered=0, pending=0, dead_lettered=0, acked={}, trimmed=0, bytes=0)
    assert buffer.claim("a", 5) == []
    assert list(buffer.replay(5)) == []
    assert buffer.dead_letters(5) == []
    assert buffer.append([]) == []


def test_claim_returns_the_appended_traces_oldest_first_under_their_ids(buffer, make_trace):
    traces = [make_trace(seed) for seed in range(3)]
    ids = buffer.append(traces[:2]) + buffer.append(traces[2:])
    entries = buffer.claim("a", 10)
    assert [entry.entry_id for entry in entries] == ids
    assert [encode_trace(entry.trace) for entry in entries] == [encode_trace(trace) for trace in traces]


def test_ids_sort_by_age_even_when_the_clock_goes_back(backend, make_trace):
    buffer = backend.open()
    first = buffer.append([make_trace(0), make_trace(1)])
    backend.clock.now -= 3600
    ids = first + buffer.append([make_trace(2)])
    order = [entry_order(entry_id) for entry_id in ids]
    assert order == sorted(set(order)) == [tuple(map(int, entry_id.split("-"))) for entry_id in ids]


def test_a_trace_appended_again_after_a_lost_reply_is_one_entry(buffer, make_trace):
    ids = buffer.append([make_trace(0), make_trace(1)])
    assert buffer.append([make_trace(1), make_trace(2), make_trace(2)]) == [ids[1], *([buffer_ids(buffer)[2]] * 2)]
    assert buffer.append([make_trace(0), make_trace(1)]) == ids
    assert (buffer.counts().delivered, buffer.counts().entries, balance(buffer.counts())) == (3, 3, 0)
    assert buffer.counts().bytes == sum(len(encode_trace(make_trace(seed))) for seed in range(3))
    assert names(buffer.claim("a", 9)) == ["trace-0", "trace-1", "trace-2"]
    assert buffer.ack(ids, "trained") == 2
    assert buffer.append([make_trace(0)]) == ids[:1]
    assert buffer.claim("a", 9) == []


def test_a_trace_that_left_the_stream_may_be_appended_again(backend, make_trace):
    odd = make_trace(0, trace_id="replica é 7 \n 12")
    buffer = backend.open(max_age_s=60.0)
    first = buffer.append([odd])
    backend.pass_time(61.0)
    second = buffer.append([odd])
    assert entry_order(second[0]) > entry_order(first[0])
    assert buffer.append([odd]) == second
    assert buffer.counts() == BufferCounts(
        delivered=2, pending=1, dead_lettered=0, acked={}, trimmed=1, bytes=len(encode_trace(odd)), entries=1
    )


def buffer_ids(buffer: TraceBuffer) -> list[str]:
    return [entry.entry_id for entry in buffer.replay(99)]


def test_no_trace_is_claimed_twice(buffer, make_trace):
    buffer.append([make_trace(seed) for seed in range(5)])
    assert names(buffer.claim("a", 2)) == ["trace-0", "trace-1"]
    assert names(buffer.claim("b", 2)) == ["trace-2", "trace-3"]
    assert names(buffer.claim("a", 2)) == ["trace-4"]
    assert buffer.claim("b", 2) == []


def test_claiming_at_most_zero_traces_claims_none(buffer, make_trace):
    buffer.append([make_trace()])
    assert buffer.claim("a", 0) == []
    assert names(buffer.claim("a", 1)) == ["trace-0"]


def test_ack_counts_each_pending_entry_once(buffer, make_trace):
    ids = buffer.append([make_trace(seed) for seed in range(4)])
    buffer.claim("a", 3)
    assert buffer.ack(ids[:2], "trained") == 2
    assert buffer.ack([ids[0], ids[2], ids[2]], "held_out") == 1
    assert buffer.ack([], "trained") == 0
    assert buffer.counts().acked == {"trained": 2, "held_out": 1}
    assert buffer.counts().pending == 1


@pytest.mark.parametrize("entry_id", ["0-1", "99999999999999-1", "no id"])
def test_ack_of_an_unknown_id_counts_nothing(buffer, make_trace, entry_id):
    (known,) = buffer.append([make_trace()])
    buffer.claim("a", 1)
    assert buffer.ack([entry_id, known], "trained") == 1
    assert buffer.counts().acked == {"trained": 1}


def test_ack_of_an_unread_entry_counts_nothing(buffer, make_trace):
    ids = buffer.append([make_trace()])
    assert buffer.ack(ids, "trained") == 0
    assert names(buffer.claim("a", 1)) == ["trace-0"]


def test_an_abandoned_entry_goes_to_the_next_consumer_before_new_ones(backend, make_trace):
    buffer = backend.open()
    buffer.append([make_trace(seed) for seed in range(3)])
    buffer.claim("dead", 2)
    backend.pass_time(IDLE_S - 1)
    assert names(buffer.claim("b", 1)) == ["trace-2"]
    buffer.append([make_trace(3)])
    backend.pass_time(1)
    assert names(buffer.claim("b", 3)) == ["trace-0", "trace-1", "trace-3"]


def test_an_entry_that_its_own_consumer_left_alone_is_claimable_again(backend, make_trace):
    buffer = backend.open()
    buffer.append([make_trace(0), make_trace(1)])
    buffer.claim("a", 2)
    assert buffer.claim("a", 2) == []
    backend.pass_time(IDLE_S)
    assert names(buffer.claim("a", 2)) == ["trace-0", "trace-1"]
    assert buffer.claim("a", 2) == []


def test_a_consumer_that_resumes_gets_what_it_holds_page_by_page_before_new_entries(backend, make_trace):
    buffer = backend.open()
    ids = buffer.append([make_trace(seed) for seed in range(7)])
    buffer.claim("a", 3)
    buffer.claim("b", 1)
    buffer.claim("a", 1)
    buffer.ack(ids[:1], "trained")
    buffer.resume("a")
    assert names(buffer.claim("a", 2)) == ["trace-1", "trace-2"]
    assert names(buffer.claim("b", 1)) == ["trace-5"]
    assert names(buffer.claim("a", 2)) == ["trace-4"]
    assert names(buffer.claim("a", 2)) == ["trace-6"]
    assert buffer.claim("a", 2) == []
    buffer.resume("a")
    assert names(buffer.claim("a", 9)) == ["trace-1", "trace-2", "trace-4", "trace-6"]
    backend.pass_time(IDLE_S - 1)
    assert buffer.claim("c", 9) == []  # claimed again, so not idle yet
    assert balance(buffer.counts()) == 0


def test_resuming_takes_nothing_from_other_consumers(backend, make_trace):
    buffer = backend.open()
    buffer.append([make_trace(seed) for seed in range(2)])
    buffer.claim("a", 2)
    backend.pass_time(IDLE_S)
    buffer.claim("b", 1)
    buffer.resume("a")
    assert buffer.claim("a", 0) == []
    assert names(buffer.claim("a", 9)) == ["trace-1"]


@pytest.mark.guarantee("dead-letters")
@pytest.mark.parametrize("again", ["resumed", "idle"])
def test_an_entry_that_nobody_ever_acks_goes_to_the_dead_letters(backend, make_trace, again):
    buffer = backend.open()
    ids = buffer.append([make_trace(0)])
    for _ in range(MAX_DELIVERIES):
        assert names(buffer.claim("a", 1)) == ["trace-0"]
        buffer.resume("a") if again == "resumed" else backend.pass_time(IDLE_S)
    buffer.append([make_trace(1)])
    assert names(buffer.claim("a", 1)) == ["trace-1"]
    assert buffer.dead_letters(9) == [("delivered 5 times and never acked", encode_trace(make_trace(0)))]
    assert buffer.ack(ids, "trained") == 0
    counts = buffer.counts()
    assert (counts.delivered, counts.dead_lettered, counts.acked, counts.pending) == (2, 1, {}, 1)


def test_forgiven_deliveries_make_no_dead_letter_and_later_ones_count_from_zero(backend, make_trace):
    buffer = backend.open()
    ids = buffer.append([make_trace(0)])
    for _ in range(MAX_DELIVERIES + 2):
        assert names(buffer.claim("a", 1)) == ["trace-0"]
        assert buffer.forgive([*ids, "9-9", *ids]) == 2
        buffer.resume("a")
    for _ in range(MAX_DELIVERIES):
        assert names(buffer.claim("a", 1)) == ["trace-0"]
        buffer.resume("a")
    assert buffer.claim("a", 1) == []
    assert buffer.counts().dead_lettered == 1


def test_a_forgiven_entry_stays_with_its_consumer_and_its_idle_time_goes_on(backend, make_trace):
    buffer = backend.open()
    ids = buffer.append([make_trace(seed) for seed in range(2)])
    buffer.claim("a", 2)
    backend.pass_time(IDLE_S)
    assert names(buffer.claim("b", 1)) == ["trace-0"]
    assert buffer.forgive(ids) == 2  # whichever consumer holds them
    buffer.resume("a")
    assert names(buffer.claim("a", 1)) == ["trace-1"]
    buffer.forgive(ids)
    backend.pass_time(IDLE_S)
    assert names(buffer.claim("c", 2)) == ["trace-0", "trace-1"]


def test_only_pending_entries_are_forgiven(buffer, make_trace):
    ids = buffer.append([make_trace(seed) for seed in range(2)])
    assert (buffer.forgive(ids), buffer.forgive([])) == (0, 0)
    buffer.claim("a", 2)
    buffer.ack(ids[:1], "trained")
    assert buffer.forgive(ids) == 1
    assert (buffer.counts().pending, balance(buffer.counts())) == (1, 0)


def test_a_claim_passes_on_the_ids_before_anything_is_decoded(buffer, make_trace):
    ids = buffer.append([make_trace(0)])
    buffer._append_raw([b"bad"])
    calls = []
    claimed = buffer.claim("a", 2, lambda ids: calls.append((list(ids), buffer.counts().dead_lettered)))
    assert names(claimed) == ["trace-0"]
    ((passed, dead_lettered),) = calls
    assert (passed[0], len(passed), dead_lettered) == (ids[0], 2, 0)


def test_all_entries_stay_pending_when_the_receiver_of_the_ids_raises(buffer, make_trace):
    buffer.append([make_trace(0), make_trace(1)])

    def refuse(_):
        raise OSError(28, "disk full")

    with pytest.raises(OSError, match="disk full"):
        buffer.claim("a", 2, refuse)
    assert buffer.counts().pending == 2
    buffer.resume("a")
    assert names(buffer.claim("a", 2)) == ["trace-0", "trace-1"]


def test_a_dead_letter_is_never_read_back_as_acked(backend, make_trace):
    buffer = backend.open()
    ids = buffer.append([make_trace(0), make_trace(1)])
    for _ in range(MAX_DELIVERIES):
        buffer.ack([entry.entry_id for entry in buffer.claim("a", 2) if entry.entry_id == ids[1]], "trained")
        backend.pass_time(IDLE_S)
    assert buffer.claim("a", 2) == []
    assert names(buffer.replay(9)) == ["trace-0", "trace-1"]
    assert names(buffer.replay(9, acked_only=True)) == ["trace-1"]
    assert buffer.append([make_trace(0)]) == ids[:1]  # nor is it stored a second time while it is there


def test_a_late_ack_of_the_slow_consumer_counts_once(backend, make_trace):
    buffer = backend.open()
    ids = buffer.append([make_trace()])
    buffer.claim("slow", 1)
    backend.pass_time(IDLE_S)
    buffer.claim("quick", 1)
    assert (buffer.ack(ids, "trained"), buffer.ack(ids, "trained")) == (1, 0)
    assert buffer.counts().acked == {"trained": 1}


def test_abandoned_entries_that_follow_busy_ones_are_found(backend, make_trace):
    buffer = backend.open()
    buffer.append([make_trace(seed, rounds=1) for seed in range(40)])
    buffer.claim("busy", 30)
    backend.pass_time(IDLE_S)
    buffer.claim("gone", 10)  # takes over 0..9
    assert names(buffer.claim("b", 1)) == ["trace-10"]


def test_replay_yields_the_newest_traces_oldest_first_and_consumes_nothing(buffer, make_trace):
    buffer.append([make_trace(seed) for seed in range(5)])
    assert names(buffer.replay(3)) == ["trace-2", "trace-3", "trace-4"]
    assert names(buffer.replay(99)) == [f"trace-{seed}" for seed in range(5)]
    assert list(buffer.replay(0)) == []
    assert buffer.counts().pending == 5
    assert names(buffer.claim("a", 1)) == ["trace-0"]


def test_replay_reads_more_than_one_page(buffer, make_trace):
    buffer.append([make_trace(seed, rounds=1) for seed in range(80)])
    assert names(buffer.replay(70)) == [f"trace-{seed}" for seed in range(10, 80)]


def test_replay_of_what_came_after_an_entry(buffer, make_trace):
    ids = buffer.append([make_trace(seed, rounds=1) for seed in range(70)])
    assert names(buffer.replay(99, after_id=ids[1])) == [f"trace-{seed}" for seed in range(2, 70)]
    assert names(buffer.replay(2, after_id=ids[1])) == ["trace-68", "trace-69"]
    assert list(buffer.replay(99, after_id=ids[-1])) == []
    ms, sequence = entry_order(ids[1])
    assert names(buffer.replay(99, after_id=f"{ms}-{sequence + 1}"))[-1] == "trace-69"  # there may be no such entry
    assert list(buffer.replay(99, after_id=f"{ms + 10**9}-0")) == []
    buffer.claim("a", 4)
    buffer.ack(ids[:3], "trained")
    assert names(buffer.replay(99, acked_only=True, after_id=ids[0])) == ["trace-1", "trace-2"]


def test_replay_of_acked_traces_leaves_out_pending_and_unread_ones(buffer, make_trace):
    ids = buffer.append([make_trace(seed) for seed in range(6)])
    buffer.claim("a", 4)
    buffer.ack([ids[0], ids[1], ids[3]], "trained")
    assert names(buffer.replay(99, acked_only=True)) == ["trace-0", "trace-1", "trace-3"]
    assert names(buffer.replay(2, acked_only=True)) == ["trace-1", "trace-3"]


def corrupt(raw: bytes) -> dict[str, bytes]:
    return {
        "nothing": b"",
        "garbage": b"\x00\xff garbage",
        "unknown schema": (999).to_bytes(2, "big") + raw[2:],
        "truncated": raw[:-7],
        "trailing": raw + b"!",
        "bit flip": raw[:40] + bytes([raw[40] ^ 1]) + raw[41:],
    }


@pytest.mark.guarantee("dead-letters")
def test_bytes_that_cannot_be_decoded_go_to_the_dead_letters_byte_for_byte(buffer, make_trace):
    payloads = corrupt(encode_trace(make_trace()))
    buffer._append_raw(list(payloads.values()))
    buffer.append([make_trace(7)])
    assert names(buffer.replay(99)) == ["trace-7"]
    assert names(buffer.claim("a", 99)) == ["trace-7"]
    dead = buffer.dead_letters(99)
    assert [raw for _, raw in dead] == list(payloads.values())
    assert "got 999, expected 1" in dead[2][0]
    counts = buffer.counts()
    assert (counts.delivered, counts.dead_lettered, counts.pending, balance(counts)) == (7, 6, 1, 0)


def test_a_page_of_dead_letters_does_not_hide_the_traces_after_it(buffer, make_trace):
    buffer._append_raw([b"bad"] * 5)
    buffer.append([make_trace()])
    assert names(buffer.claim("a", 2)) == ["trace-0"]
    assert buffer.claim("a", 2) == []


def test_only_the_newest_dead_letters_are_kept(buffer):
    raws = [f"bad {n}".encode() for n in range(DEAD_LETTERS_KEPT + 2)]
    buffer._append_raw(raws)
    assert buffer.claim("a", 999) == []
    assert [raw for _, raw in buffer.dead_letters(999)] == raws[2:]
    assert [raw for _, raw in buffer.dead_letters(2)] == raws[-2:]
    assert buffer.dead_letters(0) == []
    assert buffer.counts().dead_lettered == len(raws)


@pytest.mark.guarantee("bounded-memory")
def test_the_oldest_entries_leave_when_the_bytes_are_full(backend, make_trace):
    size = len(encode_trace(make_trace(0)))
    buffer = backend.open(max_bytes=3 * size)
    buffer._append_raw([encode_trace(make_trace(0))] * 3)
    assert buffer.counts() == BufferCounts(
        delivered=3, pending=3, dead_lettered=0, acked={}, trimmed=0, bytes=3 * size, entries=3
    )
    buffer._append_raw([encode_trace(make_trace(0))])
    assert buffer.counts() == BufferCounts(
        delivered=4, pending=3, dead_lettered=0, acked={}, trimmed=1, bytes=3 * size, entries=3
    )


def test_a_batch_larger_than_the_buffer_leaves_its_newest_part(backend, make_trace):
    raws = [encode_trace(make_trace(seed)) for seed in range(4)]
    buffer = backend.open(max_bytes=len(raws[2]) + len(raws[3]))
    assert len(buffer._append_raw(raws)) == 4
    assert names(buffer.claim("a", 9)) == ["trace-2", "trace-3"]


@pytest.mark.guarantee("traces-expire")
def test_entries_older_than_the_age_bound_leave_with_the_next_append(backend, make_trace):
    buffer = backend.open(max_age_s=60.0)
    buffer.append([make_trace(0)])
    backend.pass_time(60.0)
    buffer.append([make_trace(1)])
    assert names(buffer.replay(9)) == ["trace-0", "trace-1"]
    backend.pass_time(0.001)
    buffer.append([make_trace(2)])
    assert names(buffer.replay(9)) == ["trace-1", "trace-2"]


@pytest.mark.guarantee("traces-expire")
def test_entries_older_than_the_age_bound_are_not_claimed(backend, make_trace):
    buffer = backend.open(max_age_s=60.0)
    buffer.append([make_trace(0)])
    backend.pass_time(61.0)
    assert buffer.claim("a", 9) == []
    assert buffer.counts() == BufferCounts(delivered=1, pending=0, dead_lettered=0, acked={}, trimmed=1, bytes=0)


def test_a_reader_with_tighter_bounds_trims_nothing_that_the_writer_keeps(backend, make_trace):
    size = len(encode_trace(make_trace(0)))
    writer, reader = backend.open(max_bytes=3 * size), backend.open(max_bytes=size, max_age_s=1.0)
    writer._append_raw([encode_trace(make_trace(0))] * 3)
    backend.pass_time(2.0)
    assert names(reader.claim("a", 1)) == ["trace-0"]
    assert reader.counts() == BufferCounts(
        delivered=3, pending=3, dead_lettered=0, acked={}, trimmed=0, bytes=3 * size, entries=3
    )


def test_a_reader_with_wider_bounds_removes_what_is_too_old_for_the_writer(backend, make_trace):
    writer, reader = backend.open(max_age_s=60.0), backend.open(max_age_s=3600.0)
    writer.append([make_trace(0)])
    backend.pass_time(61.0)
    assert reader.claim("a", 9) == []
    assert reader.counts() == BufferCounts(delivered=1, pending=0, dead_lettered=0, acked={}, trimmed=1, bytes=0)


def test_traces_leave_by_age_while_they_are_counted_and_neither_appended_nor_claimed(backend, make_trace):
    writer, reader = backend.open(max_age_s=60.0), backend.open()
    writer.append([make_trace(0)])
    backend.pass_time(60.0)
    assert reader.counts().entries == 1
    backend.pass_time(0.001)
    assert reader.counts() == BufferCounts(delivered=1, pending=0, dead_lettered=0, acked={}, trimmed=1, bytes=0)
    assert list(reader.replay(9)) == []


def test_the_bounds_of_the_last_append_are_in_force(backend, make_trace):
    size = len(encode_trace(make_trace(0)))
    wide, narrow = backend.open(max_bytes=9 * size), backend.open(max_bytes=2 * size)
    wide._append_raw([encode_trace(make_trace(0))] * 3)
    assert (narrow.counts().entries, narrow.counts().trimmed) == (3, 0)
    narrow._append_raw([encode_trace(make_trace(0))])
    assert (wide.counts().entries, wide.counts().trimmed) == (2, 2)
    wide._append_raw([encode_trace(make_trace(0))] * 2)
    assert (narrow.counts().entries, narrow.counts().trimmed) == (4, 2)


def test_trimming_counts_what_nobody_acked_and_ends_its_pending(backend, make_trace):
    buffer = backend.open(max_age_s=60.0)
    ids = buffer.append([make_trace(seed) for seed in range(4)])
    buffer.claim("a", 3)
    buffer.ack(ids[:1], "trained")
    backend.pass_time(61.0)
    buffer.append([make_trace(9)])
    counts = buffer.counts()
    assert (counts.delivered, counts.pending, counts.acked, counts.trimmed) == (5, 1, {"trained": 1}, 3)
    assert buffer.ack(ids, "trained") == 0
    backend.pass_time(IDLE_S)
    assert buffer.claim("b", 9) == []


def test_the_oldest_entry_that_nobody_acked_says_how_long_it_has_waited(backend, make_trace):
    buffer, other, traces = backend.open(), backend.open(), [make_trace(n) for n in range(3)]
    found = [buffer.oldest_wait_s()]
    for trace in traces:
        buffer.append([trace])
        backend.pass_time(2.5)
        found.append(other.oldest_wait_s())
    assert found == [None, 2.5, 5.0, 7.5]
    first, second = buffer.claim("a", 2)
    assert other.oldest_wait_s() == 7.5  # claimed is not done
    buffer.ack([second.entry_id], "learned")
    assert other.oldest_wait_s() == 7.5
    buffer.ack([first.entry_id], "learned")
    assert other.oldest_wait_s() == 2.5  # the third, which nobody read
    backend.pass_time(1.0)
    (third,) = buffer.claim("a", 9)
    assert other.oldest_wait_s() == 3.5
    buffer.ack([third.entry_id], "learned")
    assert other.oldest_wait_s() is None


def test_no_entry_waits_that_is_trimmed_a_dead_letter_or_from_the_future(backend, make_trace):
    buffer = backend.open(max_age_s=60.0)
    buffer._append_raw([b"bad"])
    backend.pass_time(5.0)
    assert (buffer.oldest_wait_s(), buffer.claim("a", 9), buffer.oldest_wait_s()) == (5.0, [], None)
    buffer.append([make_trace(0)])
    backend.pass_time(61.0)
    assert (buffer.counts().pending, buffer.oldest_wait_s()) == (0, None)
    buffer.append([make_trace(1), make_trace(2)])
    backend.clock.now -= 10.0
    assert buffer.oldest_wait_s() == 0.0


def play(backend, make_trace: Callable, seed: int) -> list[object]:
    """Random calls of a buffer: every result and, after each call, the counts."""
    rng, log = random.Random(seed), []
    raw = [encode_trace(make_trace(n, rounds=1)) for n in range(4)]
    buffer = backend.open(max_bytes=20 * len(raw[0]), max_age_s=2000.0)
    known = [make_trace(n, rounds=1, trace_id=f"known-{n}") for n in range(9)]
    seen: list[str] = []
    for _ in range(80):
        step = rng.choice(["append", "append", "send", "claim", "claim", "forgive", "ack", "wait", "resume", "replay"])
        if step == "append":
            batch = [rng.choice([*raw, b"bad"]) for _ in range(rng.randint(1, 6))]
            log.append(buffer._append_raw(batch))
        elif step == "send":
            log.append(buffer.append([rng.choice(known) for _ in range(rng.randint(1, 4))]))
        elif step == "resume":
            buffer.resume(rng.choice("ab"))
        elif step == "claim":
            claimed = buffer.claim(rng.choice("ab"), rng.randint(1, 6))
            seen += [entry.entry_id for entry in claimed]
            log.append([entry.entry_id for entry in claimed])
        elif step == "forgive" and seen:
            log.append(buffer.forgive([rng.choice(seen) for _ in range(3)]))
        elif step == "ack" and seen:
            log.append(buffer.ack([rng.choice(seen) for _ in range(3)], rng.choice(["trained", "held_out"])))
        elif step == "wait":
            backend.pass_time(rng.choice([1.0, 300.0, IDLE_S]))
        else:
            log.append([entry.entry_id for entry in buffer.replay(5, acked_only=rng.random() < 0.5)])
        log.append(buffer.counts())
        log.append(("waited", buffer.oldest_wait_s()))
        log.append(("as of now", *as_of_now(buffer)))
    return log


def as_of_now(buffer: TraceBuffer) -> tuple[float | None, float | None, int | None]:
    """What counts say of this moment; no part of whether two counts are equal."""
    counts = buffer.counts()
    return counts.oldest_pending_s, counts.oldest_kept_s, counts.max_bytes


def test_counts_say_how_long_the_oldest_entries_are_here_and_what_they_are_trimmed_to(backend, make_trace):
    writer, reader = backend.open(max_bytes=10**9), backend.open(max_bytes=10**6)
    assert as_of_now(reader) == (None, None, 10**6)
    first = writer.append([make_trace(0)])
    backend.pass_time(5.0)
    writer.append([make_trace(1)])
    backend.pass_time(2.5)
    assert as_of_now(reader) == (7.5, 7.5, 10**9)
    reader.claim("a", 1)
    reader.ack(first, "learned")
    assert as_of_now(reader) == (2.5, 7.5, 10**9)
    (second,) = reader.claim("a", 1)
    reader.ack([second.entry_id], "learned")
    assert as_of_now(reader) == (None, 7.5, 10**9)


@pytest.mark.parametrize("seed", range(6))
def test_the_two_buffers_answer_the_same_random_calls_alike_and_lose_nothing(redis_client, make_trace, seed):
    in_memory = play(MemoryBackend(), make_trace, seed)
    assert play(RedisBackend(redis_client), make_trace, seed) == in_memory
    assert [balance(counts) for counts in in_memory if isinstance(counts, BufferCounts)] == [0] * 80


def test_an_ask_for_a_learning_round_is_taken_once_however_often_it_was_asked(backend):
    trainer, learner, other = backend.open(), backend.open(), backend.open()
    assert not learner.take_ask()
    for _ in range(3):
        trainer.ask_for_round("trainer")
    assert [learner.take_ask(), other.take_ask(), learner.take_ask()] == [True, False, False]
    trainer.ask_for_round("trainer")
    assert [other.take_ask(), learner.take_ask()] == [True, False]


def test_an_ask_is_waited_for_and_seen_once_by_who_remembers_its_id(backend):
    buffer = backend.open()
    assert buffer.wait_for_ask("", 0.01) == ""
    buffer.ask_for_round("trainer")
    first = buffer.wait_for_ask("", 60.0)
    assert first
    assert buffer.wait_for_ask(first, 0.01) == ""
    buffer.ask_for_round("trainer")
    second = buffer.wait_for_ask(first, 60.0)
    assert second not in {"", first}
    assert buffer.wait_for_ask("", 0.0) == second  # whoever starts now sees it too
    assert buffer.take_ask()
    assert buffer.wait_for_ask("", 0.01) == ""


def test_a_waiting_reader_wakes_when_asked(backend):
    buffer, seen = backend.open(), []
    waiting = threading.Thread(target=lambda: seen.append(buffer.wait_for_ask("", 60.0)))
    waiting.start()
    buffer.ask_for_round("trainer")
    waiting.join(60)
    assert seen == [buffer.wait_for_ask("", 0.0)]
