"""What cannot work says so and what to do next, and never costs the server its service."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing, contextmanager

import httpx
import pytest
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.weights_file import weights_file
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_client import connect
from paceline.rig.models.target import ensure_random_draft
from paceline.rig.readiness import free_port
from paceline.rig.services import sglang_service
from paceline.serving.supported_release import installed_release
from transformers import Qwen3Config, Qwen3ForCausalLM
from waiting import until

pytestmark = pytest.mark.e2e


def run(*arguments, **env):
    command = [sys.executable, "-m", "paceline.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | env, check=False)


def test_a_learner_without_redis_ends_at_once_and_says_what_to_do(rig):
    url = f"redis://127.0.0.1:{free_port()}/0"
    env = {"PACELINE_TARGET": "t", "PACELINE_TARGET_PATH": str(rig.target), "PACELINE_DRAFT": str(rig.draft)}
    ended = run("learn", PACELINE_REDIS_URL=url, **env)
    assert ended.returncode == 1
    assert "start Redis or correct PACELINE_REDIS_URL" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_list_of_versions_without_redis_ends_with_an_error():
    ended = run("versions", "--redis-url", f"redis://127.0.0.1:{free_port()}/0")
    assert ended.returncode == 2  # what is on the board cannot be told
    assert "start Redis" in ended.stderr


def test_the_doctor_says_of_the_real_sglang_what_will_happen(rig):
    """A Llama without flags of speculation but the algorithm and the draft."""
    given = ["--model-path", str(rig.target), "--device", "cpu", "--speculative-algorithm", "EAGLE3"]
    given += ["--speculative-draft-model-path", str(rig.draft)]
    ended = run("doctor", "--json", "--", *given, PACELINE_REDIS_URL=rig.redis_url)
    found = {one["topic"]: (one["level"], one["sentence"]) for one in map(json.loads, ended.stdout.splitlines())}
    assert found["SGLang"] == ("ok", f"{installed_release()} has everything that paceline hooks")
    assert found["flags"] == ("ok", "SGLang resolves them to EAGLE3, steps 5, top-k 4, draft tokens 8")
    assert found["capture"] == ("ok", "on, for 100% of requests")
    assert found["swap"] == ("ok", f"on: learned drafts replace the one in {rig.draft} while the server runs")
    assert found["answers"][0] == "ok"
    assert (found["replay"][0], found["pacing"][0]) == ("ok", "note")
    assert "3096 bytes" in found["traffic"][1]  # three layers of 256 float32, and 24 bytes
    live = rig.board.read()
    weights = "no version is live yet: the server drafts with what it is started with"
    if live.live is not None:  # tests before this one on the same board may have published one
        file = weights_file(live.rows[live.live].version.weights_uri)
        weights = f"those of live version {live.live} can be read at {file}"
    assert found["weights"] == ("ok", weights)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.servers
def test_the_doctor_says_that_sglang_paces_no_server_with_adapters(rig):
    given = ["--model-path", str(rig.target), "--device", "cpu", "--speculative-algorithm", "EAGLE3"]
    given += ["--speculative-draft-model-path", str(rig.draft), "--enable-lora", "--lora-target-modules", "q_proj"]
    given += ["--max-lora-rank", "8"]
    for more, level in (([], "ok"), (["--speculative-adaptive"], "wrong")):
        ended = run("doctor", "--json", "--", *given, *more, PACELINE_REDIS_URL=rig.redis_url)
        found = {one["topic"]: (one["level"], one["sentence"]) for one in map(json.loads, ended.stdout.splitlines())}
        assert found["flags"][0] == level, found["flags"]
    assert "does not support --speculative-adaptive" in found["flags"][1]


@pytest.mark.servers
@pytest.mark.parametrize(
    ("flags", "level", "said"),
    [
        ("--quantization fp8", "wrong", "got fp8 for the draft, by Fp8LinearMethod, expected no quantisation; "),
        ("--quantization awq", "wrong", "SGLang will not start: it cannot load the draft in awq: ValueError"),
        ("--quantization fp8 --speculative-draft-model-quantization unquant", "ok", "on: learned drafts replace"),
    ],
)
def test_the_doctor_says_what_a_quantisation_makes_of_the_draft(rig, flags, level, said):
    given = ["--model-path", str(rig.target), "--device", "cpu", "--speculative-algorithm", "EAGLE3", *flags.split()]
    given += ["--speculative-draft-model-path", str(rig.draft)]
    ended = run("doctor", "--json", "--", *given, PACELINE_REDIS_URL=rig.redis_url)
    found = {one["topic"]: (one["level"], one["sentence"]) for one in map(json.loads, ended.stdout.splitlines())}
    assert found["swap"][0] == level
    assert said in found["swap"][1]
    assert f"quantised, in {flags.split()[1]}: hidden states and verdicts are those of" in found["target"][1]


@pytest.mark.servers
def test_the_doctor_tells_flags_that_sglang_refuses_from_flags_that_were_not_given(rig):
    ended = run("doctor", "--", "--model-path", str(rig.target / "gone"), "--device", "cpu")
    assert ended.returncode == 1
    assert "wrong    flags     SGLang refuses these flags:" in ended.stdout
    ended = run("doctor", PACELINE_REDIS_URL=rig.redis_url)
    assert ended.returncode == 2, ended.stdout
    assert "unknown  capture   cannot tell without the server's flags" in ended.stdout


def started_as_a_user_does(rig, target, draft, log):
    """`paceline serve` with the algorithm and the draft, and no other flag of speculation; its port and its status."""
    speculation = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft)]
    return started(rig, target.name, ["--model-path", str(target), *speculation], log)


@contextmanager
def started(rig, name, flags, log):
    """`paceline serve` as the only replica of a speculator of its own; its port and its status."""
    port = free_port()
    flags = [*flags, "--device", "cpu", "--max-total-tokens", "1024", "--log-level", "warning"]
    env = {"PACELINE_REDIS_URL": rig.redis_url, "PACELINE_SPECULATOR": name, "PACELINE_REPLICA": name}
    with closing(connect(rig.redis_url)) as client, sglang_service(flags, port, log=log, env=env):
        board = RedisVersionBoard(client, BufferConfig(speculator=name))
        until(lambda: f"replica:{name}" in board.heartbeats(), "the replica's heartbeat")
        yield port, lambda: board.heartbeats()[f"replica:{name}"]


def generate(port):
    body = {"text": "import", "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}}
    return httpx.post(f"http://127.0.0.1:{port}/generate", json=body, timeout=60.0, trust_env=False).json()


@pytest.mark.servers
def test_a_server_without_speculation_serves_and_says_what_was_got_and_expected(rig, tmp_path):
    with started(rig, "plain", ["--model-path", str(rig.target)], tmp_path / "log") as (port, status):
        assert generate(port)["meta_info"]["completion_tokens"] == 8
        last = status()
    assert last.capture == "off"
    assert "got --speculative-algorithm None, expected EAGLE3, DFLASH, NGRAM, or NEXTN" in last.capture_reason


@pytest.mark.servers
def test_the_algorithm_and_the_draft_are_all_it_takes_where_sglang_chooses_a_chain(rig, tmp_path):
    target = tmp_path / "qwen3"
    draft = qwen3(rig.target, target)
    with started_as_a_user_does(rig, target, draft, tmp_path / "log") as (port, status):
        meta = generate(port)["meta_info"]
        until(lambda: status().account.delivered == 1, "the trace of the request")
        last = status()
    assert (last.capture, last.capture_reason, last.swap) == ("on", "", "on")
    assert last.account.rounds == meta["spec_verify_ct"] > 0


def qwen3(tokenizer_of, folder):
    """A random Qwen3 in the real format, with the tokenizer of another target, and a random draft of it beside."""
    entries = json.loads((tokenizer_of / "config.json").read_text())["vocab_size"]
    config = Qwen3Config(
        vocab_size=entries, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, dtype="float32",
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    for file in tokenizer_of.glob("tokenizer*"):
        shutil.copy(file, folder)
    return ensure_random_draft(folder, folder.with_name("draft"), seed=0)
