"""SGLang's own router before servers and a learner that share no disk; weights travel through a real S3 server.

A canary on one of several replicas is tests/e2e/test_canary.py.
"""

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import fsspec
import httpx
import pytest
from in_memory import redis_in_memory
from paceline.buffer.board import stored_weights
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.reason import ReasonCode
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.version_store import VersionStore
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_client import connect
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.learner.delivery.publisher import DRAFT_FILES, Lineage, publish
from paceline.policies.verdict_words import sentence
from paceline.rig.deployment import server_flags
from paceline.rig.models.corpus import load_corpus
from paceline.rig.reader import drain_check
from paceline.rig.readiness import free_port
from paceline.rig.services import (
    Service,
    learner_service,
    router_service,
    s3_env,
    s3_service,
    sglang_service,
)
from paceline.serving.capture.sglang_requests import OPT_OUT_MARK
from s3fs import S3FileSystem
from safetensors.torch import load_file, save_file
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

pytest.importorskip("sglang_router", reason="SGLang's router is not installed: make test-servers installs it")

NAME, TARGET, BUCKET = "e2e-fleet", "e2e-target", "drafts"
FIRST, SECOND, LATE = "fleet-a", "fleet-b", "fleet-c"
#: New traces of a learning round, requests of one wave, and waves served at most until something was learned.
ROUND, WAVES = 24, 12
CONCURRENCY = 8
CONFIG = BufferConfig(speculator=NAME)
STORE = VersionStore(f"s3://{BUCKET}/{NAME}")
NUMBERS = itertools.count()  # of requests


