"""Traces that hold tokens alone: the learner computes the features that the target would have had captured."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import build_trace
from paceline.benchmarks.matrix.quantised import quantised_target
from paceline.buffer.errors import ConfigError
from paceline.buffer.stream.trace import DraftTrace, FeatureDtype, VerifyRounds
from paceline.learner.claim.recomputed import is_another_target
from paceline.learner.delivery.pending_registrations import PendingRegistrations
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.learner.model.eagle3_config import Eagle3Config
from paceline.learner.model.target_features import TargetFeatures, captured_layers
from paceline.learner.recovery import check_models
from paceline.learner.reproduce import reproduce
from paceline.learner.round.learning_report import LearningKind
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 4}
CPU = torch.device("cpu")
#: Rounding of another order of sums, in float32, of states of this size.
ROUNDING = 1e-5


def llama(folder: Path, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """A random target that transformers loads, of the sizes of the tiny speculator's."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1, initializer_range=0.1))
    model.to(dtype).save_pretrained(folder)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return llama(tmp_path / "llama")


@pytest.fixture
def config(tiny_speculator: Any) -> Eagle3Config:
    return load_draft(tiny_speculator.draft, load_target_embedding(tiny_speculator.target)).config


def bare(trace: DraftTrace, **changes: Any) -> DraftTrace:
    """As a server with PACELINE_CAPTURE_FEATURES=0 sends it."""
    return replace(trace, features=np.zeros((0, 0), np.float32), replay_exact=False, **changes)


