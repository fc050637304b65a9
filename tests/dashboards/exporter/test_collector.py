"""The collector over several boards: on a real Redis, and when that does not answer."""

import signal
import subprocess
import sys
import urllib.request
from functools import cache, partial

import redis
from paceline.buffer.board.counters import Counters, ServedCell, ServedCounters
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.redis_members import speculators
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.keys import EVENTS
from paceline.buffer.redis_client import connect
from paceline.dashboards.exporter.collector import BoardCollector
from paceline.rig.readiness import free_port
from scraped import labels_of, parsed, scrape, value
from twins.memory_board import MemoryVersionBoard


def board_of(client: redis.Redis, speculator: str) -> RedisVersionBoard:
    return RedisVersionBoard(client, BufferConfig(speculator=speculator))


def collector_of(client: redis.Redis) -> BoardCollector:
    return BoardCollector(partial(speculators, client), cache(partial(board_of, client)))


def beaten(client: redis.Redis, speculator: str, rounds: int, boot: str = "one") -> None:
    cells = [ServedCell(draft=0, label="py", kind="greedy", rounds=rounds, accepted=rounds)]
    counters = Counters(at=1.0, boot=boot, served=ServedCounters(cells=cells))
    board_of(client, speculator).beat("replica:a", MemberStatus(counters=counters), 30.0)


def test_all_speculators_are_read_again_at_every_scrape(redis_client: redis.Redis) -> None:
    collector = collector_of(redis_client)
    assert scrape(collector) == {("paceline_up", ()): 1.0}
    beaten(redis_client, "x", 5)
    beaten(redis_client, "y", 70)
    found = scrape(collector)
    assert value(found, "paceline_verify_rounds_total", speculator="x") == 5
    assert value(found, "paceline_verify_rounds_total", speculator="y") == 70
    beaten(redis_client, "x", 2, boot="two")  # restarted: Prometheus sees a counter that fell
    assert value(scrape(collector), "paceline_verify_rounds_total", speculator="x") == 2


def test_a_board_that_cannot_be_read_keeps_no_other_from_being_read(redis_client: redis.Redis) -> None:
    beaten(redis_client, "x", 5)
    redis_client.xadd(EVENTS.name("spoilt"), {"event": b"{"})
    found = scrape(collector_of(redis_client))
    assert value(found, "paceline_speculator_readable", speculator="spoilt") == 0.0
    assert value(found, "paceline_speculator_readable", speculator="x") == 1.0
    assert value(found, "paceline_verify_rounds_total", speculator="x") == 5
    assert labels_of(found, "paceline_board_timestamp_seconds", "speculator") == {"x"}


def test_a_redis_that_does_not_answer_is_said_and_nothing_else(own_redis) -> None:
    with connect(own_redis.url) as client:
        collector = collector_of(client)
        beaten(client, "x", 5)
        assert value(scrape(collector), "paceline_up") == 1.0
        own_redis.stop()
        assert scrape(collector) == {("paceline_up", ()): 0.0}
        own_redis.start("--appendonly", "yes")
        assert value(scrape(collector), "paceline_up") == 1.0


def test_a_redis_that_goes_away_half_way_says_nothing_of_the_board() -> None:
    class Gone(MemoryVersionBoard):
        def members(self):
            raise BufferUnavailable("gone")

    boards = {"a": MemoryVersionBoard(), "b": Gone()}
    assert scrape(BoardCollector(lambda: [*boards], boards.__getitem__)) == {("paceline_up", ()): 0.0}


def test_the_command_serves_until_ctrl_c_and_says_that_a_port_is_taken() -> None:
    port = free_port()
    command = [sys.executable, "-m", "paceline.cli", "exporter", f"--port={port}", "--redis-url=redis://127.0.0.1:1/0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            assert process.stdout.readline() == f"paceline exporter: http://127.0.0.1:{port}/metrics until Ctrl-C\n"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
                assert parsed(reply.read().decode()) == {("paceline_up", ()): 0.0}
            second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert second.returncode == 1
            assert second.stdout == ""
            assert f"--port {port}: " in second.stderr
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
