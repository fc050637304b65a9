"""The whole loop on the real parts: SGLang, Redis, a Celery worker and MLflow; the command line on top."""

import subprocess
import sys

import pytest
import torch
from mlflow import MlflowClient
from paceline.buffer.board.version import VersionState
from paceline.rig.models.target import greedy
from transformers import AutoModelForCausalLM, AutoTokenizer
from waiting import until

pytestmark = pytest.mark.e2e

ROUND, TOKENS = 24, 48


def cli(rig, *arguments):
    command = [sys.executable, "-m", "paceline.cli", *arguments, "--redis-url", rig.redis_url, "--speculator", "e2e"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def accept_length(replies):
    drafts = sum(reply["meta_info"]["spec_num_correct_drafts"] for reply in replies)
    return 1 + drafts / sum(reply["meta_info"]["spec_verify_ct"] for reply in replies)


def test_the_server_accepts_more_after_learning_from_its_own_traffic(learned):
    assert accept_length(learned.after) > accept_length(learned.replies[:ROUND]) + 0.15


@pytest.mark.guarantee("answers-unchanged")
def test_no_request_was_touched_by_learning_or_swaps(learned):
    replies = learned.replies + learned.after
    assert all(r["meta_info"]["finish_reason"]["type"] == "length" for r in replies)
    assert sum(r["meta_info"]["num_retractions"] for r in learned.replies) == 0


#: What clients ask of the logits, or of where an answer ends, that depends on what was answered before.
ASKED = [
    {"frequency_penalty": 0.8}, {"presence_penalty": 0.7}, {"repetition_penalty": 1.2},
    {"frequency_penalty": -0.1, "presence_penalty": 0.2, "repetition_penalty": 1.1, "min_new_tokens": 9},
    {"min_new_tokens": 20, "stop_token_ids": [*range(3, 300)], "ignore_eos": False},
    {"stop": [" the", "self", "e", "("]},
]  # fmt: skip


def without_speculation(model, tokenizer, text, asked):
    """The answer by the definition of each parameter, one token at a time."""
    stops = torch.tensor([tokenizer.eos_token_id, *asked.get("stop_token_ids", [])])

    def edit(logits, output):
        seen = torch.tensor(output, dtype=torch.int64)
        logits = logits - asked.get("frequency_penalty", 0.0) * seen.bincount(minlength=len(logits))
        logits[seen.unique()] -= asked.get("presence_penalty", 0.0)
        if len(output) < asked.get("min_new_tokens", 0):
            logits[stops] = -torch.inf
        scale = torch.ones_like(logits).index_fill_(0, seen, asked.get("repetition_penalty", 1.0))
        return torch.where(logits < 0, logits * scale, logits / scale)

    output = greedy(model, tokenizer(text, add_special_tokens=False).input_ids, TOKENS, edit)
    for end in range(1, TOKENS):
        is_stopped = any(stop in tokenizer.decode(output[:end]) for stop in asked.get("stop", []))
        if is_stopped or ("stop_token_ids" in asked and output[end - 1] in stops):
            return list(output[:end])
    return list(output)


@pytest.mark.guarantee("answers-by-token")
def test_what_depends_on_earlier_tokens_depends_on_no_draft(rig, learned):
    model = AutoModelForCausalLM.from_pretrained(rig.target, dtype=torch.float32).eval()
    tokenizer, texts = AutoTokenizer.from_pretrained(rig.target), [text[:160] for text in rig.texts[:3]]
    jobs = [
        {"rid": f"asked-{i}-{j}", "text": text, "max_tokens": TOKENS, **asked}
        for i, text in enumerate(texts)
        for j, asked in enumerate(ASKED)
    ]
    replies = rig.generate_all(jobs)
    went_on = [reply for reply in replies if reply["meta_info"].get("spec_verify_ct")]
    assert accept_length(went_on) > 1.1  # else nothing was drafted that could be counted wrongly
    expected = [without_speculation(model, tokenizer, text, asked) for text in texts for asked in ASKED]
    assert [reply["output_ids"] for reply in replies] == expected


def test_every_delivered_trace_is_learned_held_out_or_pending(rig, learned):
    rig.drained()
    counts = rig.buffer.counts()
    assert counts.delivered == sum(counts.acked.values()) + counts.pending
    assert counts.acked["learned"] > 0
    assert counts.acked["held_out"] > 0
    assert set(counts.acked) <= {"learned", "held_out"}


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")  # MLflow's own query
def test_a_live_version_is_a_registered_model_with_its_lineage(rig, learned):
    client = MlflowClient(f"sqlite:///{learned.folder / 'mlflow.db'}")
    (model,) = client.search_registered_models()
    state = rig.board.read()
    live = client.get_model_version_by_alias(model.name, "live")
    assert live.tags["paceline.version"] == str(state.live)
    run = client.get_run(live.run_id)
    assert run.data.params["objective"] == "soft"
    assert run.data.metrics["gate/judged_accept_length"] > run.data.metrics["gate/reference_accept_length"]
    steps = client.get_metric_history(live.run_id, "fit/loss")
    assert len(steps) > 10


def test_the_learner_replays_what_was_served_by_every_version(learned):
    status = learned.status
    assert status.life.identity_compared > 100
    assert status.life.identity_equal >= 0.999 * status.life.identity_compared


def test_the_command_line_lists_promotes_and_rolls_back(rig, learned):
    listed = cli(rig, "versions")
    assert listed.returncode == 0
    live = rig.board.read().live
    assert "live" in listed.stdout
    assert cli(rig, "promote", "0", "--why", "to compare").returncode == 0
    until(lambda: rig.status().draft_version == 0, "the promotion")
    assert cli(rig, "rollback").returncode == 0
    until(lambda: rig.status().draft_version == live, "the roll back")
    assert rig.board.read().rows[0].state is VersionState.ROLLED_BACK


def test_promoting_a_number_nobody_knows_is_an_error(rig, learned):
    failed = cli(rig, "promote", "999")
    assert failed.returncode == 1
    assert "version 999: got a number that is not on the board, expected one of [0, " in failed.stderr
