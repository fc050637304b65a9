"""The real SGLang server on the CPU host, with a private Redis: started once, shared by all end-to-end tests."""

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from in_memory import redis_in_memory
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version_board import VersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_client import connect
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.buffer.stream.trace import DraftTrace
from paceline.buffer.stream.trace_buffer import TraceBuffer
from paceline.rig.models.corpus import load_corpus
from paceline.rig.reader import drain_check
from paceline.rig.readiness import free_port
from paceline.rig.services import Service, learner_service, sglang_service
from waiting import until

REPLICA, SECOND = "e2e-0", "e2e-1"
TARGET = "e2e-target"
STEPS = 3
CONFIG = BufferConfig(speculator="e2e")
#: Small enough that eight long requests do not fit, so that SGLang must retract.
KV_TOKENS = 2048
#: Tests cut their prompts out of the first characters of held-out files.
MIN_TEXT_CHARS = 3000
#: Smaller than some prompts, so that they are prefilled in chunks.
CHUNK_TOKENS = 64
#: New traces of one learning round, requests of one wave, and waves served at most until something was learned.
ROUND = 24
WAVES = 12
#: Accept length of a wave that makes it the last: well above that of a draft which the alarms take for dead.
LEARNED_LENGTH = 1.4
MEMBER = "learner:e2e-learner"


@dataclass
class Rig:
    """Everything a test may want to touch."""

    folder: Path
    target: Path
    draft: Path | None  # None: it drafts without a model
    redis: Service
    redis_url: str
    port: int
    buffer: TraceBuffer
    board: VersionBoard
    texts: list[str] = field(default_factory=list)  # held-out source code, one file each
    steps: int = STEPS
    chunk_tokens: int = CHUNK_TOKENS

    def generate(self, rid: str, text: str, max_tokens: int = 32, **sampling: Any) -> dict[str, Any]:
        """One request, answered whole."""
        body = request_body(rid, text, max_tokens, **sampling)
        reply = httpx.post(f"http://127.0.0.1:{self.port}/generate", json=body, timeout=300.0, trust_env=False)
        return json.loads(reply.content)

    def generate_all(self, jobs: list[dict[str, Any]], concurrency: int = 8) -> list[dict[str, Any]]:
        """Several requests at a time, answers in the order of `jobs`."""
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda job: self.generate(**job), jobs))

    def drained(self) -> MemberStatus:
        """The replica's status once every trace of the requests answered so far has left the server."""
        until(drain_check(self.status), "the server to deliver its traces")
        return self.status()

    def status(self) -> MemberStatus:
        """The replica's last heartbeat; empty while it is silent."""
        return self.board.heartbeats().get(f"replica:{REPLICA}", MemberStatus())

    def traces_of(self, rid: str) -> list[DraftTrace]:
        """All traces of one request, oldest first."""
        return [entry.trace for entry in self.buffer.replay(10_000) if entry.trace.request_id == rid]


def request_body(rid: str, text: str, max_tokens: int, **sampling: Any) -> dict[str, Any]:
    """Body of /generate; greedy, and EOS ends nothing unless asked for."""
    params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": max_tokens, **sampling}
    return {"rid": rid, "text": text, "sampling_params": params}


#: A chain of STEPS drafts, spelled out.
CHAIN = (
    "--speculative-num-steps", str(STEPS), "--speculative-eagle-topk", "1",
    "--speculative-num-draft-tokens", str(STEPS + 1),
)  # fmt: skip


def flags(target: Path, draft: Path | None, chain: Iterable[str] = CHAIN) -> list[str]:
    """SGLang's flags of the shared server; without a draft, `chain` has to say how it speculates."""
    named = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft)] if draft else []
    return [
        "--model-path", str(target), "--device", "cpu", "--log-level", "warning",
        "--max-total-tokens", str(KV_TOKENS), "--max-running-requests", "8", "--context-length", "1024",
        "--chunked-prefill-size", str(CHUNK_TOKENS), *named, *chain,
        # Admits requests without keeping room for what they will generate, however far apart they arrive.
        "--schedule-conservativeness", "0.1", "--chat-template", "chatml",
    ]  # fmt: skip


