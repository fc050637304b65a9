"""Commands that operators are told to run do what the document says, against a real Redis."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import redis
from fleet import beating, learner_status, publish, replica_status
from paceline.buffer.board.board_access import BoardAccess, list_speculators, open_board
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.version import VersionState
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.keys import PAYLOAD, TRACES
from paceline.buffer.redis_client import connect
from paceline.buffer.settings.sources import read_settings
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.dashboards.exporter.collector import BoardCollector
from paceline.rig.services import redis_server
from scraped import scrape, value
from waiting import until

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
#: These answer with their exit code: 1, something is wrong; 2, something cannot be told.
ANSWERING = re.compile(r"paceline (status|alarms)\b")


def blocks(kind: str) -> list[str]:
    found = re.findall(rf"^( *)```{kind}\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def commands(block: str) -> list[str]:
    """Each line, and a loop as a whole."""
    return re.findall(r"^(?:for .*?^done$|\S.*?)$", block, re.MULTILINE | re.DOTALL)


@pytest.fixture
def house(own_redis, make_trace) -> Iterator[BoardAccess]:
    """A board with a live version, members that beat, and traces, in the Redis that `environment` names."""
    access = open_board(read_settings({}), own_redis.url, "default")
    now = time.time()
    publish(access.board, 0)
    with connect(own_redis.url) as client, ExitStack() as entered:
        RedisTraceBuffer(client, BufferConfig()).append([make_trace(seed, trace_id=f"t{seed}") for seed in range(3)])
        entered.enter_context(beating(access.board, "replica:a", partial(replica_status, "a", now, draft=0)))
        entered.enter_context(beating(access.board, "learner:b", partial(learner_status, "b", now)))
        until(lambda: len(access.board.members()) == 2, "both members")
        yield access


def environment(url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    tools = [str(Path(sys.executable).parent), str(Path(redis_server()).parent), os.environ["PATH"]]
    return kept | {"PACELINE_REDIS_URL": url, "PATH": os.pathsep.join(tools), "COLUMNS": "200"}


def run(command: str, folder: Path, url: str) -> str:
    """Run one command as the page has it; its output."""
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder,
        env=environment(url),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    allowed = {0, 1, 2} if ANSWERING.match(command) else {0}
    assert done.returncode in allowed, f"{command}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    assert not re.match(r"\(error\)|ERR|WRONGTYPE", done.stdout), f"{command}\n{done.stdout}"
    return done.stdout


def test_every_command_runs_in_its_order(house: BoardAccess, own_redis, make_trace, tmp_path: Path) -> None:
    said = {command: run(command, tmp_path, own_redis.url) for block in blocks("bash") for command in commands(block)}
    assert len(said) >= 14
    for command, output in said.items():
        if promised := re.search(r" # (\d+)$", command):
            assert output.strip() == promised.group(1)
    (sizes,) = [output for command, output in said.items() if " HGET " in command]
    (entries,) = [output for command, output in said.items() if " XLEN " in command]
    assert int(sizes) > 0
    assert int(entries) == 3
    with connect(own_redis.url) as client:  # what the page says of the removal of traces
        buffer = RedisTraceBuffer(client, BufferConfig())
        assert buffer.counts().entries == 0
        assert list(client.scan_iter(match=PAYLOAD.name("default") + "*")) == []
        buffer.append([make_trace(9, trace_id="t9")])  # traces come again
        assert [entry.trace.trace_id for entry in buffer.claim("a", 10)] == ["t9"]
        assert len(house.board.members()) == 2
        assert house.board.read().live == 0


def test_the_exporters_user_reads_every_board_no_trace_and_writes_nothing(
    house: BoardAccess, own_redis, tmp_path: Path
) -> None:
    (block,) = [block for block in blocks("bash") if "ACL SETUSER" in block]
    run(block, tmp_path, own_redis.url)
    url = own_redis.url.replace("redis://", "redis://exporter:choose-a-password@")
    settings = read_settings({})
    collector = BoardCollector(
        partial(list_speculators, settings, url), lambda name: open_board(settings, url, name).board
    )
    found = scrape(collector)
    assert value(found, "paceline_live_draft", speculator="default") == 0
    assert (value(found, "paceline_verify_rounds_total") or 0) > 0
    before = house.board.events()
    with connect(url) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.xrange(TRACES.name("default"))
    with pytest.raises(BufferUnavailable, match="ACL"):
        open_board(settings, url, "default").board.beat("replica:z", MemberStatus(), 1.0)
    with pytest.raises(BufferUnavailable, match="ACL"):
        open_board(settings, url, "default").board.move(0, VersionState.RETIRED, "exporter", "no")
    assert house.board.events() == before


def test_a_backup_is_restored_as_the_page_says(house: BoardAccess, own_redis, tmp_path: Path) -> None:
    (backup,) = [block for block in blocks("bash") if "--rdb" in block]
    for command in commands(backup):
        run(command, tmp_path, own_redis.url)
    folder = tmp_path / "restored"
    folder.mkdir()
    (tmp_path / "paceline-backup.rdb").rename(folder / "dump.rdb")
    other = type(own_redis)(redis_server(), folder)
    other.start("--appendonly", "no")
    try:
        run(f"redis-cli -u {other.url} CONFIG SET appendonly yes", tmp_path, other.url)
        restored = open_board(read_settings({}), other.url, "default").board
        assert restored.read().rows == house.board.read().rows
        with connect(other.url) as client:
            assert RedisTraceBuffer(client, BufferConfig()).counts().entries == 3
    finally:
        other.stop()
