"""Features that a learner recomputes, beside those that the real server captured for the same requests."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from learned_draft import swap_in_learned
from paceline.buffer.stream.feature_rows import FeatureDtype
from paceline.buffer.stream.trace_codec import encode_trace
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.learner.model.target_features import TargetFeatures
from paceline.policies.acceptance import identity
from paceline.rig.services import learner_service
from transformers import AutoModelForCausalLM, AutoTokenizer
from waiting import until

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.e2e, pytest.mark.servers]

#: Small windows, so that requests are cut.
WINDOW = 96
#: Less than some requests have, so that the target reads them in parts.
PART = 50
ROOM = ["--max-total-tokens", "8192"]
#: In float32: the server's forwards add up in other orders than one forward over the whole request.
ROUNDING = 2e-3


@pytest.fixture(scope="module")
def full(start_rig, models, tmp_path_factory):
    """A server that captures features, in windows that hold whole requests."""
    more = [*ROOM, "--disable-radix-cache"]  # every request is read whole, so that replay of each is exact
    with start_rig(models, tmp_path_factory.mktemp("full"), more, {}) as made:
        yield made


@pytest.fixture(scope="module")
def lean(start_rig, models, tmp_path_factory):
    """A server that captures tokens alone, in small windows."""
    env = {"PACELINE_CAPTURE_FEATURES": "0", "PACELINE_TRACE_TOKENS": str(WINDOW)}
    with start_rig(models, tmp_path_factory.mktemp("lean"), ROOM, env) as made:
        yield made


@pytest.fixture(scope="module", params=["int8", "fp8"])
def quantising(request, start_rig, models, tmp_path_factory):
    """A server that sends one byte per value, in windows that hold whole requests; and the kind of its rows."""
    env, more = {"PACELINE_FEATURE_FORMAT": request.param}, [*ROOM, "--disable-radix-cache"]
    with start_rig(models, tmp_path_factory.mktemp(request.param), more, env) as made:
        yield made, {"int8": FeatureDtype.INT8, "fp8": FeatureDtype.E4M3}[request.param]


def jobs(rig, label):
    """Requests that fit a window, the same again from the radix cache, long prompts and long answers."""
    texts = [rig.texts[i][200 * i : 200 * i + 150 + 20 * i] for i in range(8)]
    fresh = [{"rid": f"{label}-fresh-{i}", "text": text, "max_tokens": 48} for i, text in enumerate(texts)]
    again = [{**job, "rid": f"{label}-again-{i}"} for i, job in enumerate(fresh)]
    long = [{"rid": f"{label}-long-{i}", "text": rig.texts[i][:900], "max_tokens": 160} for i in range(4)]
    return [fresh, again, long]


def served_by(rig, label):
    """The jobs of a label, their answers by request id, and their traces."""
    asked = [job for wave in jobs(rig, label) for job in wave]
    replies = [reply for wave in jobs(rig, label) for reply in rig.generate_all(wave, concurrency=4)]
    rig.drained()
    answers = {reply["meta_info"]["id"]: reply["output_ids"] for reply in replies}
    traces = [entry.trace for entry in rig.buffer.replay(10_000) if entry.trace.request_id in answers]
    return {job["rid"]: job["text"] for job in asked}, answers, traces


@pytest.fixture(scope="module")
def learned(full):
    """A draft that has learnt what the first server served, so that drafts of every length are accepted."""
    _, _, traces = served_by(full, "random")
    return swap_in_learned(full, traces)


@pytest.fixture(scope="module")
def captured(full, learned):
    return served_by(full, "learned")


@pytest.fixture(scope="module")
def served_lean(lean):
    return served_by(lean, "lean")


@pytest.fixture(scope="module")
def source(full, learned):
    draft = load_draft(learned, load_target_embedding(full.target))
    return TargetFeatures(full.target, draft.config, torch.device("cpu"), PART)


def without_features(trace):
    return replace(trace, features=np.zeros((0, 0), np.float32), replay_exact=False)


def test_recomputed_features_replay_every_served_round_as_captured_ones_do(full, learned, captured, source):
    exact = [trace for trace in captured[2] if trace.replay_exact]
    assert len(exact) >= 8
    again = [source.read(without_features(trace)).trace for trace in exact]
    apart = [
        np.abs(there.features - here.features[: len(there.features)]).max()
        for there, here in zip(exact, again, strict=True)
    ]
    assert 0.0 < max(apart) < ROUNDING
    draft = load_draft(learned, load_target_embedding(full.target))
    found = {}
    for name, traces in (("captured", exact), ("recomputed", again)):
        runs = replay_traces(draft, traces, full.steps)
        # What the server says of the captured ones is asked of the others, of which it is not claimed.
        pairs = [identity(replace(t, replay_exact=True), run) for t, run in zip(traces, runs, strict=True)]
        found[name] = tuple(map(sum, zip(*pairs, strict=True)))
    accepted = sum(int(trace.rounds.accepted.sum()) for trace in exact)
    log.info("%d traces, %d drafts accepted, furthest feature %.2g, rounds %s", len(exact), accepted, max(apart), found)
    assert found["captured"] == found["recomputed"]
    assert found["recomputed"][0] == found["recomputed"][1] > 200
    assert accepted > 50


def test_a_trace_has_all_that_the_target_had_read_however_it_was_cut(lean, served_lean, source):
    texts, answers, traces = served_lean
    tokenizer = AutoTokenizer.from_pretrained(lean.target)
    model = AutoModelForCausalLM.from_pretrained(lean.target, dtype=torch.float32).eval()
    whole = {rid: [*tokenizer(text, add_special_tokens=False).input_ids, *answers[rid]] for rid, text in texts.items()}
    assert {trace.request_id for trace in traces} == answers.keys()
    for trace in traces:
        read = [*trace.prefix.tolist(), *trace.tokens.tolist()]
        assert read == whole[trace.request_id][: len(read)]
        assert (trace.has_whole_prefix, len(trace.features), trace.replay_exact) == (True, 0, False)
        with torch.no_grad():
            states = model(torch.tensor([read]), output_hidden_states=True).hidden_states
        wanted = torch.cat([states[layer + 1] for layer in (0, 1, 2)], dim=-1)[0, trace.offset :].numpy()
        assert np.abs(source.read(trace).trace.features - wanted).max() < ROUNDING
    kinds = {kind: [t for t in traces if f"-{kind}-" in t.request_id and t.offset] for kind in ("again", "long")}
    assert min(map(len, kinds.values())) >= 4
    assert any(len(trace.prefix) > PART for trace in kinds["long"])


def test_rows_of_one_byte_per_value_are_near_those_as_captured(captured, quantising):
    server, kind = quantising
    _, answers, traces = served_by(server, str(kind))
    whole = {trace.request_id.partition("-")[2]: trace for trace in captured[2]}
    assert {trace.request_id for trace in traces} == answers.keys()
    furthest = 0.0
    for trace in traces:
        twin = whole[trace.request_id.partition("-")[2]]
        rows = min(len(trace.features), len(twin.features))
        assert trace.tokens.tolist() == twin.tokens.tolist()
        assert (trace.feature_dtype, trace.replay_exact, rows > len(trace.tokens) - 8) == (kind, False, True)
        wanted = twin.features[:rows]
        off = np.abs(trace.feature_numbers()[:rows] - wanted)
        largest = np.abs(wanted).max(axis=1, keepdims=True)
        allowed = largest / 254 if kind is FeatureDtype.INT8 else np.maximum(np.abs(wanted) / 16, largest / 448 / 1024)
        assert (off <= allowed + ROUNDING).all()
        furthest = max(furthest, float(off.max()))
    log.info("%s: %d traces, furthest value %.3g off", kind, len(traces), furthest)
    assert furthest > ROUNDING  # more than two servers differ in


def test_tokens_alone_take_a_small_part_of_the_bytes(captured, served_lean):
    kept = {}
    for name, (_, _, traces) in (("captured", captured), ("tokens alone", served_lean)):
        kept[name] = sum(len(encode_trace(t)) for t in traces) / sum(len(t.tokens) for t in traces)
    log.info("bytes per token: %s", kept)
    assert kept["tokens alone"] < 32
    assert kept["captured"] > 2000  # three layers of 256 numbers in float32 are 3072 bytes


def test_a_learner_makes_drafts_from_tokens_alone(lean, served_lean, tmp_path):
    settings = {
        "PACELINE_REDIS_URL": lean.redis_url,
        "PACELINE_SPECULATOR": "e2e",
        "PACELINE_TARGET": "e2e-target",
        "PACELINE_TARGET_PATH": str(lean.target),
        "PACELINE_DRAFT": str(lean.draft),
        "PACELINE_DATA_DIR": str(tmp_path),
        "PACELINE_MLFLOW_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "PACELINE_RECOMPUTE_TOKENS": str(PART),
        "PACELINE_MIN_NEW_TRACES": "16",
        "PACELINE_ROUND_INTERVAL_S": "1.0",
        "OMP_NUM_THREADS": "1",
    }
    pending = lean.buffer.counts().pending
    assert pending >= 16
    with learner_service(log=tmp_path / "learner.log", env=settings):
        until(lambda: sum(lean.buffer.counts().acked.values()) >= pending, "the learner to ack every trace", 240.0)
    acked = lean.buffer.counts().acked
    assert set(acked) <= {"learned", "held_out"}
    assert acked["learned"] > 0
