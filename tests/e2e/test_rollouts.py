"""Rollouts on a real server that it starts itself: weights by every path, versions, log-probabilities, in flight."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from in_memory import redis_in_memory
from paceline import Rollouts
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import RolloutFailed
from paceline.buffer.redis_client import connect
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.rig.models.corpus import load_corpus
from paceline.rig.models.target import greedy
from paceline.rig.readiness import free_port
from paceline.serving.rollouts.server import RolloutServer
from paceline.serving.rollouts.weights import buckets
from pushed_weights import Trainer
from rollout_server import RECORDED, recorded_calls, shape
from transformers import AutoTokenizer
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.rollouts]

CONFIG = BufferConfig(speculator="e2e")
FLAGS = (
    "--device", "cpu", "--log-level", "warning", "--max-total-tokens", "2048", "--max-running-requests", "8",
    "--context-length", "1024", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1",
    "--speculative-num-draft-tokens", "4",
)  # fmt: skip
PROMPTS, TOKENS = 6, 24
#: The largest difference of log-probabilities between two programs that compute the same in float32.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    port = free_port()
    with redis_in_memory(port):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="module")
def rollouts(models: tuple[Path, Path], redis_url: str) -> Iterator[Rollouts]:
    """A server that Rollouts.serve starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        started = Rollouts.serve(*models, *FLAGS, port=free_port(), redis_url=redis_url, speculator=CONFIG.speculator)
        with started as made:
            yield made


@pytest.fixture(scope="module")
def trainer(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Has the target and moves it; Rollouts does the pushing."""
    return Trainer(models[0], tmp_path_factory.mktemp("trainer"), port=0)


@pytest.fixture(scope="module")
def prompts(models: tuple[Path, Path]) -> list[list[int]]:
    encode = AutoTokenizer.from_pretrained(models[0])
    texts = [text for text in load_corpus(("py",))["py"].held_out if len(text) > 3000]
    return [encode(text[:160], add_special_tokens=False).input_ids for text in texts[:PROMPTS]]


@torch.no_grad()
def own_logprobs(policy: Any, prompt: list[int], ids: tuple[int, ...], temperature: float) -> torch.Tensor:
    logits_TV = policy(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits_TV / temperature, -1).gather(1, torch.tensor(ids)[:, None])[:, 0]


def are_running(board: RedisVersionBoard, since: float) -> bool:
    """Whether a server has said, after `since`, that it is at requests."""
    return any(beat.at > since and beat.open for beat in board.heartbeats().values())


@pytest.mark.guarantee("pushed-everywhere")
@pytest.mark.parametrize("path", ["folder", "one bucket", "many buckets"])
def test_pushed_weights_are_served_exactly_and_under_their_version(rollouts, trainer, prompts, tmp_path, path) -> None:
    policy, version = trainer.stepped(seed=len(path)), path.replace(" ", "-")
    named = policy.state_dict()
    size = sum(tensor.nbytes for tensor in named.values())
    ways = {
        "folder": {"folder": tmp_path},
        "one bucket": {"bucket_bytes": size},
        "many buckets": {"bucket_bytes": size // 8},
    }
    seconds = rollouts.sync_weights(named.items(), version, **ways[path])
    done = rollouts.generate(prompts, max_new_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    assert [each.token_ids for each in done] == [greedy(policy, prompt, TOKENS) for prompt in prompts]
    assert {(span.version, span.start, span.end) for each in done for span in each.target_versions} == {
        (version, 0, TOKENS)
    }
    assert rollouts.metrics()["rollout/sync_seconds"] == seconds


def test_log_probabilities_are_those_of_the_trainer_at_its_temperature(rollouts, trainer, prompts) -> None:
    policy = trainer.stepped(seed=1)
    rollouts.sync_weights(policy.state_dict().items(), "sampled")
    done = rollouts.generate(prompts, max_new_tokens=TOKENS, temperature=0.7, ignore_eos=True)
    errors = [
        (own_logprobs(policy, prompt, each.token_ids, 0.7) - torch.tensor(each.logprobs)).abs().max()
        for prompt, each in zip(prompts, done, strict=True)
    ]
    assert max(errors) < TOLERANCE
    figures = rollouts.metrics()
    accepted, rounds = (sum(getattr(each, name) for each in done) for name in ("accepted", "rounds"))
    assert rounds >= PROMPTS
    assert figures["rollout/accept_length"] == 1 + accepted / rounds
    assert 0.0 <= figures["rollout/tail_seconds"] < figures["rollout/seconds"]


def test_weights_pushed_while_requests_run_split_them_where_they_moved(rollouts, trainer, prompts, redis_url) -> None:
    old, new, length, done = trainer.at_start(), trainer.stepped(seed=2), 300, []
    rollouts.sync_weights(old.state_dict().items(), "before")
    running = threading.Thread(
        target=lambda: done.extend(rollouts.generate(prompts[:4], max_new_tokens=length, ignore_eos=True))
    )
    running.start()
    with connect(redis_url) as client:
        board = RedisVersionBoard(client, CONFIG)
        began = time.time()
        until(lambda: are_running(board, began), "the server to report requests")
    rollouts.sync_weights(new.state_dict().items(), "after")
    running.join(240)
    assert [len(each.token_ids) for each in done] == [length] * 4
    split = [each for each in done if [span.version for span in each.target_versions] == ["before", "after"]]
    assert split  # a request may have been done before the weights came
    for prompt, each in zip(prompts, done, strict=False):
        for span in each.target_versions:
            own = own_logprobs(old if span.version == "before" else new, prompt, each.token_ids, 1.0)
            error = (own - torch.tensor(each.logprobs)).abs()[span.start : span.end].max()
            assert error < TOLERANCE, (span, error)


def test_a_version_that_a_trainer_pushed_by_itself_is_named(rollouts, prompts) -> None:
    rollouts.moved("by-nccl")
    (done, *_) = rollouts.generate(prompts[:1], max_new_tokens=4)
    assert [span.version for span in done.target_versions] == ["by-nccl"]


def test_a_trainer_asks_for_a_learning_round_and_sees_which_draft_is_in_use(rollouts, redis_url, prompts) -> None:
    with connect(redis_url) as client:
        buffer = RedisTraceBuffer(client, CONFIG)
        rollouts.generate(prompts, max_new_tokens=4)
        assert rollouts.metrics()["rollout/draft_version"] == 0
        rollouts.learn()
        assert [buffer.take_ask(), buffer.take_ask()] == [True, False]


def test_a_server_that_cannot_start_is_told_of_and_leaves_nothing_running(models: tuple[Path, Path]) -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(RolloutFailed, match=r"got exit code \d+ while starting, expected a server"):
        Rollouts.serve("/nowhere/at/all", models[1], "--device", "cpu", port=free_port())
    assert set(psutil.Process().children(recursive=True)) - before == set()


def test_the_recorded_answers_are_of_the_shape_that_this_server_gives(rollouts, trainer, tmp_path) -> None:
    (server,) = rollouts._servers._servers
    assert isinstance(server, RolloutServer)
    named = trainer.at_start().state_dict()
    ((bucket, is_last),) = buckets(named.items(), 1 << 40)
    rollouts.sync_weights(named.items(), "0", folder=tmp_path)
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    answered = recorded_calls(server.url, bucket, str(tmp_path))
    assert is_last
    assert {name: (call["path"], call["status"]) for name, call in answered.items()} == {
        name: (call["path"], call["status"]) for name, call in recorded.items()
    }
    assert shape(answered) == shape(recorded)
