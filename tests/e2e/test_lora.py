"""LoRA adapters on the real server: captured under their names, replayed, and one draft learns from all of them."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest
import torch
from learned_draft import register
from paceline.buffer.board.counters import counters_of
from paceline.buffer.board.version import VersionState
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding, save_draft
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from paceline.policies.acceptance import Tally, identity, replayed_tally
from safetensors.torch import save_file
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

ADAPTERS = ("poet", "clerk")
SERVED_BY = (None, *ADAPTERS)
REQUESTS, RANK = 24, 8
log = logging.getLogger(__name__)


def write_adapter(folder, target, seed):
    """A random adapter of the target's queries and values, strong enough for answers of its own."""
    config = json.loads((target / "config.json").read_text())
    generator = torch.Generator().manual_seed(seed)
    heads = {"q_proj": config["num_attention_heads"], "v_proj": config["num_key_value_heads"]}
    width = config["hidden_size"]
    head_dim = width // config["num_attention_heads"]
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, count in heads.items():
            begin = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{begin}.lora_A.weight"] = torch.randn(RANK, width, generator=generator) / width**0.5
            tensors[f"{begin}.lora_B.weight"] = torch.randn(count * head_dim, RANK, generator=generator) / 4
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": list(heads), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def served(models, start_rig, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    for seed, name in enumerate(ADAPTERS):
        write_adapter(folder / name, models[0], seed)
    more = ["--enable-lora", "--lora-backend", "torch_native", "--max-total-tokens", "16384", "--disable-radix-cache"]
    more += ["--lora-paths", *(f"{name}={folder / name}" for name in ADAPTERS)]
    with start_rig(models, folder, more, {}) as rig:
        yield rig


def asked(rig, job):
    """The tokens that a request is answered with."""
    rid, text, adapter = job
    params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": 48}
    body = {"rid": rid, "text": text, "lora_path": adapter, "sampling_params": params}
    reply = httpx.post(f"http://127.0.0.1:{rig.port}/generate", json=body, timeout=300.0, trust_env=False)
    return reply.json()["output_ids"]


def traces_of(rig, name, start):
    """A trace of each of so many requests, the same prompts for every adapter in turn, and the answers."""
    jobs = [(f"{name}-{i}", rig.texts[i // 3][start:][:160], SERVED_BY[i % 3]) for i in range(REQUESTS)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(partial(asked, rig), jobs))
    rig.drained()
    found = {entry.trace.request_id: entry.trace for entry in rig.buffer.replay(10_000)}
    return [found[rid] for rid, _, _ in jobs], answers


def assert_replayed_as_served(draft, traces):
    runs = replay_traces(draft, traces, 3)
    pairs = [identity(trace, run) for trace, run in zip(traces, runs, strict=True)]
    assert sum(compared for _, compared in pairs) > 300
    assert [equal for equal, _ in pairs] == [compared for _, compared in pairs]


def lengths_of(draft, traces):
    """Accept length of the requests of each adapter."""
    tallies = list(map(replayed_tally, traces, replay_traces(draft, traces, 3)))
    return [sum(tallies[at::3], Tally()).accept_length for at in range(3)]


def labels_counted(rig):
    """Labels that the replica counts rounds of."""
    counters = counters_of(rig.status().counters)
    return {cell.label for cell in counters.served.cells} if counters and counters.served else set()


def test_one_draft_learns_from_all_adapters_and_is_replayed_as_it_served(served, tmp_path):
    load = partial(load_draft, embedding=load_target_embedding(served.target))
    initial = register(served, served.draft)
    served.board.move(initial, VersionState.LIVE, "test", "served from the start")
    parts = [traces_of(served, f"learn-{part}", 160 * part) for part in range(3)]
    learn = [trace for traces, _ in parts for trace in traces]
    for traces, answers in parts:
        assert [trace.tokens[trace.context_len :].tolist() for trace in traces] == answers
        assert answers[0] != answers[1] != answers[2] != answers[0]  # one prompt, three targets
    assert [(trace.label, trace.tenant) for trace in learn[:3]] == [("", ""), ("poet", "poet"), ("clerk", "clerk")]
    assert_replayed_as_served(load(served.draft), learn)

    trainer = DraftTrainer(load(served.draft), TrainingPlan(steps=3, passes=4))
    trainer.fit(learn, [])
    save_draft(trainer.draft, tmp_path / "learned")
    number = register(served, tmp_path / "learned")
    served.board.move(number, VersionState.LIVE, "test", "learned")
    until(lambda: served.status().draft_version == number, "the swap")
    traces, _ = traces_of(served, "after", 480)
    assert {trace.draft_version for trace in traces} == {number}
    assert_replayed_as_served(load(tmp_path / "learned"), traces)
    before = lengths_of(load(served.draft), traces)
    after = lengths_of(load(tmp_path / "learned"), traces)
    log.info("accept length without an adapter and with each: %s, learned %s", before, after)
    assert all(new > old + 0.2 for old, new in zip(before, after, strict=True))
    until(lambda: {"", *ADAPTERS} <= labels_counted(served), "counts by adapter")
