"""Speed over plain decoding: against an oracle that replays steps, with an interval that holds, or unknown and why."""

import random
from dataclasses import dataclass, field

import pytest
from paceline.buffer.board.counters import Counters, SchedulerCounters, StepCell
from paceline.policies.readings.speed import speed_over_plain, tokens_computed
from paceline.policies.readings.windows import windowed


@dataclass
class Server:
    """A scheduler whose steps are told one by one."""

    now: float = 0.0
    cells: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    entries: list[Counters] = field(default_factory=list)

    def step(self, bucket: int, draft_steps: int, seconds: float, tokens: int) -> None:
        row = self.cells.setdefault((bucket, draft_steps), [0, 0.0, 0, 0])
        for place, amount in enumerate((1, seconds, tokens, bucket)):
            row[place] += amount
        self.now += seconds

    def beat(self) -> None:
        cells = [
            StepCell(bucket=b, draft_steps=k, steps=int(n), seconds=s, tokens=int(t), requests=int(r))
            for (b, k), (n, s, t, r) in self.cells.items()
        ]
        self.entries.append(Counters(at=self.now, boot="x", scheduler=SchedulerCounters(steps=cells)))


def test_the_ratio_is_what_plain_steps_would_have_taken_for_the_same_time() -> None:
    server = Server()
    server.beat()
    for _ in range(40):
        server.step(1, 3, 0.02, 3)  # 150 tokens a second, plain 100
        server.step(4, 3, 0.05, 11)  # 220 tokens a second, plain 200
    for _ in range(5):
        server.step(1, 0, 0.01, 1)
        server.step(4, 0, 0.02, 4)
    server.beat()
    reading = speed_over_plain(windowed({"a": server.entries}, 0.0, server.now))
    # The same 0.8 and 2 seconds of plain steps.
    assert reading.value == pytest.approx((40 * 3 + 40 * 11) / (0.8 * 100 + 2.0 * 200))
    assert (reading.count, reading.low, reading.high) == (10, None, None)  # one span of time says nothing of the spread


def test_batch_sizes_without_plain_steps_are_left_out_while_they_are_the_lesser_part() -> None:
    server = Server()
    server.beat()
    for _ in range(10):
        server.step(1, 3, 0.02, 3)
        server.step(8, 3, 0.01, 9)
        server.step(1, 0, 0.01, 1)
    server.beat()
    assert speed_over_plain(windowed({"a": server.entries}, 0.0, server.now)).value == pytest.approx(1.5)
    for _ in range(15):
        server.step(8, 3, 0.02, 9)
    server.beat()
    reading = speed_over_plain(windowed({"a": server.entries}, 0.0, server.now))
    assert reading.value is None
    assert "at batch sizes of 33% of the decode time" in reading.why_unknown


def test_plain_steps_of_before_the_window_count_and_the_reading_is_as_old_as_they_are() -> None:
    server = Server()
    for _ in range(4):
        server.step(1, 0, 0.01, 1)
    server.beat()
    for _ in range(4):
        server.step(1, 0, 0.01, 1)
    server.beat()
    plain_at = server.now
    for _ in range(3):
        server.now += 100.0
        server.beat()
    since = server.now
    for _ in range(50):
        server.step(1, 3, 0.02, 3)
    server.beat()
    reading = speed_over_plain(windowed({"a": server.entries}, since, server.now))
    assert (reading.value, reading.at) == (pytest.approx(1.5), plain_at)
    assert reading.low is None
    server.now += 3500.0
    for _ in range(50):
        server.step(1, 3, 0.02, 3)
    server.beat()
    late = speed_over_plain(windowed({"a": server.entries}, server.now - 60.0, server.now))
    assert late.value is None
    assert "the newest plain step is 380" in late.why_unknown


