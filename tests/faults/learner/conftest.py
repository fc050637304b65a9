"""Learner processes that tests kill, pause and skew, and the Redis and folders they work on."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.version_board import VersionBoard
from paceline.buffer.board.weights_file import check_weights, weights_file
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_client import client_for
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.buffer.stream.trace import DraftTrace
from paceline.learner.claim.intake import is_held_out
from paceline.learner.model.draft_io import load_draft, load_target_embedding

sys.path.append(str(Path(__file__).parent))

from learner_processes import ForkServer, LearnerProcess

SHARE = 0.25
#: A dead learner's ends that much later. A pause of the machine may cost it, which is a failed round: tests that look
#: at every answer, and kill nobody at work, ask for a longer one.
LEASE_S = 2.0
#: Nothing listens there: versions wait to be registered.
NO_MLFLOW = "http://127.0.0.1:9"
#: Rounds a learner may take until nothing is pending, failed ones among them.
MAX_ROUNDS = 12
#: A killed process is not a machine without power: its files need no disk, and need not wait for a busy one.
_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


@dataclass
class World:
    """A speculator, the Redis it works on, and the settings of learners that share a folder."""

    speculator: Any
    url: str
    folder: Path
    start: Callable[[dict[str, str]], LearnerProcess]
    env: dict[str, str]
    client: redis.Redis
    sent: list[DraftTrace] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buffer = RedisTraceBuffer(self.client, BufferConfig())
        self.board = RedisVersionBoard(self.client, BufferConfig())

    def send(self, count: int) -> list[DraftTrace]:
        """Serve and append `count` new traces."""
        new = [self.speculator.serve(number) for number in range(len(self.sent), len(self.sent) + count)]
        self.sent += new
        self.buffer.append(new)
        return new

    def learner(self, **settings: str) -> LearnerProcess:
        """Another learner; `settings` are PACELINE_* without that prefix."""
        return self.start(self.env | {f"PACELINE_{name}": value for name, value in settings.items()})

    def wait_for_lease(self) -> None:
        """Until the lease of a dead or paused learner has ended: Redis says when that is."""
        while (left_ms := self.client.pttl("paceline:{default}:lease:learner:default")) > 0:
            self.client.blpop("paceline:{default}:nobody-writes-here", timeout=min(left_ms / 1000 + 0.01, 0.5))

    def round(self, learner: LearnerProcess) -> dict[str, Any]:
        """The answer to a learning round, repeated where a busy machine cost its lease."""
        for _ in range(MAX_ROUNDS):
            self.wait_for_lease()
            answer = learner.round()
            if answer.get("error") != "LeaseLost":
                return answer
        raise AssertionError(f"{MAX_ROUNDS} rounds lost their lease, the last one: {answer}")

    def learn_all(self, learner: LearnerProcess) -> list[dict[str, Any]]:
        """Let `learner` do learning rounds until nothing is pending; the answer to each."""
        answers = []
        for _ in range(MAX_ROUNDS):
            if not self.buffer.counts().pending:
                return answers
            self.wait_for_lease()
            answers.append(learner.round())
        raise AssertionError(f"{self.buffer.counts()} after {answers}")

    def learn(self, count: int, **settings: str) -> LearnerProcess:
        """A new learner that has learned `count` new traces."""
        learner = self.learner(**settings)
        self.learn_more(learner, count)
        return learner

    def learn_more(self, learner: LearnerProcess, count: int) -> list[DraftTrace]:
        """`count` new traces that `learner` has learned."""
        new = self.send(count)
        self.learn_all(learner)
        return new

    def held_out(self, traces: list[DraftTrace]) -> int:
        """How many of these traces are held out for the gate."""
        return sum(is_held_out(trace.request_id, SHARE) for trace in traces)

    def assert_accounted(self, traces: list[DraftTrace], outcome: str = "learned") -> None:
        """These traces, and no others, had this outcome or were held out, each once; nothing is left."""
        counts = self.buffer.counts()
        kept = self.held_out(traces)
        assert dict(counts.acked) == {outcome: len(traces) - kept, "held_out": kept}
        assert (counts.delivered, counts.pending, counts.dead_lettered, counts.trimmed) == (len(traces), 0, 0, 0)

    def assert_sound(self) -> None:
        """A sound board: one version live, none undecided, each whole, and a known parent for all that may draft."""
        state = self.board.read()
        assert state.live is not None
        assert VersionState.CANDIDATE not in {row.state for row in state.rows.values()}
        drafted = [row.version for row in state.rows.values() if row.state is not VersionState.REFUSED]
        assert {version.parent for version in drafted} <= {None, *state.rows}
        self.assert_no_half_version()

    def assert_no_half_version(self) -> None:
        """Every version on the board has whole weights of the digest it was published with, and can be read."""
        assert_no_half_version(self.board, self.speculator)


def assert_no_half_version(board: VersionBoard, speculator: Any) -> None:
    state = board.read()
    embedding = load_target_embedding(speculator.target)
    for number, row in state.rows.items():
        check_weights(state, number)
        load_draft(weights_file(row.version.weights_uri).parent, embedding)


class KillableRedis:
    """The Redis of a world, to be killed and brought back."""

    def __init__(self, server: Any, world: World, folder: Path) -> None:
        self._server = server
        self._world = world
        self._folder = folder
        server.stop()
        self._start()

    def die(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self._server.stop()

    def come_back(self, *, with_data: bool) -> None:
        """On the same port, with its append-only file or without."""
        if not with_data:
            for left in self._folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        self._start()
        self._world.client.connection_pool.disconnect()

    def _start(self) -> None:
        self._server.start("--dir", str(self._folder), "--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def build_world(tiny_speculator: Any, fork_server: ForkServer, tmp_path: Path) -> Iterator[Callable[[str], World]]:
    """A world on the Redis at a URL."""
    with ExitStack() as stack:

        def start(env: dict[str, str]) -> LearnerProcess:
            learner = LearnerProcess(fork_server, env, tmp_path)
            stack.callback(learner.end)
            return learner

        def build(url: str) -> World:
            client = stack.enter_context(client_for(url, timeout_s=30.0))
            return World(tiny_speculator, url, tmp_path, start, _settings(tiny_speculator, url, tmp_path), client)

        yield build


@pytest.fixture
def world(build_world: Callable[[str], World], redis_url: str, redis_client: redis.Redis) -> World:
    """A world on the suite's Redis, which is empty at first."""
    return build_world(redis_url)


