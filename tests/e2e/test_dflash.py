"""A server that drafts whole blocks by SGLang's DFLASH: captured, replayed, learned from and swapped."""

import pytest
from learned_draft import register
from paceline.benchmarks.matrix.dflash import untrained_blocks
from paceline.buffer.board.counters import counters_of
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import weights_file
from paceline.buffer.stream.trace import VerdictRule
from paceline.learner.model.draft_io import save_draft
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from paceline.rig.models.target import DRAFT_LAYERS
from safetensors.torch import load_file
from served_drafts import (
    assert_learned_whatever_the_seed,
    assert_replayed_as_served,
    doctor,
    loader,
    published_by_a_learner,
    traces_of,
)
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

BLOCK = 6
STEPS = BLOCK - 1


@pytest.fixture(scope="module")
def draft(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "blocks"
    untrained_blocks(models[0], folder, seed=0, layer_ids=DRAFT_LAYERS, block=BLOCK)
    return folder


@pytest.fixture(scope="module")
def served(models, draft, start_rig, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dflash")
    # The last of a flag counts. Room for all requests, and no cached prefix that other weights have drafted for.
    more = ["--speculative-algorithm", "DFLASH", "--max-total-tokens", "16384", "--disable-radix-cache"]
    env = {"PACELINE_CACHE_DIR": str(folder / "servers")}
    with start_rig((models[0], draft), folder, more, env, chain=()) as rig:
        yield rig


@pytest.fixture(scope="module")
def load(models):
    return loader(models[0])


def assert_replayed(draft, traces):
    assert_replayed_as_served(draft, traces, STEPS, 150)


def test_what_a_block_drafts_is_replayed_learned_from_and_swapped(served, draft, load, tmp_path):
    initial = register(served, draft)
    served.board.move(initial, VersionState.LIVE, "test", "served from the start")
    traces, plain = traces_of(served, "first")
    penalised = traces_of(served, "penalised", repetition_penalty=1.3, frequency_penalty=0.2)[1]
    assert penalised != plain
    assert {trace.features.shape[1] for trace in traces} == {3 * 256}
    assert {trace.rounds.drafted.shape[1] for trace in traces} == {STEPS}
    assert [trace.tokens[trace.context_len :].tolist() for trace in traces] == plain
    assert_replayed(load(draft), traces)

    trainer = DraftTrainer(load(draft), TrainingPlan(steps=STEPS, passes=8))
    trainer.fit(traces, [])
    save_draft(trainer.draft, tmp_path / "learned")
    number = register(served, tmp_path / "learned")
    served.board.move(number, VersionState.LIVE, "test", "learned")
    until(lambda: served.status().draft_version == number, "the swap")
    traces, answers = traces_of(served, "second")
    assert {trace.draft_version for trace in traces} == {number}
    assert answers == plain
    assert traces_of(served, "penalised-again", repetition_penalty=1.3, frequency_penalty=0.2)[1] == penalised
    assert_replayed(load(tmp_path / "learned"), traces)
    assert sum(int(trace.rounds.accepted.sum()) for trace in traces) > 50

    sampled, _ = traces_of(served, "sampled", temperature=0.7)
    assert {trace.verdict_rule for trace in sampled} == {VerdictRule.TARGET_ONLY}
    assert_replayed(load(tmp_path / "learned"), sampled)

    served.board.roll_back("operator:test", "back to the first draft")
    until(lambda: served.status().draft_version == initial, "the roll back")


def test_what_is_learned_from_some_requests_has_more_accepted_of_others_whatever_the_seed(served, draft, load):
    assert_learned_whatever_the_seed(served, load, draft, STEPS)


def test_the_step_clock_counts_blocks_and_what_they_commit(served):
    jobs = [{"rid": f"counted-{i}", "text": served.texts[i][700:860], "max_tokens": 24} for i in range(8)]
    served.generate_all(jobs)

    def is_told_to_the_end():
        """Tokens are counted as they come, rounds and accepted drafts once a request has ended."""
        counted = counters_of(served.status().counters).scheduler
        tokens = sum(cell.tokens for cell in counted.steps)
        return counted.requests_ended >= 8 and counted.rounds <= tokens <= counted.rounds + counted.accepted

    until(is_told_to_the_end, "the tokens of blocks to be those of their rounds")
    said = served.status()
    assert (said.clock_reason, said.penalties_reason) == ("", "")
    assert said.server.speculation.num_steps == STEPS
    assert {cell.draft_steps for cell in counters_of(said.counters).scheduler.steps} == {STEPS}


def test_a_learner_publishes_a_block_draft_that_passed_the_gate(served, draft, tmp_path):
    past = served.buffer.claim("test", 10_000)  # what the other tests have learned from
    served.buffer.ack([entry.entry_id for entry in past], "learned")
    version = published_by_a_learner(served, draft, tmp_path)
    assert version.drafter == "dflash"
    assert load_file(weights_file(version.weights_uri)).keys() == load_file(draft / "model.safetensors").keys()
    until(lambda: served.status().draft_version == version.number, "the swap")


def test_the_doctor_says_what_happens_with_blocks(served, draft, tmp_path):
    given = ["--model-path", str(served.target), "--device", "cpu", "--speculative-algorithm", "DFLASH"]
    given += ["--speculative-draft-model-path", str(draft)]
    env = {"PACELINE_REDIS_URL": served.redis_url, "PACELINE_CACHE_DIR": str(tmp_path)}
    found = doctor(*given, **env)
    assert found["flags"] == ("ok", f"SGLang resolves them to DFLASH, steps {STEPS}, top-k 1, draft tokens {BLOCK}")
    assert found["capture"] == ("ok", "on, for 100% of requests")
    assert found["swap"][0] == found["replay"][0] == "ok"
    assert found["answers"][0] == "ok"
    assert found["pacing"] == ("note", f"off: every round drafts all it can, up to {STEPS} tokens (DFLASH)")
    assert "3096 bytes" in found["traffic"][1]  # three layers of 256 float32, and 24 bytes
    refused = doctor(*given, "--speculative-num-draft-tokens", "4", **env)
    assert f"got blocks of 4 (--speculative-num-draft-tokens), expected {BLOCK}" in refused["capture"][1]
