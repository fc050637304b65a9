"""Servers whose requests are spread over ranks: each rank captures its own, and all draft with the same version."""

import pytest
from learned_draft import register
from paceline.benchmarks.matrix.models import random_target, untrained_draft
from paceline.benchmarks.matrix.rows import GLM, HEAD
from paceline.buffer.board.version import VersionState
from paceline.buffer.drafts.single_file import draft_folder
from paceline.learner.model.draft_io import save_draft
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from paceline.rig.reader import drain_check
from served_drafts import REQUESTS, assert_replayed_as_served, loader
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

STEPS = 3
RANKS = ("e2e-0", "e2e-0-dp1")
SERVERS = ["--dp-size", "2"]
ATTENTION = ["--tp-size", "2", "--attn-dp-size", "2"]
LAYER = ["--speculative-algorithm", "NEXTN"]
#: Family of the target, flags, and what `swap` says of each rank. SGLang's Llama looks embeddings up on all ranks
#: together, so with data-parallel attention it does not serve.
CASES = {
    "servers": ("Qwen3", SERVERS, ["on", "on"]),
    "attention": ("Qwen3", ATTENTION, ["on", "follows"]),
    "attention, experts, its own layer": (GLM, [*ATTENTION, *LAYER], ["on", "follows"]),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def served(request, models, start_rig, tmp_path_factory):
    """The rig, and its draft as one file."""
    family, flags, swap = request.param
    folder = tmp_path_factory.mktemp("dp")
    target = random_target(family, models[0], folder / "target")
    is_own = family == GLM
    draft = draft_folder(target, folder / "layers") if is_own else untrained_draft(HEAD, target, folder / "draft")
    # Room for all requests, and no cached prefix that other weights have drafted for. The last of a flag counts.
    more = [*flags, "--max-total-tokens", "16384", "--disable-radix-cache"]
    env = {"PACELINE_CACHE_DIR": str(folder / "servers")}
    with start_rig((target, target if is_own else draft), folder, more, env) as rig:
        until(lambda: [said.capture for said in statuses(rig)] == ["on", "on"], "both ranks to capture")
        assert [said.swap for said in statuses(rig)] == swap
        yield rig, draft


def statuses(rig):
    """Of every rank that has beaten."""
    heartbeats = rig.board.heartbeats()
    return [heartbeats[f"replica:{name}"] for name in RANKS if f"replica:{name}" in heartbeats]


def traces_of(rig, name):
    """Serve REQUESTS requests; return a trace of each, and the answers."""
    jobs = [{"rid": f"{name}-{i}", "text": text[:160], "max_tokens": 48} for i, text in enumerate(rig.texts[:REQUESTS])]
    replies = rig.generate_all(jobs)
    for number, rank in enumerate(RANKS):
        until(drain_check(lambda number=number: statuses(rig)[number]), f"{rank} to deliver its traces")
    found = {entry.trace.request_id: entry.trace for entry in rig.buffer.replay(10_000)}
    return [found[job["rid"]] for job in jobs], [reply["output_ids"] for reply in replies]


def test_every_rank_captures_its_own_requests_and_all_swap_together(served, tmp_path):
    rig, draft = served
    load = loader(rig.target)
    initial = register(rig, draft)
    rig.board.move(initial, VersionState.LIVE, "test", "served from the start")
    traces, plain = traces_of(rig, "first")
    assert [trace.tokens[trace.context_len :].tolist() for trace in traces] == plain
    assert_replayed_as_served(load(draft), traces, STEPS, 300)
    counts = [said.account for said in statuses(rig)]
    assert min(count.captured for count in counts) > 0
    assert sum(count.captured for count in counts) == REQUESTS
    assert [(count.delivered, count.dropped) for count in counts] == [(count.captured, {}) for count in counts]

    trainer = DraftTrainer(load(draft), TrainingPlan(steps=STEPS, passes=8))
    trainer.fit(traces, [])
    save_draft(trainer.draft, tmp_path / "learned")
    number = register(rig, tmp_path / "learned")
    rig.board.move(number, VersionState.LIVE, "test", "learned")
    until(lambda: [said.draft_version for said in statuses(rig)] == [number, number], "the swap of both ranks")
    until(lambda: len({said.loaded_sha256 for said in statuses(rig)} - {""}) == 1, "both ranks to hold one draft")
    assert [[(swap.number, swap.before) for swap in said.swaps] for said in statuses(rig)] == [[(number, initial)]] * 2
    traces, answers = traces_of(rig, "second")
    assert answers == plain
    assert {trace.draft_version for trace in traces} == {number}
    assert_replayed_as_served(load(tmp_path / "learned"), traces, STEPS, 100)
    assert sum(int(trace.rounds.accepted.sum()) for trace in traces) > 50
    assert [(said.clock_reason, said.penalties_reason) for said in statuses(rig)] == [("", "")] * 2