@dataclass
class Fleet:
    """Everything that runs, and what reads from it."""

    folder: Path
    target: Path
    draft: Path
    redis_url: str
    store: Service
    board: RedisVersionBoard
    buffer: RedisTraceBuffer
    texts: list[str]
    servers: dict[str, Service] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    router_port: int = 0
    answered: list[str] = field(default_factory=list)  # ids of requests

    def env(self, replica: str) -> dict[str, str]:
        """Settings of a member that has a disk of its own."""
        return {
            "PACELINE_REDIS_URL": self.redis_url,
            "PACELINE_SPECULATOR": NAME,
            "PACELINE_TARGET": TARGET,
            "PACELINE_TARGET_VERSION": "1",
            "PACELINE_REPLICA": replica,
            "PACELINE_VERSIONS_URI": f"s3://{BUCKET}",
            "PACELINE_CACHE_DIR": str(self.cache(replica)),
            "PACELINE_STAGGER_S": "0.5",
            "OMP_NUM_THREADS": "1",
        }

    def learner_env(self) -> dict[str, str]:
        return self.env("") | {
            "PACELINE_TARGET_PATH": str(self.target),
            "PACELINE_DRAFT": str(self.draft),
            "PACELINE_DATA_DIR": str(self.folder / "learner"),
            "PACELINE_MLFLOW_URI": f"sqlite:///{self.folder / 'mlflow.db'}",
            "PACELINE_LEARNER": "fleet-learner",
            "PACELINE_MIN_NEW_TRACES": str(ROUND),
            "PACELINE_HOLDOUT_SHARE": "0.25",
            "PACELINE_ROUND_INTERVAL_S": "1.0",
            "PACELINE_CANARY_LIMIT_S": "0",
        }

    def cache(self, replica: str) -> Path:
        return self.folder / "disks" / (replica or "learner")

    def server(self, name: str) -> Service:
        """A server that is still to be started."""
        self.ports[name] = free_port()
        flags = [*server_flags(self.target, self.draft), "--chat-template", "chatml"]
        log = self.folder / f"{name}.log"
        self.servers[name] = sglang_service(flags, self.ports[name], log=log, env=self.env(name))
        return self.servers[name]

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def status(self, name: str) -> MemberStatus:
        return self.board.heartbeats().get(f"replica:{name}", MemberStatus())

    def drafting(self, *names: str) -> set[int | None]:
        return {self.status(name).draft_version for name in names}

    @property
    def router_url(self) -> str:
        return f"http://127.0.0.1:{self.router_port}"

    def route(self, path: str, body: dict, headers: dict | None = None) -> httpx.Response:
        return self.post(self.router_url, path, body, headers)

    @staticmethod
    def post(url: str, path: str, body: dict, headers: dict | None = None) -> httpx.Response:
        return httpx.post(url + path, json=body, headers=headers, timeout=300.0, trust_env=False)

    def captured(self) -> int:
        """Traces that both first servers began."""
        return sum(self.status(name).account.captured for name in (FIRST, SECOND))

    def skipped(self) -> int:
        """Requests of both that opted out."""
        return sum(self.status(name).skipped.get("opted_out", 0) for name in (FIRST, SECOND))

    def ask(self, server: object = None) -> str:
        """One request, to a server by its name or else through the router; how it finished, or how it failed."""
        number = next(NUMBERS)
        text = self.texts[number % 30][150 * (number // 30 % 15) :][:160]
        params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": 48}
        body = {"rid": f"fleet-{number}", "text": text, "sampling_params": params}
        reply = self.post(self.url(server) if server in self.ports else self.router_url, "/generate", body)
        if not reply.is_success:
            return f"HTTP {reply.status_code}: {reply.text[:200]}"
        self.answered.append(reply.json()["meta_info"]["id"])
        return reply.json()["meta_info"]["finish_reason"]["type"]

    def wave(self, requests: int = ROUND) -> None:
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            assert {*pool.map(self.ask, range(requests))} == {"length"}

    @contextmanager
    def traffic(self) -> Iterator[list[str]]:
        """Requests until the body ends; yields how they finished, so far."""
        over, finished = threading.Event(), []

        def go_on() -> None:
            while not over.is_set():
                finished.append(self.ask())

        with ThreadPoolExecutor(CONCURRENCY) as pool:
            asking = [pool.submit(go_on) for _ in range(CONCURRENCY)]
            try:
                yield finished
            finally:
                over.set()
                for job in asking:
                    job.result()

    def drained(self, *names: str) -> None:
        told = [drain_check(partial(self.status, name)) for name in names]
        until(lambda: {is_told() for is_told in told} == {True}, "the servers to deliver their traces")

    def publish(self, scale: float) -> int:
        """A candidate in the store: the live draft with its head scaled, which proposes the same tokens.

        One that proposed worse would be rolled back by the first server's guard before the second had its turn.
        """
        live = self.board.read().live
        learned = self.folder / "learner" / "versions" / NAME / f"v{live:06d}"

        def write(place: Path) -> None:
            tensors = load_file(learned / "model.safetensors")
            save_file(tensors | {"lm_head.weight": tensors["lm_head.weight"] * scale}, place / "model.safetensors")
            (place / "config.json").write_bytes((learned / "config.json").read_bytes())

        lineage = Lineage(parent=live, target=TARGET, target_version="1", objective="test")
        made = publish(self.board, self.published, write, lineage, by="test", why="made by a test", store=STORE)
        return made.number

    @property
    def published(self) -> Path:
        """The disk from which `publish` uploads."""
        return self.folder / "published"

    def fill_store(self) -> None:
        """Upload again what whoever published it still has on a disk."""
        uploaded = {
            row.version.weights_uri: folder
            for row in self.board.read().rows.values()
            for disk in (self.published, self.folder / "learner" / "versions" / NAME)
            if (folder := disk / row.version.weights_uri.rpartition("/")[2].rpartition("-")[0]).is_dir()
        }
        for uri, folder in uploaded.items():
            stored_weights.put([folder / name for name in DRAFT_FILES], uri)


@pytest.fixture(scope="module")
def fleet(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Redis, the store, two servers and the router before them."""
    folder = tmp_path_factory.mktemp("fleet")
    redis_port, store_port, router_port = free_port(), free_port(), free_port()
    redis_url = f"redis://127.0.0.1:{redis_port}/0"
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in s3_env(store_port).items():  # of this process, and of all that it starts
            patch.setenv(name, value)
        stack.callback(S3FileSystem.clear_instance_cache)
        stack.enter_context(redis_in_memory(redis_port))
        store = stack.enter_context(s3_service(store_port, BUCKET, log=folder / "store.log"))
        client = stack.enter_context(connect(redis_url, timeout_s=30.0))
        texts = [text for text in load_corpus(("py",))["py"].held_out if len(text) > 3000]
        board, buffer = RedisVersionBoard(client, CONFIG), RedisTraceBuffer(client, CONFIG)
        made = Fleet(folder, *models, redis_url, store, board, buffer, texts, router_port=router_port)
        stack.callback(lambda: [server.kill() for server in made.servers.values() if server.is_running()])
        with ThreadPoolExecutor() as pool:
            [*pool.map(Service.start, [made.server(name) for name in (FIRST, SECOND)])]
        urls = [made.url(name) for name in (FIRST, SECOND)]
        stack.enter_context(router_service(urls, router_port, free_port(), log=folder / "router.log"))
        until(lambda: {made.status(name).capture for name in (FIRST, SECOND)} == {"on"}, "both first heartbeats")
        yield made


@pytest.fixture(scope="module")
def learned(fleet: Fleet) -> int:
    """Serve with a learner at work until a version of its own is live; its number, with the learner gone again."""
    with learner_service(log=fleet.folder / "learner.log", env=fleet.learner_env()):
        for _ in range(WAVES):
            fleet.wave()
            live = fleet.board.read().live
            if live:
                until(lambda live=live: fleet.drafting(FIRST, SECOND) == {live}, "both servers to swap")
                return live
            until(lambda: fleet.buffer.counts().pending < 2 * ROUND, "the learner to keep up")
    pytest.fail(f"{WAVES} waves: got version {live} live, expected one that was learned")


def test_both_servers_swap_to_what_was_learned_from_their_traffic_and_fetched_from_the_store(fleet, learned):
    row = fleet.board.read().rows[learned].version
    assert (row.parent is not None, STORE.is_away(row.weights_uri)) == (True, True)
    assert [(fleet.cache(name) / "versions" / row.sha256).is_dir() for name in (FIRST, SECOND)] == [True, True]
    fleet.wave()
    assert [fleet.ask(name) for name in (FIRST, SECOND)] == ["length", "length"]  # the router may leave one out
    fleet.drained(FIRST, SECOND)
    traces = [entry.trace for entry in fleet.buffer.replay(10_000)]
    assert {trace.replica for trace in traces if trace.draft_version == learned} == {FIRST, SECOND}


def test_every_answer_left_a_trace_and_every_trace_is_accounted_for(fleet, learned):
    fleet.drained(FIRST, SECOND)
    said = [fleet.status(name).account for name in (FIRST, SECOND)]
    captured, delivered = (sum(getattr(one, name) for one in said) for name in ("captured", "delivered"))
    dropped = sum(sum(one.dropped.values()) for one in said)
    counts = fleet.buffer.counts()
    assert captured == delivered + dropped
    assert delivered == counts.delivered
    assert delivered == sum(counts.acked.values()) + counts.pending + counts.trimmed + counts.dead_lettered
    traced = {entry.trace.request_id for entry in fleet.buffer.replay(10_000)}
    assert len({*fleet.answered} - traced) <= dropped  # a swap splits what is in flight, so there are more traces


@pytest.mark.guarantee("opt-out")
def test_opt_outs_pass_the_router_on_every_path_and_labels_on_one(fleet, learned):
    """Written down in docs/operations.md; where a later router passes more on, the documents must say so."""
    fleet.drained(FIRST, SECOND)
    captured, skipped = fleet.captured(), fleet.skipped()
    asked = {"custom_params": {"paceline_label": "docs", "paceline_tenant": "someone"}}
    text, params = fleet.texts[0][:160], {"temperature": 0.0, "max_new_tokens": 16, "ignore_eos": True}
    generate = {"text": text, "sampling_params": params | asked}
    chat = {"model": str(fleet.target), "max_tokens": 16, "messages": [{"role": "user", "content": text}]} | asked
    complete = {"model": str(fleet.target), "max_tokens": 16, "prompt": text} | asked
    replies = [
        fleet.route("/generate", generate),
        fleet.route("/generate", generate | {"extra_key": OPT_OUT_MARK}),
        fleet.route("/v1/chat/completions", chat),
        fleet.route("/v1/chat/completions", chat, {"x-smg-routing-key": OPT_OUT_MARK}),
        fleet.route("/v1/completions", complete | {"rid": "asked"}),
        fleet.route("/v1/completions", complete | {"custom_params": {"paceline_opt_out": True}}),
    ]
    assert [reply.text for reply in replies if not reply.is_success] == []
    until(lambda: fleet.skipped() == skipped + 3, "the servers to say whom they skipped")
    fleet.drained(FIRST, SECOND)
    assert fleet.captured() == captured + 3
    traces = [entry.trace for entry in fleet.buffer.replay(10_000)]
    named = {trace.request_id: (trace.label, trace.tenant) for trace in traces if trace.label or trace.tenant}
    assert named == {"asked": ("docs", "someone")}


@pytest.mark.guarantee("store-away")
def test_an_object_that_was_changed_is_refused_and_said_on_the_board(fleet, learned):
    live, number = fleet.board.read().live, fleet.publish(0.5)
    with fsspec.open(f"{fleet.board.read().rows[number].version.weights_uri}/model.safetensors", "wb") as file:
        file.write(b"changed")
    fleet.board.move(number, VersionState.LIVE, "test", "to be refused")
    until(lambda: fleet.board.read().rows[number].state is VersionState.ROLLED_BACK, "the refusal")
    why = fleet.board.read().rows[number].why
    assert (why.code, "(the file was changed)" in sentence(why)) == (ReasonCode.WEIGHTS_REFUSED, True)
    fleet.wave()
    until(lambda: fleet.drafting(FIRST, SECOND) == {live}, "both servers to draft with the live version")


@pytest.mark.guarantee("store-away")
def test_a_store_that_is_gone_costs_no_request_and_drafts_come_through_it_once_it_is_back(fleet, learned):
    live, number = fleet.board.read().live, fleet.publish(2.0)
    fleet.store.kill()
    with fleet.traffic() as finished:
        fleet.board.move(number, VersionState.LIVE, "test", "while the store is gone")
        until(lambda: fleet.board.read().rows[number].state is VersionState.ROLLED_BACK, "the refusal")
        assert "expected published weights" in sentence(fleet.board.read().rows[number].why)
        assert fleet.board.read().live == live
        fleet.store.start()
        fleet.fill_store()
        number = fleet.publish(3.0)
        fleet.board.move(number, VersionState.LIVE, "test", "the store is back")
        until(lambda: fleet.drafting(FIRST, SECOND) == {number}, "both servers to swap")
        fleet.board.roll_back("test", "the learned one is better", number)
        until(lambda: fleet.drafting(FIRST, SECOND) == {live}, "the roll back")
    assert {*finished} == {"length"}


def test_a_killed_server_is_named_and_requests_go_on_through_the_router(fleet, learned):
    with fleet.traffic() as finished:
        until(lambda: len(finished) > CONCURRENCY, "traffic")
        fleet.servers[SECOND].kill()
        served = len(finished)
        until(lambda: len(finished) >= served + 4 * CONCURRENCY, "requests to go on")
    assert {*finished} == {"length"}  # those that it was answering too: the router asks another server
    until(lambda: f"replica:{SECOND}" in wrong(fleet), "status to name who is gone")
    assert wrong(fleet).startswith(f"1 thing is wrong: replica:{SECOND}: member_silent, ")


def test_a_server_that_joins_late_drafts_with_the_live_version_and_is_routed_to(fleet, learned):
    live = fleet.board.read().live
    fleet.server(LATE).start()
    until(lambda: fleet.drafting(LATE) == {live}, "the server to draft with the live version")
    assert fleet.route("/workers", {"url": fleet.url(LATE)}).is_success
    until(lambda: fleet.url(LATE) in routed(fleet), "the router to have it")
    with fleet.traffic():
        until(lambda: fleet.status(LATE).account.delivered > ROUND, "requests on it")
    fleet.drained(LATE)
    traces = [entry.trace for entry in fleet.buffer.replay(10_000) if entry.trace.replica == LATE]
    assert {trace.draft_version for trace in traces if trace.request_id.startswith("fleet-")} == {live}


def wrong(fleet: Fleet) -> str:
    """What `paceline status` says is wrong; empty while it finds nothing."""
    where = ["--redis-url", fleet.redis_url, "--speculator", NAME]
    command = [sys.executable, "-m", "paceline.cli", "status", "--json", *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = {one["topic"]: one["sentence"] for one in json.loads(done.stdout)["answers"] if one["level"] == "wrong"}
    return said.get("alarms", "")


def routed(fleet: Fleet) -> set[str]:
    """Servers that the router takes for healthy."""
    reply = httpx.get(f"http://127.0.0.1:{fleet.router_port}/workers", timeout=30.0, trust_env=False)
    return {one["url"] for one in json.loads(reply.content)["workers"] if one["is_healthy"]}
