"""A server that drafts from a table of n-grams by SGLang's NGRAM: captured like any other, and a first draft learned.

At one branch per match, and at SGLang's default of ten. Places for which the table has no draft are filled with token
0, which capture keeps as a draft only where the target agrees.
"""

import httpx
import pytest
import torch
from learned_draft import register
from paceline.benchmarks.measure.answers import flush_cache
from paceline.buffer.board.counters import MODEL_FREE, counters_of
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import weights_file
from paceline.buffer.stream.trace import NO_DRAFT, VerdictRule
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.learner.model.target_features import TargetFeatures
from paceline.policies.acceptance import replayed_rounds
from paceline.rig.readiness import free_port
from paceline.rig.services import sglang_service
from served_drafts import doctor, published_by_a_learner, traces_of
from transformers import AutoTokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

REQUESTS, TOKENS, DRAFTS, STEPS, PART = 12, 64, 11, 3, 512
BREADTHS = {"one branch": ("--speculative-ngram-max-bfs-breadth", "1"), "default": ()}
ALGORITHM = ("--speculative-algorithm", "NGRAM")
ROOM = ["--max-total-tokens", "16384"]
REASON = "the server drafts without a model (NGRAM), so there is no draft to swap"


@pytest.fixture(scope="module", params=BREADTHS)
def served(request, models, start_rig, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngram")
    with start_rig((models[0], None), folder, ROOM, {}, chain=(*ALGORITHM, *BREADTHS[request.param])) as rig:
        yield rig


def jobs(rig, name, **more):
    return [{"rid": f"{name}-{i}", "text": rig.texts[i][:200], "max_tokens": TOKENS, **more} for i in range(REQUESTS)]


def test_traces_hold_what_was_drafted_and_answered_and_all_is_accounted_for(served):
    labelled = {"custom_params": {"paceline_label": "code"}}
    asked = jobs(served, "greedy", **labelled) + jobs(served, "again", **labelled)
    replies = served.generate_all(asked)
    served.generate_all(jobs(served, "private", custom_params={"paceline_opt_out": True})[:3])
    status = served.drained()
    found = {entry.trace.request_id: entry.trace for entry in served.buffer.replay(10_000)}
    assert found.keys() == {job["rid"] for job in asked}
    tokenizer = AutoTokenizer.from_pretrained(served.target)
    accepted = undrafted = rejected = rounds = 0
    for job, reply in zip(asked, replies, strict=True):
        trace, meta = found[job["rid"]], reply["meta_info"]
        whole = [*tokenizer(job["text"], add_special_tokens=False).input_ids, *reply["output_ids"]]
        assert [*trace.prefix.tolist(), *trace.tokens.tolist()] == whole
        assert (len(trace.rounds), int(trace.rounds.accepted.sum())) == (
            meta["spec_verify_ct"],
            meta["spec_num_correct_drafts"],
        )
        assert (trace.draft_version, trace.label, trace.verdict_rule) == (MODEL_FREE, "code", VerdictRule.GREEDY)
        assert (len(trace.features), trace.has_whole_prefix, trace.replay_exact) == (0, True, False)
        proposed = (trace.rounds.drafted != NO_DRAFT).sum(axis=1)
        assert set(proposed - trace.rounds.accepted) <= {0, 1}
        accepted += int(trace.rounds.accepted.sum())
        rejected += int((proposed > trace.rounds.accepted).sum())
        undrafted += int((proposed == 0).sum())
        rounds += len(trace.rounds)
    assert min(accepted, rejected, undrafted) > 20
    assert (status.traces.captured, status.traces.delivered, status.traces.dropped) == (len(asked), len(asked), {})
    assert status.skipped["opted_out"] == 3
    cells = counters_of(status.counters).served.cells
    assert [(cell.draft, cell.label, cell.rounds, cell.accepted) for cell in cells] == [
        (MODEL_FREE, "code", rounds, accepted)
    ]


def test_its_status_says_that_there_is_no_draft_and_nothing_is_wrong(served):
    status = served.drained()
    assert (status.capture, status.capture_reason, status.has_draft, status.draft_version) == ("on", "", False, None)
    assert (status.swap, status.swap_reason, status.canary_window_s) == ("off", REASON, 0.0)
    assert (status.clock_reason, status.penalties_reason, status.alarms, status.standing_alarms) == ("", "", [], [])
    assert min(status.engine_rounds, status.captured_rounds) > 0
    assert status.server.speculation.num_steps == DRAFTS
    assert {cell.draft_steps for cell in counters_of(status.counters).scheduler.steps} == {DRAFTS}


def test_sampled_and_penalised_requests_are_captured_too(served):
    for name, sampling in (("sampled", {"temperature": 0.7}), ("penalised", {"repetition_penalty": 1.2})):
        traces, answers = traces_of(served, name, **sampling)
        assert [trace.tokens[trace.context_len :].tolist() for trace in traces] == answers
        rule = VerdictRule.TARGET_ONLY if name == "sampled" else VerdictRule.GREEDY
        assert {trace.verdict_rule for trace in traces} == {rule}


@pytest.mark.parametrize("served", ["default"], indirect=True)
def test_answers_are_those_without_paceline(served, tmp_path):
    here = [reply["output_ids"] for reply in served.generate_all(jobs(served, "beside"))]
    given = ["--model-path", str(served.target), "--device", "cpu", "--log-level", "warning", *ALGORITHM, *ROOM]
    params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": TOKENS}
    asked = {"text": [job["text"] for job in jobs(served, "beside")], "sampling_params": params}
    env = {"PACELINE_REDIS_URL": "", "OMP_NUM_THREADS": "1"}
    with sglang_service(given, port := free_port(), log=tmp_path / "sglang.log", env=env) as bare:
        found = httpx.post(f"http://127.0.0.1:{port}/generate", json=asked, timeout=300.0, trust_env=False)
        bare.kill()
    assert [reply["output_ids"] for reply in found.json()] == here


@pytest.mark.parametrize("served", ["default"], indirect=True)
def test_a_first_draft_is_learned_from_it_and_replay_says_what_it_then_serves(served, models, start_rig, tmp_path):
    target, untrained = models
    past = served.buffer.claim("test", 10_000)  # what the other tests have served
    served.buffer.ack([entry.entry_id for entry in past], "learned")
    served.board.move(register(served, untrained), VersionState.LIVE, "test", "what a server with a draft starts with")
    version = published_by_a_learner(served, untrained, tmp_path, PACELINE_RECOMPUTE_TOKENS=str(PART))
    folder = weights_file(version.weights_uri).parent
    flush_cache(f"http://127.0.0.1:{served.port}")
    traces, answers = traces_of(served, "judged", start=1000)
    draft = load_draft(folder, load_target_embedding(target))
    features = TargetFeatures(target, draft.config, torch.device("cpu"), PART)
    filled = [features.read(trace).trace for trace in traces]
    with start_rig((target, folder), tmp_path, [*ROOM, "--disable-radix-cache"], {}) as rig:
        beside, same = traces_of(rig, "judged", start=1000)
    assert same == answers
    found = map(replayed_rounds, filled, replay_traces(draft, filled, STEPS))
    # Of what a server had cached of a prompt, the draft of a trace sees nothing.
    pairs = [(run, there) for run, trace, there in zip(found, traces, beside, strict=True) if not trace.offset]
    assert len(pairs) >= 8
    assert sum(int(rounds.sum()) for rounds, _ in pairs) > 50
    for rounds, trace in pairs:
        assert rounds.tolist() == trace.visible_accepted()[: len(rounds)].tolist()


@pytest.mark.parametrize("served", ["default"], indirect=True)
def test_the_doctor_says_what_happens_without_a_draft(served, tmp_path):
    given = ["--model-path", str(served.target), "--device", "cpu", *ALGORITHM]
    found = doctor(*given, PACELINE_REDIS_URL=served.redis_url, PACELINE_CACHE_DIR=str(tmp_path))
    shape = f"steps {DRAFTS}, top-k 10, draft tokens {DRAFTS + 1}"
    assert found["flags"] == ("ok", f"SGLang resolves them to NGRAM, {shape}")
    assert found["capture"][0] == "ok"
    assert found["capture"][1].startswith("on, without hidden states")
    assert found["swap"] == ("note", "off: NGRAM drafts without a model, so there is no draft to replace")
    assert found["replay"][0] == "note"
    assert found["pacing"] == ("note", f"off: every round drafts all it can, up to {DRAFTS} tokens (NGRAM)")
    assert found["traffic"][1].startswith("a token takes about 24 bytes")
