"""Redis fails over under a real server that encrypts its traces, while it delivers them and while it fetches a draft.

Sentinels, the store and the server are real. tests/serving/test_swap_fail_over.py has publications that die with Redis.
"""

import itertools
import json
import logging
import os
import random
import re
import secrets
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import redis
import torch
import zstandard
from in_memory import memory_folder
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.version_store import VersionStore
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.redis_client import connect
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.learner.delivery.publisher import Lineage, publish, publish_initial
from paceline.rig.deployment import server_flags
from paceline.rig.models.corpus import load_corpus
from paceline.rig.models.target import greedy, load_tokenizer
from paceline.rig.processes import descendants
from paceline.rig.prompts import domain_prompts
from paceline.rig.reader import drain_check
from paceline.rig.readiness import free_port
from paceline.rig.sentinels import SentinelRedis, redis_behind_sentinels
from paceline.rig.services import Service, s3_env, s3_service, sglang_service
from s3fs import S3FileSystem
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from waiting import until

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.e2e, pytest.mark.servers]

NAME, TARGET, BUCKET, REPLICA = "e2e-fail-over", "e2e-target", "drafts", "fail-over-a"
STORE = VersionStore(f"s3://{BUCKET}/{NAME}")
LINEAGE = Lineage(parent=0, target=TARGET, target_version="0", objective="test")
PROMPTS, NEW_TOKENS, CONCURRENCY = 16, 40, 8
#: How zstd begins a frame, in which a trace travels.
FRAME, FRAME_BYTES = b"\x28\xb5\x2f\xfd", 4 << 20
#: What fetches a draft for a server.
FETCH = "paceline.serving.swap.fetch"
PATIENCE_S = 30.0


@dataclass
class World:
    """A server, what it talks to, and what it was asked."""

    folder: Path
    draft: Path
    redis: SentinelRedis
    store: Service
    server: Service
    port: int
    client: redis.Redis
    board: RedisVersionBoard
    buffer: RedisTraceBuffer
    prompts: list[list[int]]
    numbers: Iterator[int] = field(default_factory=itertools.count)
    answers: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)  # request -> prompt, tokens

    def ask(self, rid: str, prompt: list[int]) -> None:
        """One request; a failure is raised."""
        params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": NEW_TOKENS}
        body = {"rid": rid, "input_ids": prompt, "sampling_params": params}
        reply = httpx.post(f"http://127.0.0.1:{self.port}/generate", json=body, timeout=300.0, trust_env=False)
        assert reply.is_success, reply.text
        self.answers[rid] = prompt, json.loads(reply.content)["output_ids"]

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """Requests until the body ends."""
        over = threading.Event()

        def go_on() -> None:
            while not over.is_set():
                number = next(self.numbers)
                self.ask(f"traffic-{number}", self.prompts[number % PROMPTS])

        with ThreadPoolExecutor(CONCURRENCY) as pool:
            asking = [pool.submit(go_on) for _ in range(CONCURRENCY)]
            try:
                yield
            finally:
                over.set()
            for job in asking:
                job.result()

    def answered(self, more: int) -> None:
        wanted = len(self.answers) + more
        until(lambda: len(self.answers) >= wanted, f"{more} more answers")

    def status(self) -> MemberStatus:
        return self.board.heartbeats().get(f"replica:{REPLICA}", MemberStatus())

    def is_fetching(self) -> bool:
        """Whether the server waits for a draft from the store."""
        with suppress(psutil.NoSuchProcess):
            return any(FETCH in process.cmdline() for process in descendants(self.server.pid))
        return False

    def is_redis_back(self) -> bool:
        with suppress(BufferUnavailable):
            return bool(self.board.read().rows)
        return False

    def publish(self) -> int:
        """A candidate in the store that proposes the same tokens: the head is scaled."""

        def write(place: Path) -> None:
            tensors = load_file(self.draft / "model.safetensors")
            save_file(tensors | {"lm_head.weight": tensors["lm_head.weight"] * 2.0}, place / "model.safetensors")
            (place / "config.json").write_bytes((self.draft / "config.json").read_bytes())

        return publish(self.board, self.folder / "versions", write, LINEAGE, by="test", why="test", store=STORE).number


