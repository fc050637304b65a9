"""kill -9 of the trainer, the learner and the server between two target versions: nothing lost, nothing mistaken."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from paceline import Rollouts
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import RolloutFailed
from paceline.buffer.redis_client import connect
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.buffer.stream.trace import prompt_key
from paceline.demo.grpo.services import grpo_env, grpo_learner_env
from paceline.rig.deployment import LEARNER, REPLICA, SPECULATOR, LocalDeployment, server_flags
from paceline.rig.models.corpus import load_corpus
from paceline.rig.models.target import TargetModel, greedy
from paceline.rig.reader import SpeculatorReader, drain_check
from paceline.rig.services import Service, learner_service, redis_service, sglang_service
from paceline.serving.rollouts.completion import Completion
from paceline.serving.rollouts.server import RolloutServer
from pushed_weights import Trainer
from transformers import AutoTokenizer
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.rollouts]

PROMPTS, TOKENS, LONG = 12, 24, 800
#: The version of a server that nothing was pushed to.
BASE = "base"
LIMIT_S = 240.0


@dataclass
class Scene:
    """Everything that is killed, and what there is to be compared afterwards."""

    local: LocalDeployment
    server: Service
    learner: Service
    reader: SpeculatorReader
    buffer: RedisTraceBuffer
    board: RedisVersionBoard
    trainer: Trainer
    prompts: list[list[int]]
    policies: dict[str, Any] = field(default_factory=dict)  # version -> the model that was pushed under it
    is_learner_killed: bool = False

    def rollouts(self) -> Rollouts:
        """A trainer's door."""
        return Rollouts(self.local.server_url, redis_url=self.local.redis_url, speculator=SPECULATOR)

    def push(self, rollouts: Rollouts, version: str) -> None:
        """Other weights, under this version."""
        self.policies[version] = self.trainer.stepped(seed=len(self.policies))
        rollouts.sync_weights(self.policies[version].state_dict().items(), version)

    def generate(self, rollouts: Rollouts, tokens: int = TOKENS) -> list[Completion]:
        """Greedy answers to all prompts."""
        return rollouts.generate(self.prompts, max_new_tokens=tokens, temperature=0.0, ignore_eos=True)

    def assert_served(self, done: list[Completion], version: str) -> None:
        """All answers are of this version, and what its weights say."""
        assert {span.version for each in done for span in each.target_versions} == {version}
        expected = [greedy(self.policies[version], prompt, TOKENS) for prompt in self.prompts]
        assert [each.token_ids for each in done] == expected

    def kill_the_learner_at_work(self) -> None:
        """In the middle of a round: wait until it says that it learns."""
        until(lambda: self.reader.learner_status().kind == "learning", "the learner to learn", LIMIT_S)
        self.learner.kill()
        self.is_learner_killed = True

    def settle(self) -> None:
        """Wait until the server has delivered and the learner has taken all, and check that all are accounted for."""
        until(drain_check(self.reader.replica_status), "the server to deliver its traces", LIMIT_S)
        until(lambda: not self.reader.traces().pending and not self.reader.is_learning(1), "the learner", LIMIT_S)
        account = self.reader.traces()
        assert account.is_balanced, account