def whole_forward(target: Path, config: Eagle3Config, trace: DraftTrace) -> np.ndarray:
    """All layers, all tokens, one forward: what the target computes at the trace's own tokens."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    read = torch.tensor([[*trace.prefix.tolist(), *trace.tokens.tolist()]])
    with torch.no_grad():
        states = model(read, output_hidden_states=True).hidden_states
    rows = torch.cat([states[layer + 1] for layer in config.layer_ids], dim=-1)[0]
    return rows[len(trace.prefix) :].numpy()


@pytest.mark.parametrize("part_tokens", [1000, 7, 1])
@pytest.mark.parametrize("prefix", [(), (3, 1, 4, 1, 5)])
def test_features_are_those_of_one_forward_over_the_whole_request_in_however_many_parts(
    target: Path, config: Eagle3Config, tiny_speculator: Any, prefix: tuple[int, ...], part_tokens: int
) -> None:
    changes = {"offset": len(prefix), "prefix": np.array(prefix, np.int32)}
    trace = bare(tiny_speculator.serve(0), **changes)
    found = TargetFeatures(target, config, CPU, part_tokens).read(trace).trace
    wanted = whole_forward(target, config, trace)
    assert found.features.shape == (len(trace.tokens), 3 * SIZES["hidden_size"])
    assert found.feature_dtype is FeatureDtype.FLOAT32
    assert np.abs(wanted).max() > 0.1
    assert np.abs(found.features - wanted).max() < ROUNDING
    assert not found.replay_exact
    assert found.prefix.tolist() == list(prefix)


def test_the_tokens_before_a_trace_count(target: Path, config: Eagle3Config, tiny_speculator: Any) -> None:
    trace, source = bare(tiny_speculator.serve(0)), TargetFeatures(target, config, CPU, 1000)
    later = replace(trace, offset=2, prefix=np.array([3, 1], np.int32))
    assert np.abs(source.read(trace).trace.features - source.read(later).trace.features).max() > 100 * ROUNDING


def test_features_are_the_same_bit_by_bit_whatever_was_computed_before(
    target: Path, config: Eagle3Config, tiny_speculator: Any
) -> None:
    traces = [bare(tiny_speculator.serve(i, tokens=20 + i)) for i in range(4)]
    there, back = TargetFeatures(target, config, CPU, 8), TargetFeatures(target, config, CPU, 8)
    one = [there.read(trace).trace.features for trace in traces]
    other = [back.read(trace).trace.features for trace in reversed(traces)][::-1]
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


def test_features_have_the_dtype_of_the_target(tmp_path: Path, config: Eagle3Config, tiny_speculator: Any) -> None:
    target = llama(tmp_path / "bfloat16", torch.bfloat16)
    trace = bare(tiny_speculator.serve(0))
    found = TargetFeatures(target, config, CPU, 1000).read(trace).trace
    assert (found.feature_dtype, found.features.dtype) == (FeatureDtype.BFLOAT16, np.uint16)
    numbers, wanted = found.feature_numbers(), whole_forward(target, config, trace)
    assert 0 < np.abs(numbers - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.parametrize(("form", "apart"), [("compressed-tensors, INT8", 0.02), ("compressed-tensors, FP8", 0.1)])
def test_a_quantised_target_is_read_as_the_numbers_that_it_holds(
    target: Path, config: Eagle3Config, tiny_speculator: Any, tmp_path: Path, form: str, apart: float
) -> None:
    quantised = quantised_target(form, target, tmp_path / "quantised")
    trace = bare(tiny_speculator.serve(0))
    found, plain = (TargetFeatures(folder, config, CPU, 1000).read(trace).trace for folder in (quantised, target))
    assert found.feature_dtype is FeatureDtype.FLOAT32
    assert 0 < np.abs(found.features - plain.features).max() < apart * np.abs(plain.features).max()


def test_a_format_of_which_transformers_leaves_the_scales_out_is_refused(
    target: Path, config: Eagle3Config, tmp_path: Path
) -> None:
    quantised = quantised_target("FP8", target, tmp_path / "quantised")
    with pytest.raises(ConfigError, match=r"got 28 tensors that transformers does not read, .*_scale among them"):
        TargetFeatures(quantised, config, CPU, 1000).load()


@pytest.mark.parametrize(
    ("named", "layers", "read"),
    [
        (None, 32, (2, 16, 29)),  # SGLang's set_eagle3_layers_to_capture without ids
        ([1, 15, 28], 32, (2, 16, 29)),
        ([0, 1, 2], 4, (1, 2, 3)),
        ([28, 1, 15], 32, (2, 16, 29)),  # its forward goes through the layers in their own order
    ],
)
def test_the_layers_are_those_that_sglang_captures(
    config: Eagle3Config, named: list[int] | None, layers: int, read: tuple[int, ...]
) -> None:
    eagle = {} if named is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": named}}
    draft = replace(config, source=eagle)
    assert captured_layers(draft, {**SIZES, "num_hidden_layers": layers}) == read


@pytest.mark.parametrize(
    ("ids", "changes", "said"),
    [
        ([0, 1, 3], {}, r"got what layers \(1, 2, 4\) read, expected layers 0..3"),
        (None, {"num_hidden_layers": 2}, r"got what layers \(-1, 1, 2\) read, expected layers 0..1"),
        (None, {}, "got 2 layers of width 16, expected 3 of width 16"),  # of four layers SGLang takes two
        ([0, 1], {}, "got 2 layers of width 16, expected 3 of width 16"),
        ([0, 1, 2], {"hidden_size": 8}, "got 3 layers of width 8, expected 3 of width 16"),
    ],
)
def test_a_target_without_these_layers_is_refused(
    config: Eagle3Config, ids: list[int] | None, changes: dict[str, int], said: str
) -> None:
    draft = replace(config, source={} if ids is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}})
    with pytest.raises(ConfigError, match=said):
        captured_layers(draft, {**SIZES, **changes})


def answered(target: Path, number: int, tokens: int = 24) -> DraftTrace:
    """What the target answers greedily, one token a round, as a server that keeps its best token sends it."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    text = np.random.default_rng(number).integers(0, 32, 8).tolist()
    while len(text) < tokens:
        with torch.no_grad():
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    starts = np.arange(7, tokens - 1, dtype=np.int32)
    best = np.array(text, np.int32)[starts + 1]
    teacher = np.zeros((len(starts), 2, 1), np.int32)
    teacher[:, 0, 0] = best
    rounds = VerifyRounds(
        starts=starts,
        drafted=((best + 1) % 32)[:, None],
        accepted=np.zeros(len(starts), np.int32),
        teacher_ids=teacher,
        teacher_logprobs=teacher.astype(np.float16),
    )
    made = build_trace(number, rounds=0, feature_dim=0)
    return replace(made, tokens=np.array(text, np.int32), context_len=8, rounds=rounds, replay_exact=False)