def test_without_plain_steps_it_is_bounded_by_the_steps_with_drafts_and_what_would_measure_it_is_said() -> None:
    server = Server()
    server.beat()
    for _ in range(10):
        server.step(1, 3, 0.02, 2)
        server.step(4, 3, 0.05, 12)
    server.beat()
    window = windowed({"a": server.entries}, 0.0, server.now)
    computed = tokens_computed(steps=3, width=1, verified=4)
    assert computed == 4 + 4 + 2
    reading = speed_over_plain(window, computed)
    assert (reading.value, reading.count) == (None, 20)
    assert (reading.low, reading.high) == (pytest.approx(140 / 50 / 10), pytest.approx(140 / 50))
    assert speed_over_plain(window).low == 0.0
    assert reading.why_unknown.startswith("no plain step was ever taken; to measure it start the server with `--specul")
    assert "docs/pacing.md" in reading.why_unknown


def test_the_bounds_hold_whatever_the_parts_of_a_step_cost() -> None:
    """A plain step of 1: verifying 4 tokens costs 1 to 4 of them, each of the draft's 6 tokens up to 1."""
    chance = random.Random(0)
    for _ in range(200):
        server = Server()
        server.beat()
        took = chance.uniform(1.0, 4.0) + 6 * chance.uniform(0.0, 1.0)
        tokens = chance.choice((1, 2, 3, 4))
        server.step(1, 3, took, tokens)
        server.beat()
        reading = speed_over_plain(windowed({"a": server.entries}, 0.0, server.now), tokens_computed(3, 1, 4))
        assert reading.low <= tokens / took <= reading.high


def test_an_idle_server_is_spoken_of_by_what_it_did_before() -> None:
    server = Server()
    server.beat()
    server.step(1, 3, 0.02, 3)
    server.beat()
    for _ in range(3):
        server.now += 400.0
        server.beat()
    assert speed_over_plain(windowed({"a": server.entries}, server.now - 600.0, server.now)).high == 3.0
    for _ in range(3):
        server.step(1, 0, 0.01, 1)
    server.beat()
    server.now += 700.0
    server.beat()
    reading = speed_over_plain(windowed({"a": server.entries}, server.now - 600.0, server.now))
    assert (reading.value, server.now - reading.at) == (pytest.approx(1.5), pytest.approx(700.0))


def test_two_plain_steps_are_too_few() -> None:
    server = Server()
    server.beat()
    for _ in range(2):
        server.step(1, 3, 0.02, 3)
        server.step(1, 0, 0.01, 1)
    server.beat()
    assert speed_over_plain(windowed({"a": server.entries}, 0.0, server.now)).value is None


def test_a_server_that_only_decodes_plainly_has_no_speed_over_it() -> None:
    server = Server()
    server.beat()
    for _ in range(20):
        server.step(1, 0, 0.01, 1)
    server.beat()
    reading = speed_over_plain(windowed({"a": server.entries}, 0.0, server.now))
    assert reading.why_unknown == "no speculative step was ever taken"


def test_no_server_is_unknown() -> None:
    assert "sent these counters" in speed_over_plain(windowed({}, 0.0, 60.0)).why_unknown


def drawn(seed: int) -> list[Counters]:
    """A server whose pace drifts from second to second, as one does that shares its machine; plain steps throughout."""
    chance = random.Random(seed)
    server = Server()
    server.beat()
    while server.now < 100.0:
        slow = chance.uniform(0.7, 1.3)
        ends = server.now + 1.0
        while server.now < ends:
            if chance.random() < 0.15:
                server.step(1, 0, 0.01 * slow * chance.uniform(0.8, 1.2), 1)
            else:
                server.step(1, 3, 0.02 * slow * chance.uniform(0.8, 1.2), chance.choice((1, 2, 4, 5)))
        server.beat()
    return server.entries


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(100):
        entries = drawn(seed)
        reading = speed_over_plain(windowed({"a": entries}, 0.0, entries[-1].at))
        assert reading.low < reading.value < reading.high
        held += reading.low <= 1.5 <= reading.high
    assert 88 <= held <= 100


def test_an_interval_needs_plain_steps_in_more_than_one_span_of_time() -> None:
    server = Server()
    server.beat()
    for second in range(20):
        for _ in range(10):
            server.step(1, 3, 0.02, 3)
        if second == 4:
            for _ in range(6):
                server.step(1, 0, 0.01, 1)
        server.beat()
    reading = speed_over_plain(windowed({"a": server.entries}, 0.0, server.now))
    assert (reading.value, reading.low) == (pytest.approx(1.5), None)