@pytest.fixture
def own_world(build_world: Callable[[str], World], own_redis: Any) -> World:
    """A world on a Redis of its own, which writes to an append-only file."""
    return build_world(own_redis.url)


@pytest.fixture
def killable_redis(own_redis: Any, own_world: World) -> Iterator[KillableRedis]:
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        yield KillableRedis(own_redis, own_world, Path(folder))
        own_redis.stop()


def _settings(speculator: Any, url: str, folder: Path) -> dict[str, str]:
    return {
        "PACELINE_REDIS_URL": url,
        "PACELINE_TARGET": "target",
        "PACELINE_TARGET_PATH": str(speculator.target),
        "PACELINE_TARGET_VERSION": "1",
        "PACELINE_DRAFT": str(speculator.draft),
        "PACELINE_DATA_DIR": str(folder / "data"),
        "PACELINE_MLFLOW_URI": NO_MLFLOW,
        "PACELINE_LEARNER": "killable",
        "PACELINE_MIN_NEW_TRACES": "1",
        "PACELINE_PASSES": "2",
        "PACELINE_LEARN": "always",
        "PACELINE_HOLDOUT_SHARE": str(SHARE),
        "PACELINE_GATE_CONFIDENCE": "0.01",  # so that most rounds have a verdict, whichever
        "PACELINE_ROUND_LEASE_S": str(LEASE_S),
        "PACELINE_BUFFER_CLAIM_IDLE_MS": "1",
    }
