"""Swaps in the real server: good weights draft at once and change no output, bad ones are refused with the reason."""

import hashlib
import shutil
import threading
from pathlib import Path

import httpx
import pytest
import torch
from made_versions import made_version
from paceline.buffer.board.version import VersionState
from paceline.policies.verdict_words import sentence
from safetensors.torch import load_file, save_file
from waiting import until

pytestmark = pytest.mark.e2e

PROMPTS = 4


@pytest.fixture(scope="module")
def plain(rig):
    """What the server answers before anything was swapped."""
    jobs = [{"rid": f"plain-{i}", "text": rig.texts[i][:160], "max_tokens": 64} for i in range(PROMPTS)]
    return [reply["output_ids"] for reply in rig.generate_all(jobs)]


def publish(rig, name, change=lambda tensors: None, damage=lambda file: None):
    """Register a copy of the served draft with `change` made before its digest is taken and `damage` after."""
    folder = rig.folder / name
    shutil.copytree(rig.draft, folder, dirs_exist_ok=True)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    if tensors:
        save_file(tensors, file)
    else:
        torch.save({"fc.weight": torch.ones(2)}, file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    damage(file)
    number = rig.board.next_number()
    version = made_version(number, weights_uri=folder.as_uri(), sha256=digest, target="e2e-target", target_version="0")
    rig.board.register(version, "test", name)
    return number


@pytest.fixture(scope="module")
def initial(rig):
    """Version 0: the draft the server was started with."""
    number = publish(rig, "initial")
    rig.board.move(number, VersionState.LIVE, "test", "served from the start")
    return number


def drafting(rig):
    return rig.status().draft_version


def shuffled(tensors):
    tensors["lm_head.weight"] = tensors["lm_head.weight"].roll(1, 0).contiguous()


def test_a_swap_under_load_touches_no_request_and_every_trace_names_its_draft(rig, initial, plain):
    assert initial == 0
    jobs = [{"rid": f"during-{i}", "text": rig.texts[i % PROMPTS][:160], "max_tokens": 64} for i in range(16)]
    number = publish(rig, "other-head", shuffled)
    moved = threading.Timer(0.5, lambda: rig.board.move(number, VersionState.LIVE, "test", "other head"))
    moved.start()
    replies = rig.generate_all(jobs, concurrency=PROMPTS)
    moved.join()
    until(lambda: drafting(rig) == number, "the swap")
    assert [reply["output_ids"] for reply in replies] == plain * 4
    assert all(reply["meta_info"]["num_retractions"] == 0 for reply in replies)
    assert all(reply["meta_info"]["finish_reason"]["type"] == "length" for reply in replies)
    rig.generate("after-swap", rig.texts[0][:150])
    status = rig.drained()
    assert {trace.draft_version for trace in rig.traces_of("after-swap")} == {number}
    (swap,) = status.swaps
    assert (swap.number, swap.before) == (number, initial)
    assert swap.asked_at < swap.at
    assert min(swap.rounds_before, swap.rounds_after) > 0
    assert min(swap.accept_length_before, swap.accept_length_after) >= 1.0
    for reply in replies:
        traces = rig.traces_of(reply["meta_info"]["id"])
        committed = [token for trace in traces for token in trace.tokens[trace.context_len :].tolist()]
        assert committed == reply["output_ids"]


def test_a_roll_back_returns_to_the_draft_before(rig, initial):
    rig.board.roll_back("operator:test", "worse")
    until(lambda: drafting(rig) == initial, "the roll back")
    assert rig.board.read().live == initial


def occupation(rig, act):
    """Have SGLang release its memory, or take it again."""
    url = f"http://127.0.0.1:{rig.port}/{act}_memory_occupation"
    httpx.post(url, json={}, timeout=60.0, trust_env=False).raise_for_status()


def test_a_swap_waits_while_sglang_has_released_its_memory_and_is_done_after_it_resumed(rig, initial, plain):
    occupation(rig, "release")
    number = publish(rig, "while-released", shuffled)
    rig.board.move(number, VersionState.LIVE, "test", "while released")
    until(lambda: "released" in rig.status().swap_reason, "the swap to wait")
    waiting = rig.status()
    assert waiting.swap == "on"
    assert waiting.swap_reason == (
        "SGLang has released cuda_graph, kv_cache, weights; the swap follows resume_memory_occupation"
    )
    assert drafting(rig) == initial
    occupation(rig, "resume")
    until(lambda: drafting(rig) == number, "the swap")
    until(lambda: rig.status().swap_reason == "", "the reason to go")
    assert rig.generate("after-resume", rig.texts[0][:160], max_tokens=64)["output_ids"] == plain[0]
    rig.board.roll_back("operator:test", "enough of it")
    until(lambda: drafting(rig) == initial, "the roll back")


def nan(tensors):
    tensors["norm.weight"][3] = float("nan")


def honest_pickle(tensors):
    tensors.clear()  # what is written instead is a pickle, with a digest that fits


def truncated(file: Path):
    file.write_bytes(file.read_bytes()[:-100])


#: One that its tensors betray, one that is no safetensors file, one whose digest does; test_staging.py has the others.
BAD = {
    "nan": (nan, None, "norm.weight: holds values that are not finite"),
    "honest-pickle": (honest_pickle, None, "not a readable safetensors file"),
    "truncated": (None, truncated, "the file was changed"),
}


@pytest.mark.guarantee("weights-refused")
@pytest.mark.parametrize("name", BAD)
def test_bad_weights_are_refused_with_the_reason_on_the_board_and_the_server_goes_on(rig, initial, plain, name):
    change, damage, reason = BAD[name]
    number = publish(rig, name, change or (lambda _: None), damage or (lambda _: None))
    rig.board.move(number, VersionState.LIVE, "test", name)
    until(lambda: rig.board.read().rows[number].state is VersionState.ROLLED_BACK, "the refusal")
    row = rig.board.read().rows[number]
    assert reason in sentence(row.why)
    assert rig.board.read().live == initial
    reply = rig.generate(f"alive-{name}", rig.texts[0][:160], max_tokens=64)
    assert reply["output_ids"] == plain[0]
    assert drafting(rig) == initial