def server_env(redis_url: str) -> dict[str, str]:
    """Settings of the shared server."""
    return {
        "PACELINE_REDIS_URL": redis_url,
        "PACELINE_SPECULATOR": CONFIG.speculator,
        "PACELINE_REPLICA": REPLICA,
        "PACELINE_TARGET": TARGET,
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def killed_at_the_end(server: Service) -> Iterator[Service]:
    """Run a server without waiting for its shutdown, which tests/faults/test_server_stops.py is about."""
    with server:
        yield server
        server.kill()


@contextmanager
def running(
    models: tuple[Path, Path | None], folder: Path, more: list[str], env: dict[str, str], chain: Iterable[str] = CHAIN
) -> Iterator[Rig]:
    """A server and a Redis of their own, with `more` flags and settings than the shared ones."""
    target, draft = models
    redis_port, port = free_port(), free_port()
    url = f"redis://127.0.0.1:{redis_port}/0"
    settings = server_env(url) | env
    server = sglang_service([*flags(target, draft, chain), *more], port, log=folder / "sglang.log", env=settings)
    with redis_in_memory(redis_port) as redis, killed_at_the_end(server):
        client = connect(url, timeout_s=30.0)
        made = Rig(
            folder, target, draft, redis, url, port, RedisTraceBuffer(client, CONFIG), RedisVersionBoard(client, CONFIG)
        )
        made.texts = [text for text in load_corpus(("py",))["py"].held_out if len(text) > MIN_TEXT_CHARS]
        until(lambda: made.status().capture == "on", "the replica's first heartbeat")
        yield made
        client.close()


@pytest.fixture
def server_without_paceline(models: tuple[Path, Path], tmp_path: Path) -> Iterator[tuple[Service, int]]:
    """SGLang as it is, with the shared flags, and its port: without a Redis the plugin hooks nothing."""
    port = free_port()
    env = {"PACELINE_REDIS_URL": "", "OMP_NUM_THREADS": "1"}
    with killed_at_the_end(sglang_service(flags(*models), port, log=tmp_path / "sglang.log", env=env)) as server:
        yield server, port


@pytest.fixture(scope="session")
def start_rig() -> Callable[..., AbstractContextManager[Rig]]:
    """Start a server of one's own: `running`."""
    return running


@pytest.fixture(scope="session")
def rig(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The running server."""
    with running(models, tmp_path_factory.mktemp("rig"), [], {}) as made:
        yield made


@pytest.fixture(scope="module")
def paced_rig(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server that chooses its number of draft steps, 0 to 5, at every step."""
    folder = tmp_path_factory.mktemp("paced")
    lengths = folder / "lengths.json"
    lengths.write_text(json.dumps({"1": {"candidate_steps": list(range(6))}}))
    adaptive = ["--speculative-adaptive", "--speculative-adaptive-config", str(lengths)]
    # Room for all requests, so that none is retracted, and no cached prefix that other weights have drafted for. The
    # flags of speculation are those of docs/pacing.md alone: SGLang chooses the chain by itself.
    more = [*adaptive, "--max-total-tokens", "16384", "--disable-radix-cache"]
    with running(models, folder, more, {}, chain=()) as made:
        yield made


@pytest.fixture(scope="module")
def swept_rigs(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Rig]]:
    """Two servers that take 0 to 3 steps in turn, with a radix cache: one catches its draft up, one always runs it.

    The first keeps hidden states of 21 tokens: less than four requests have missed after eight steps without drafts.
    """
    folders = {name: tmp_path_factory.mktemp(name.replace(" ", "-")) for name in ("caught up", "always warm")}
    kept_bytes = {"caught up": "65536", "always warm": "0"}
    with ExitStack() as stack:
        made = {}
        for name, folder in folders.items():
            lengths = folder / "lengths.json"
            lengths.write_text(json.dumps({"1": {"candidate_steps": list(range(4))}}))
            adaptive = ["--speculative-adaptive", "--speculative-adaptive-config", str(lengths)]
            env = {"PACELINE_PACING": "sweep", "PACELINE_CATCH_UP_BYTES": kept_bytes[name]}
            more = [*adaptive, "--max-total-tokens", "16384"]
            made[name] = stack.enter_context(running(models, folder, more, env, chain=()))
        yield made


@pytest.fixture(scope="module")
def tree_rig(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server of a Llama whose speculation SGLang sets up by itself: it drafts trees. Its trace windows are small."""
    more, env = ["--max-total-tokens", "8192", "--disable-radix-cache"], {"PACELINE_TRACE_TOKENS": "160"}
    with running(models, tmp_path_factory.mktemp("trees"), more, env, chain=()) as made:
        yield made


@pytest.fixture(scope="session")
def rig_elsewhere(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server with the same models and a board of its own, for traffic that the shared board should not see.

    It draws with SGLang's random seed 5, and a canary on it takes turns with the live version.
    """
    env = {"PACELINE_CANARY_TURN_S": "3"}
    with running(models, tmp_path_factory.mktemp("elsewhere"), ["--random-seed", "5"], env) as made:
        yield made


@pytest.fixture(scope="module")
def rejecting_rig(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server that accepts drafts by rejection sampling."""
    more = ["--random-seed", "5", "--speculative-use-rejection-sampling"]
    with running(models, tmp_path_factory.mktemp("rejection"), more, {}) as made:
        yield made


@pytest.fixture(scope="module")
def second_server(rig: Rig) -> Iterator[int]:
    """Port of a second replica, SECOND, of the same speculator."""
    port = free_port()
    env = {**server_env(rig.redis_url), "PACELINE_REPLICA": SECOND}
    server = sglang_service(flags(rig.target, rig.draft), port, log=rig.folder / "second.log", env=env)
    with killed_at_the_end(server):
        yield port


@dataclass(frozen=True)
class Learned:
    """The result of serving with a learner at work."""

    folder: Path  # the learner's
    replies: list[dict[str, Any]]  # while it learned, oldest first
    after: list[dict[str, Any]]  # with a learned version live
    status: MemberStatus  # the learner's last heartbeat


def learner_env(rig: Rig, folder: Path) -> dict[str, str]:
    """Settings of the learner beside the shared server."""
    return {
        "PACELINE_REDIS_URL": rig.redis_url,
        "PACELINE_SPECULATOR": "e2e",
        "PACELINE_TARGET": "e2e-target",
        "PACELINE_TARGET_PATH": str(rig.target),
        "PACELINE_DRAFT": str(rig.draft),
        "PACELINE_DATA_DIR": str(folder),
        "PACELINE_MLFLOW_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "PACELINE_LEARNER": "e2e-learner",
        "PACELINE_MIN_NEW_TRACES": str(ROUND),
        "PACELINE_HOLDOUT_SHARE": "0.25",
        "PACELINE_ROUND_INTERVAL_S": "1.0",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="session")
def learned(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Learned:
    """Serve waves of requests with a learner at work, then one more with a version of its own."""
    folder = tmp_path_factory.mktemp("learner")
    with learner_service(log=folder / "learner.log", env=learner_env(rig, folder)):
        replies = serve_until_learned(rig)
        live = rig.board.read().live
        until(lambda: rig.status().draft_version >= live, "the swap")
        jobs = [{"rid": f"after-{i}", "text": rig.texts[i][:160], "max_tokens": 64} for i in range(ROUND)]
        after = rig.generate_all(jobs)
        until(lambda: not is_learning(rig), "the round's end", 240.0)
        status = rig.board.heartbeats()[MEMBER]  # it expires soon after the learner has ended
    return Learned(folder, replies, after, status)


def serve_until_learned(rig: Rig) -> list[dict[str, Any]]:
    """Serve waves until a version of the learner's own is live and drafts well; their replies, oldest first.

    How much is learned from one wave depends on how busy the machine is, so the accept length decides and not a count.
    Fails when WAVES were not enough.
    """
    started_with, replies = rig.board.read().live, []
    for wave in range(WAVES):
        texts = [rig.texts[i % 30][150 * (i // 30) :][:160] for i in range(wave * ROUND, (wave + 1) * ROUND)]
        jobs = [{"rid": f"loop-{wave}-{i}", "text": text, "max_tokens": 64} for i, text in enumerate(texts)]
        served = rig.generate_all(jobs)
        replies += served
        live, length = rig.board.read().live, accept_length(served)
        if wave >= 2 and live not in {None, started_with} and length >= LEARNED_LENGTH:
            return replies
        # A wave is served while the learner works on the one before it, and on no older one.
        until(lambda: rig.buffer.counts().pending < 2 * ROUND, "the learner to keep up", 240.0)
    pytest.fail(
        f"{WAVES} waves, begun with version {started_with} live: got version {live} live and an accept length of "
        f"{length:.2f}, expected another version and at least {LEARNED_LENGTH}"
    )


def accept_length(replies: list[dict[str, Any]]) -> float:
    """Pooled over the replies, as SGLang reports it."""
    drafts = sum(reply["meta_info"]["spec_num_correct_drafts"] for reply in replies)
    return 1 + drafts / sum(reply["meta_info"]["spec_verify_ct"] for reply in replies)


def is_learning(rig: Rig) -> bool:
    return rig.board.heartbeats()[MEMBER].kind == "learning"