def test_the_best_tokens_are_those_that_the_target_commits(target: Path, config: Eagle3Config) -> None:
    trace = answered(target, 0)
    for prefix in (0, 3):
        later = replace(
            trace, tokens=trace.tokens[prefix:], offset=prefix, prefix=trace.tokens[:prefix], context_len=8 - prefix,
            rounds=replace(trace.rounds, starts=trace.rounds.starts - prefix),
        )  # fmt: skip
        found = TargetFeatures(target, config, CPU, 5).read(later)
        assert found.best_T[: 8 - prefix].tolist() == [-1] * (8 - prefix)
        assert found.best_T[8 - prefix :].tolist() == trace.tokens[8:].tolist()
        assert not is_another_target(later, found.best_T)


@pytest.mark.parametrize(("apart", "is_another"), [(0, False), (6, False), (7, True), (16, True)])
def test_a_target_may_differ_at_two_places_and_a_quarter_of_them(target: Path, apart: int, is_another: bool) -> None:
    trace = answered(target, 0)
    assert len(trace.rounds) == 16
    best_T = trace.tokens.copy()
    best_T[8 : 8 + apart] = (best_T[8 : 8 + apart] + 1) % 32
    assert is_another_target(trace, best_T) is is_another
    edited = replace(trace, sampling=replace(trace.sampling, edited=True))
    rounds = replace(
        trace.rounds,
        teacher_ids=trace.rounds.teacher_ids[..., :0],
        teacher_logprobs=trace.rounds.teacher_logprobs[..., :0],
    )
    assert not is_another_target(edited, best_T)
    assert not is_another_target(replace(trace, rounds=rounds), best_T)


@pytest.mark.guarantee("moved-target-not-recomputed")
def test_another_target_of_the_same_name_is_found_out_by_its_tokens_also_after_a_restart(
    house: Any, target: Path, tmp_path: Path
) -> None:
    """Both claim to be version 1."""
    house.config = replace(house.config, target_path=target, recompute_tokens=1000, min_new_traces=1)
    other = llama(tmp_path / "other", seed=1)
    ours, theirs = ([answered(folder, i) for i in range(at, at + 12)] for folder, at in ((target, 0), (other, 12)))
    house.buffer.append([*ours, *theirs])
    learner = house.learner()
    report = learner.learn_once()
    assert report.outcomes["target_moved"] == len(theirs)
    assert report.outcomes["learned"] + report.outcomes.get("held_out", 0) == len(ours)
    assert house.buffer.counts().acked["target_moved"] == len(theirs)
    again = house.learner()
    again.learn_once()
    for kept in (learner, again):
        assert {entry.trace.trace_id for entry in kept._state.replay_buffer} < {trace.trace_id for trace in ours}


@pytest.fixture
def bare_house(house: Any, target: Path) -> Iterator[Any]:
    """A learner's house with a target that transformers loads, whose weights on disk are version 1."""
    house.config = replace(house.config, target_path=target, recompute_tokens=16)
    return house


def send_bare(house: Any, count: int, **changes: Any) -> list[DraftTrace]:
    traces = [bare(house.speculator.serve(house.sent + i), **changes) for i in range(count)]
    house.sent += count
    house.buffer.append(traces)
    return traces