def settings(url: str, folder: Path, key_file: Path) -> dict[str, str]:
    return {
        "PACELINE_REDIS_URL": url,
        "PACELINE_PAYLOAD_KEY_FILE": str(key_file),
        "PACELINE_SPECULATOR": NAME,
        "PACELINE_TARGET": TARGET,
        "PACELINE_REPLICA": REPLICA,
        "PACELINE_VERSIONS_URI": f"s3://{BUCKET}",
        "PACELINE_CACHE_DIR": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def world(models: tuple[Path, Path], tmp_path: Path) -> Iterator[World]:
    """Everything runs, version 0 is live, and the server has said that it captures."""
    target, draft = models
    store_port, port = free_port(), free_port()
    key_file = tmp_path / "key"
    key_file.write_text(secrets.token_hex(32))
    held_out = {"py": load_corpus(("py",))["py"].held_out}
    prompts = [[*prompt.input_ids] for prompt in domain_prompts(held_out, load_tokenizer(target), PROMPTS, 0)]
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in s3_env(store_port).items():  # of this process, and of all that it starts
            patch.setenv(name, value)
        stack.callback(S3FileSystem.clear_instance_cache)
        made = stack.enter_context(redis_behind_sentinels(stack.enter_context(memory_folder())))
        store = stack.enter_context(s3_service(store_port, BUCKET, log=tmp_path / "store.log"))
        client = stack.enter_context(connect(made.url, timeout_s=PATIENCE_S))
        config = BufferConfig(speculator=NAME, payload_key_file=str(key_file))
        board, buffer = RedisVersionBoard(client, config), RedisTraceBuffer(client, config)
        publish_initial(board, tmp_path / "versions", lambda: draft, LINEAGE, by="test", store=STORE)
        env = settings(made.url, tmp_path, key_file)
        server = sglang_service(server_flags(target, draft), port, log=tmp_path / "server.log", env=env)
        stack.callback(lambda: server.is_running() and server.kill())
        server.start()
        found = World(tmp_path, draft, made, store, server, port, client, board, buffer, prompts)
        until(lambda: found.status().capture == "on", "the first heartbeat")
        yield found


@contextmanager
def hanging(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def planted(world: World, name: str) -> tuple[str, list[int]]:
    """Ask something that nobody else does: its id, and its tokens."""
    rid = f"planted-{name}-{secrets.token_hex(16)}"
    prompt = random.Random(name).sample(world.prompts[0], len(world.prompts[0]))
    world.ask(rid, prompt)
    return rid, prompt


@pytest.mark.guarantee("fail-over-in-a-swap")
@pytest.mark.guarantee("payloads-encrypted")
def test_a_server_goes_on_through_a_fail_over_in_the_middle_of_a_swap_and_redis_never_has_its_traces_in_the_clear(
    world: World, models: tuple[Path, Path]
) -> None:
    number = world.publish()
    hidden = [planted(world, "before")]
    with world.traffic():
        world.answered(CONCURRENCY)
        with hanging(world.store.pid):
            world.board.move(number, VersionState.LIVE, "test", "while its store hangs")
            until(world.is_fetching, "the server to fetch it")
            assert world.client.wait(1, 10_000) == 1  # what the replica lacks is lost with the primary
            world.redis.primary.kill()
            hidden.append(planted(world, "during"))
            until(world.is_redis_back, "the replica to take over")
            assert world.is_fetching()
        until(lambda: world.status().draft_version == number, "the swap")
        world.answered(CONCURRENCY)
    hidden.append(planted(world, "after"))
    assert world.client.client_info()["laddr"] == f"127.0.0.1:{world.redis.replica_port}"
    assert world.board.read().live == number
    assert [swap.number for swap in world.status().swaps] == [number]
    assert different_from_plain(models[0], world) == []
    assert_accounted(world)
    assert_encrypted(world, hidden)


def different_from_plain(target: Path, world: World) -> list[str]:
    """Requests whose answer is not that of plain decoding."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    plain = {tuple(prompt): list(greedy(model, prompt, NEW_TOKENS)) for prompt, _ in world.answers.values()}
    return [rid for rid, (prompt, tokens) in world.answers.items() if tokens != plain[tuple(prompt)]]


def assert_accounted(world: World) -> None:
    """Every answer has its traces, or they are counted as dropped, or Redis lost them in the moment of its death."""
    until(drain_check(world.status), "the server to deliver its traces")
    said, counts = world.status().account, world.buffer.counts()
    dropped = sum(said.dropped.values())
    assert said.captured == said.delivered + dropped
    assert counts.delivered == counts.pending == len(list(world.buffer.replay(10_000)))
    lost = said.delivered - counts.delivered
    untraced = {*world.answers} - {entry.trace.request_id for entry in world.buffer.replay(10_000)}
    assert 0 <= len(untraced) <= lost + dropped
    log.info("%d answers, %d traces, %d dropped, %d lost with Redis", len(world.answers), said.captured, dropped, lost)


def assert_encrypted(world: World, hidden: list[tuple[str, list[int]]]) -> None:
    """Redis' files hold nothing of `hidden`, and what holds it for the key's owner would be found without one."""
    world.client.config_set("rdbcompression", "no")
    world.client.save()
    traces = {entry.trace.request_id: entry.trace for entry in world.buffer.replay(10_000)}
    marks = [mark for rid, tokens in hidden for mark in (rid.encode(), np.array(tokens, "<i4").tobytes())]
    assert {rid for rid, _ in hidden} <= traces.keys()
    assert not [mark for mark in marks if mark in readable(world)]
    shown = replace(traces[hidden[-1][0]], trace_id="in the clear")
    RedisTraceBuffer(world.client, BufferConfig(speculator=NAME)).append([shown])
    assert all(mark in readable(world) for mark in marks[-2:])


def readable(world: World) -> bytes:
    """All that is in files of the primary and the replica, also what zstd packed."""
    folder = world.redis.primary.log.parents[1]
    files = b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())
    assert sum(file.name == "appendonly.aof" for file in folder.rglob("*")) == 2  # of the dead primary, too
    unpacked = [files]
    for frame in re.finditer(re.escape(FRAME), files):
        with suppress(zstandard.ZstdError):
            packed = memoryview(files)[frame.start() : frame.start() + FRAME_BYTES]
            unpacked.append(zstandard.ZstdDecompressor().decompressobj().decompress(packed))
    return b"\n".join(unpacked)