@pytest.fixture(scope="module")
def scene(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    local = LocalDeployment.on_free_ports(tmp_path_factory.mktemp("killed"))
    target, config = TargetModel(models[0], BASE, {}, 0), BufferConfig(speculator=SPECULATOR)
    shared, logs = grpo_env(local, target), local.folder / "logs"
    flags, env = server_flags(*models), shared | {"PACELINE_TARGET_VERSION": BASE}
    server = sglang_service(flags, local.server_port, log=logs / "sglang.log", env=env)
    eager = {"PACELINE_MIN_NEW_TRACES": "8", "PACELINE_MAX_WAIT_S": "3", "PACELINE_ROUND_INTERVAL_S": "1"}
    eager["PACELINE_LEARN"] = "always"
    learns = shared | grpo_learner_env(local, target, models[1]) | eager
    learner = learner_service(log=logs / "learner.log", env=learns)
    texts = [text for text in load_corpus(("py",))["py"].held_out if len(text) > 3000]
    encode = AutoTokenizer.from_pretrained(models[0])
    prompts = [encode(text[:160], add_special_tokens=False).input_ids for text in texts[:PROMPTS]]
    with ExitStack() as stack:
        stack.enter_context(redis_service(local.folder / "redis", local.redis_port))
        client = stack.enter_context(connect(local.redis_url))
        buffer, board = RedisTraceBuffer(client, config), RedisVersionBoard(client, config)
        for service in (server, learner):
            stack.enter_context(service)
        reader = SpeculatorReader(buffer, board, REPLICA, LEARNER)
        trainer = Trainer(models[0], local.folder / "trainer", port=local.server_port)
        yield Scene(local, server, learner, reader, buffer, board, trainer, prompts, {BASE: trainer.at_start()})


@pytest.mark.guarantee("rollouts-killed")
def test_a_trainer_killed_half_way_through_a_push_is_followed_by_one_that_pushes(scene: Scene) -> None:
    with scene.rollouts() as first:
        scene.push(first, "1")
        scene.assert_served(scene.generate(first), "1")
    weights = Path(scene.trainer.written(scene.trainer.stepped(seed=99), "half")) / "model.safetensors"
    script = Path(__file__).parents[1] / "killable_trainer.py"
    command = [sys.executable, str(script), scene.local.server_url, str(weights), "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == "half\n"
        dying.kill()
    until(lambda: scene.reader.replica_status().target.reason, "the server to say that it is being loaded")
    with scene.rollouts() as second:
        scene.push(second, "3")
        scene.assert_served(scene.generate(second), "3")
        scene.settle()
    assert not scene.reader.replica_status().target.reason


@pytest.mark.guarantee("rollouts-killed")
def test_a_learner_killed_between_two_versions_learns_every_trace_once(scene: Scene) -> None:
    with scene.rollouts() as rollouts:
        scene.push(rollouts, "4")
        watching = threading.Thread(target=scene.kill_the_learner_at_work)
        watching.start()
        done = scene.generate(rollouts)
        watching.join(LIMIT_S)
        assert scene.is_learner_killed
        scene.assert_served(done, "4")
        scene.push(rollouts, "5")
        scene.assert_served(scene.generate(rollouts), "5")
        scene.learner.start()
        scene.settle()
    rows = scene.board.read().rows
    assert len(rows) > 1
    assert {name for row in rows.values() for name in row.version.trained_targets} <= set(scene.policies)


@pytest.mark.guarantee("rollouts-killed", "restart-noticed")
def test_a_server_that_comes_back_says_base_until_the_weights_are_pushed_again(scene: Scene) -> None:
    with scene.rollouts() as rollouts:
        scene.push(rollouts, "6")
        scene.assert_served(scene.generate(rollouts), "6")
        until(drain_check(scene.reader.replica_status), "the server to deliver its traces", LIMIT_S)
        failed: list[str] = []
        running = threading.Thread(target=lambda: failed.append(failure(scene, rollouts)))
        running.start()
        until(lambda: scene.reader.replica_status().open, "requests to run", LIMIT_S)
        scene.server.kill()
        running.join(LIMIT_S)
        assert "/generate: got " in failed[0]
        scene.server.start()
        until(lambda: scene.reader.replica_status().capture == "on", "the replica to capture", LIMIT_S)
        with pytest.raises(RolloutFailed, match=r"got version default on .*, expected 6, which was pushed last"):
            scene.generate(rollouts)
        unpushed = RolloutServer(scene.local.server_url, LIMIT_S)
        unpushed.generate(scene.prompts[:4], {"max_new_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True})
        unpushed.close()
        rollouts.sync_weights(scene.policies["6"].state_dict().items(), "6")
        scene.assert_served(scene.generate(rollouts), "6")
        scene.push(rollouts, "7")
        scene.assert_served(scene.generate(rollouts), "7")
        scene.settle()
    assert scene.reader.replica_status().account.dropped.get("server_died", 0) > 0


def failure(scene: Scene, rollouts: Rollouts) -> str:
    """What rollouts that take long say when their server is killed."""
    try:
        scene.generate(rollouts, LONG)
    except RolloutFailed as failed:
        return str(failed)
    return "nothing"


@pytest.mark.guarantee("rollouts-killed")
def test_every_trace_is_of_the_version_that_it_names(scene: Scene) -> None:
    """Runs last: of all that the tests before it have served, whatever was killed meanwhile."""
    of_key = {prompt_key(prompt): prompt for prompt in scene.prompts}
    traces = [entry.trace for entry in scene.buffer.replay(10_000)]
    named = {trace.target_version for trace in traces}
    assert named == set(scene.policies)
    for trace in traces:
        prompt = of_key[trace.prompt]
        end = trace.offset + len(trace.tokens)
        whole = [*prompt, *greedy(scene.policies[trace.target_version], prompt, end - len(prompt))]
        assert trace.tokens.tolist() == whole[trace.offset : end], (trace.request_id, trace.target_version)