def test_a_learner_learns_from_tokens_alone_with_the_targets_own_features(
    bare_house: Any, target: Path, config: Eagle3Config
) -> None:
    traces = {trace.trace_id: trace for trace in send_bare(bare_house, 24)}
    learner = bare_house.learner()
    report = learner.learn_once()
    assert report.kind is LearningKind.LEARNED
    assert set(report.outcomes) == {"learned", "held_out"}
    assert report.fit.steps > 0
    assert report.fit.unusable_traces == 0
    learnt = [entry.trace for entry in learner._state.replay_buffer]
    assert len(learnt) == report.outcomes["learned"]
    for trace in learnt:
        wanted = whole_forward(target, config, traces[trace.trace_id])
        assert np.abs(trace.features - wanted).max() < ROUNDING
    assert report.calibration.compared == 0  # no replay identity is claimed
    assert "recompute" in learner._heartbeat.tally.counters(bare_house.buffer.counts()).learner.seconds


def test_a_restarted_learner_has_the_same_features_in_its_replay_buffer(bare_house: Any) -> None:
    send_bare(bare_house, 24)
    first = bare_house.learner()
    first.learn_once()
    second = bare_house.learner()
    second.learn_once()
    kept, again = ({e.entry_id: e.trace for e in learner._state.replay_buffer} for learner in (first, second))
    assert kept.keys() == again.keys()
    for entry_id, trace in kept.items():
        np.testing.assert_array_equal(trace.features, again[entry_id].features)


def test_a_draft_that_learnt_from_tokens_alone_is_fitted_again_bit_by_bit(bare_house: Any) -> None:
    for _ in range(2):
        send_bare(bare_house, 24)
        number = bare_house.learner().learn_once().version
    pending = PendingRegistrations(bare_house.pending)
    found = reproduce(bare_house.config, bare_house.buffer, bare_house.board, pending=pending, number=number)
    assert found.is_equal, found.sentence


@pytest.mark.guarantee("moved-target-not-recomputed")
def test_what_cannot_be_recomputed_is_refused_with_its_reason_and_never_learned(bare_house: Any) -> None:
    known = send_bare(bare_house, 8)
    moved = send_bare(bare_house, 5, target_version="2")
    headless = send_bare(bare_house, 3, offset=4)
    learner = bare_house.learner(
        target_version="2", target_versions=("1", "2"), target_max_age=1, target_path_version="1"
    )
    report = learner.learn_once()
    assert (report.outcomes["target_moved"], report.outcomes["no_prefix"]) == (len(moved), len(headless))
    learnt = {entry.trace.trace_id for entry in learner._state.replay_buffer}
    assert len(learnt) > 0
    assert learnt <= {trace.trace_id for trace in known}
    assert sum(report.outcomes.values()) == 16
    assert bare_house.buffer.counts().pending == 0


def test_without_the_setting_they_are_refused_as_before(bare_house: Any) -> None:
    send_bare(bare_house, 8)
    report = bare_house.learner(recompute_tokens=0).learn_once()
    assert report.outcomes == {"no_features": 8}


def test_a_target_that_cannot_be_loaded_fails_before_any_trace_is_claimed(
    bare_house: Any, tiny_speculator: Any
) -> None:
    send_bare(bare_house, 8)
    with pytest.raises(ConfigError, match="expected a target that transformers loads"):
        bare_house.learner(target_path=tiny_speculator.target).learn_once()
    assert bare_house.buffer.counts().pending == 8
    assert bare_house.buffer.claim("another", 8)[0].trace.trace_id == "trace-0"


def test_a_worker_does_not_start_where_the_draft_reads_layers_that_the_target_has_not(
    bare_house: Any, target: Path
) -> None:
    card = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(card | {"num_hidden_layers": 2}))
    with pytest.raises(ConfigError, match="PACELINE_TARGET_PATH: features of the target: got what layers"):
        check_models(bare_house.config, bare_house.board)
    check_models(replace(bare_house.config, recompute_tokens=0), bare_house.board)
