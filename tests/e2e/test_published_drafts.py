"""Drafts as others publish them, on the real server: it drafts as the learner replays, before a swap and after it."""

import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from learned_draft import register
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from paceline.buffer.drafts.single_file import draft_folder
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding, load_target_head, save_draft
from paceline.learner.model.eagle3 import Eagle3Config, Eagle3Draft
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from paceline.policies.acceptance import identity
from paceline.policies.verdict_words import sentence
from paceline.rig.models.target import ensure_random_draft
from safetensors.torch import load_file, save_file
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

REQUESTS = 24
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 1e4,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 128,
    "rope_theta": 1e4,
}  # fmt: skip


def hugging_face_id(draft: Path, folder: Path) -> str:
    """The name of a draft whose only copy is in a Hugging Face cache below `folder`."""
    home = folder / "hub" / "models--someone--eagle3"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    (home / "snapshots").mkdir()
    draft.rename(home / "snapshots" / COMMIT)
    return "someone/eagle3"


def shards(draft: Path, folder: Path) -> str:
    tensors = sorted(load_file(draft / WEIGHTS_FILE).items())
    (draft / WEIGHTS_FILE).unlink()
    listed = {}
    for i, part in enumerate((tensors[::2], tensors[1::2]), start=1):
        file = f"model-0000{i}-of-00002.safetensors"
        save_file(dict(part), draft / file)
        listed |= {name: file for name, _ in part}
    (draft / f"{WEIGHTS_FILE}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    return str(draft)


def pickled(draft: Path, folder: Path) -> str:
    torch.save(load_file(draft / WEIGHTS_FILE), draft / "pytorch_model.bin")
    (draft / WEIGHTS_FILE).unlink()
    return str(draft)


#: Name -> how the draft comes, and the settings that make its shape.
SHAPES: dict[str, tuple[Callable[[Path, Path], str], dict]] = {
    "EAGLE-3.1 by its Hugging Face id": (hugging_face_id, {"fc_norm": True, "norm_output": True}),
    "yarn and a norm before fc, in shards": (shards, {"rope_parameters": YARN, "norm_before_fc": True}),
    "llama3 and the target's head, pickled": (pickled, {"rope_parameters": LLAMA3, "draft_vocab_size": None}),
}


@dataclass(frozen=True)
class Served:
    """A running server, and how to read drafts of its target."""

    rig: object
    name: str  # of the draft it was started with
    found: Path  # where that is as one file
    load: Callable[[Path], Eagle3Draft]


def untrained(target: Path, folder: Path, settings: dict) -> Path:
    """A random draft of the target with these settings; every norm says something else, so that each one counts."""
    config_file = ensure_random_draft(target, folder / "plain", seed=0) / "config.json"
    (folder / "config.json").write_text(json.dumps(json.loads(config_file.read_text()) | settings))
    config, head = Eagle3Config.from_json(folder / "config.json"), load_target_head(target)
    ids = None if config.shares_head else torch.arange(config.vocab_size)
    torch.manual_seed(1)
    draft = Eagle3Draft(config, load_target_embedding(target), ids, head)
    plain = load_file(folder / "plain" / WEIGHTS_FILE)
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            parameter.copy_(plain[name] if name in plain else torch.rand_like(parameter) + 0.5)
    save_draft(draft, folder / "draft")
    return folder / "draft"


@contextmanager
def serving(models, start_rig, folder: Path, shape: str):
    target, (publish, settings) = models[0], SHAPES[shape]
    name = publish(untrained(target, folder, settings), folder)
    cache = {"PACELINE_CACHE_DIR": str(folder / "servers"), "HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
    # Room for all requests, and no cached prefix that other weights have drafted for.
    more = ["--max-total-tokens", "16384", "--disable-radix-cache"]
    found = draft_folder(name, folder / "learners", download_dir=folder / "hub")
    load = partial(load_draft, embedding=load_target_embedding(target), target_head=partial(load_target_head, target))
    with start_rig((target, Path(name)), folder, more, cache) as rig:
        yield Served(rig, name, found, load)


@pytest.fixture(scope="module", params=SHAPES)
def served(request, models, start_rig, tmp_path_factory):
    with serving(models, start_rig, tmp_path_factory.mktemp("shape"), request.param) as made:
        yield made


def traces_of(served, name):
    """Serve and return a trace each of so many requests."""
    jobs = [{"rid": f"{name}-{i}", "text": served.rig.texts[i][:160], "max_tokens": 48} for i in range(REQUESTS)]
    replies = served.rig.generate_all(jobs)
    assert served.rig.drained().swap_reason == ""
    found = {entry.trace.request_id: entry.trace for entry in served.rig.buffer.replay(10_000)}
    return [found[job["rid"]] for job in jobs], replies


def assert_replayed_as_served(draft, traces):
    runs = replay_traces(draft, traces, 3)
    pairs = [identity(trace, run) for trace, run in zip(traces, runs, strict=True)]
    assert sum(compared for _, compared in pairs) > 300
    assert [equal for equal, _ in pairs] == [compared for _, compared in pairs]


def test_what_is_served_is_replayed_learned_from_and_swapped(served, tmp_path):
    rig = served.rig
    initial = register(rig, served.found)
    rig.board.move(initial, VersionState.LIVE, "test", "served from the start")
    draft = served.load(served.found)
    traces, plain = traces_of(served, "first")
    assert_replayed_as_served(draft, traces)
    # Server and learner have made the same file of it, without having seen each other's.
    assert rig.status().loaded_sha256 == sha256_of(served.found / WEIGHTS_FILE)

    DraftTrainer(draft, TrainingPlan(steps=3, passes=4)).fit(traces, [])
    save_draft(draft, tmp_path / "learned")
    number = register(rig, tmp_path / "learned")
    rig.board.move(number, VersionState.LIVE, "test", "learned")
    until(lambda: rig.status().draft_version == number, "the swap")
    traces, replies = traces_of(served, "second")
    assert {trace.draft_version for trace in traces} == {number}
    assert [reply["output_ids"] for reply in replies] == [reply["output_ids"] for reply in plain]
    assert_replayed_as_served(served.load(tmp_path / "learned"), traces)
    assert sum(int(trace.rounds.accepted.sum()) for trace in traces) > 50

    rig.board.roll_back("operator:test", "back to the file of its publisher")
    until(lambda: rig.status().draft_version == initial, "the roll back")


def of_another_size(tensors):
    """As a draft of a target that is half as wide has them."""
    for name in ("fc.weight", "norm.weight"):
        tensors[name] = tensors[name][: len(tensors[name]) // 2].contiguous()


def of_another_target(tensors):
    """As a draft that was published with the embedding of the target it is for."""
    tensors["embed_tokens.weight"] = torch.zeros(8, 4)


def of_another_vocabulary(tensors):
    """As a draft with fewer tokens has them; where the target's head is shared, loading this one would overwrite it."""
    tensors["lm_head.weight"] = torch.zeros(1024, 256)


BAD = {
    of_another_size: "fc.weight: got shape (128, 768), expected (256, 768)",
    of_another_target: "embed_tokens.weight: belongs to the target",
    of_another_vocabulary: "lm_head.weight: ",
}


@pytest.mark.guarantee("weights-refused")
@pytest.mark.parametrize("spoil", BAD)
def test_a_draft_that_does_not_fit_is_refused_on_the_board_and_the_server_serves_on(served, tmp_path, spoil):
    rig, tensors = served.rig, load_file(served.found / WEIGHTS_FILE)
    spoil(tensors)
    (tmp_path / "bad").mkdir()
    save_file(tensors, tmp_path / "bad" / WEIGHTS_FILE)
    before = rig.generate(f"before-{spoil.__name__}", rig.texts[0][:160], max_tokens=24)
    live, number = rig.board.read().live, register(rig, tmp_path / "bad")
    rig.board.move(number, VersionState.LIVE, "test", spoil.__name__)
    until(lambda: rig.board.read().rows[number].state is VersionState.ROLLED_BACK, "the refusal")
    assert BAD[spoil] in sentence(rig.board.read().rows[number].why)
    assert rig.board.read().live == live
    after = rig.generate(f"after-{spoil.__name__}", rig.texts[0][:160], max_tokens=24)
    assert after["output_ids"] == before["output_ids"]
