"""What SGLang resolved decides what is captured and how drafts are judged; tests/e2e asks the real one."""

import json
import logging
import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from paceline.buffer.errors import CaptureUnavailable
from paceline.buffer.stream.trace import VerdictRule
from paceline.serving import plugin, sglang_speculation
from paceline.serving.config import CANARY_TURN_S, from_env
from paceline.serving.sglang_speculation import (
    check_speculation,
    draft_steps,
    drafts_blocks,
    flags,
    has_draft_model,
    has_draft_of_its_own,
    why_replay_is_no_proof,
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculative_algorithm": None}, "got --speculative-algorithm None, expected EAGLE3"),
        ({"pp_size": 2}, "got --pp-size 2, expected 1"),
        (
            {"attn_dp_size": 2, "enable_dp_attention_local_control_broadcast": True},
            "got --enable-dp-attention-local-control-broadcast, expected that it is left out",
        ),
        ({"disaggregation_mode": "prefill"}, "got --disaggregation-mode prefill, expected none"),
        ({"disaggregation_mode": "decode"}, "got --disaggregation-mode decode, expected none"),
    ],
)
def test_a_server_that_cannot_be_captured_is_refused_with_its_flags(resolved, changes, message):
    check_speculation()
    resolved |= changes
    with pytest.raises(CaptureUnavailable, match=message):
        check_speculation()


@pytest.mark.parametrize(
    ("architectures", "message"),
    [
        (["MiMoForCausalLM"], ""),
        (["Glm4MoeForCausalLM"], ""),
        (["DeepseekV3ForCausalLM"], ""),
        (
            ["Qwen3NextForCausalLM"],
            "a draft of Qwen3NextForCausalLM, .* DeepseekV3ForCausalLM: .* gated attention .* are not built",
        ),
        (["LlamaForCausalLMEagle"], "a draft of LlamaForCausalLMEagle, expected one of MiMoForCausalLM"),
        ([], "a draft of no architecture, expected one of MiMoForCausalLM"),
    ],
)
def test_of_the_layers_in_targets_those_that_a_learner_has_are_captured(resolved, tmp_path, architectures, message):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": architectures}))
    resolved |= {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": str(tmp_path)}
    with pytest.raises(CaptureUnavailable, match=message) if message else nullcontext():
        check_speculation()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "got NEXTN without --speculative-draft-model-path, expected there the target once more"),
        ("nowhere/at-all", "speculation: nowhere/at-all: got neither a folder nor a copy in the Hugging Face cache"),
    ],
)
def test_a_layer_whose_checkpoint_is_not_to_be_found_is_not_captured(resolved, path, message):
    resolved |= {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": path}
    with pytest.raises(CaptureUnavailable, match=message):
        check_speculation()


def block_draft(folder, **changes):
    folder.mkdir()
    source = {"architectures": ["DFlashDraftModel"], "block_size": 8} | changes
    (folder / "config.json").write_text(json.dumps(source))
    return folder


@pytest.fixture
def blocks(resolved, tmp_path):
    """What a server with DFLASH resolves."""
    (tmp_path / "target").mkdir()
    draft = block_draft(tmp_path / "draft")
    resolved |= {
        "speculative_algorithm": "DFLASH", "speculative_draft_model_path": str(draft), "speculative_num_steps": 1,
        "speculative_num_draft_tokens": 8, "model_path": str(tmp_path / "target"),
    }  # fmt: skip
    return resolved


def test_blocks_are_captured_and_replayed_and_counted_by_their_places(blocks):
    check_speculation()
    assert drafts_blocks()
    assert draft_steps() == flags().num_steps == 7
    assert why_replay_is_no_proof() == ""
    blocks["speculative_algorithm"] = "EAGLE3"
    assert not drafts_blocks()
    assert draft_steps() == flags().num_steps == 1


def test_without_a_model_trees_are_captured_and_hide_nothing_of_a_draft(resolved):
    resolved |= {
        "speculative_algorithm": "NGRAM", "speculative_eagle_topk": 10, "speculative_num_steps": 1,
        "speculative_num_draft_tokens": 12, "speculative_draft_model_path": None,
    }  # fmt: skip
    check_speculation()
    assert not has_draft_model()
    assert draft_steps() == flags().num_steps == 11
    assert why_replay_is_no_proof() == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculative_num_draft_tokens": 4}, r"got blocks of 4 \(--speculative-num-draft-tokens\), expected 8"),
        ({"speculative_draft_window_size": 64}, "got --speculative-draft-window-size 64, expected none"),
        ({"speculative_draft_model_path": "no/where"}, "no/where: got neither a folder nor a copy"),
    ],
)
def test_blocks_that_no_learner_would_draft_are_refused(blocks, changes, message):
    blocks |= changes
    with pytest.raises(CaptureUnavailable, match=message):
        check_speculation()


def test_later_kinds_of_blocks_and_parts_outside_of_the_draft_are_refused(blocks, tmp_path):
    (tmp_path / "draft" / "mask_embedding.pt").touch()
    with pytest.raises(CaptureUnavailable, match=r"got mask_embedding.pt, expected none"):
        check_speculation()
    other = block_draft(tmp_path / "other", architectures=["DFlash2DraftModel"])
    blocks["speculative_draft_model_path"] = str(other)
    with pytest.raises(CaptureUnavailable, match="a draft of DFlash2DraftModel, expected DFlashDraftModel; its later"):
        check_speculation()


def test_blocks_of_a_target_that_scales_its_embeddings_are_refused(blocks, tmp_path):
    blocks["model_path"] = "some/where-else"
    check_speculation()
    blocks["model_path"] = str(tmp_path / "target")
    named = {"architectures": ["Gemma3ForCausalLM"]}
    (tmp_path / "target" / "config.json").write_text(json.dumps(named))
    with pytest.raises(CaptureUnavailable, match="a target of Gemma3ForCausalLM, expected one whose embeddings"):
        check_speculation()


@pytest.mark.parametrize(
    ("changes", "samples", "rule"),
    [
        ({}, True, VerdictRule.TARGET_ONLY),
        ({}, False, VerdictRule.GREEDY),
        ({"speculative_accept_threshold_acc": 0.5}, True, VerdictRule.THRESHOLDS),
        ({"speculative_use_block_verification": True}, True, VerdictRule.TARGET_ONLY),
    ],
)
def test_sampled_blocks_are_verified_as_the_best_tokens_of_a_draft(blocks, monkeypatch, changes, samples, rule):
    blocks |= changes
    utils = SimpleNamespace(is_dflash_sampling_verify_available=lambda: samples)
    found = SimpleNamespace(dflash_utils=utils, eagle_utils=None)
    monkeypatch.setitem(sys.modules, "sglang.srt.speculative", found)
    sglang_speculation.sampled_rule.cache_clear()
    assert sglang_speculation.sampled_rule() is rule
    sglang_speculation.sampled_rule.cache_clear()


@pytest.mark.parametrize(("draft", "is_apart"), [("draft", True), (None, False), ("target", False)])
def test_a_draft_is_apart_from_the_target_unless_it_is_layers_of_its_checkpoint(resolved, draft, is_apart):
    resolved["speculative_draft_model_path"] = draft
    assert has_draft_of_its_own() is is_apart


RULES = [
    ({}, VerdictRule.TARGET_ONLY),
    ({"speculative_use_rejection_sampling": True}, VerdictRule.REJECTION),
    ({"speculative_use_rejection_sampling": True, "speculative_use_block_verification": True}, VerdictRule.BLOCK),
    ({"speculative_accept_threshold_single": 0.9}, VerdictRule.THRESHOLDS),
    ({"speculative_accept_threshold_acc": 0.5}, VerdictRule.THRESHOLDS),
]


@pytest.mark.parametrize(("changes", "rule"), RULES)
def test_the_rule_is_that_of_the_resolved_settings_unless_the_host_commits_the_argmax(
    resolved, monkeypatch, changes, rule
):
    resolved |= changes
    for commits_argmax, expected in ((False, rule), (True, VerdictRule.GREEDY)):
        utils = SimpleNamespace(
            _verify_uses_greedy=lambda answer=commits_argmax, **_: answer, _is_cpu=0, _is_hip=0, _is_xpu=0
        )
        monkeypatch.setitem(
            sys.modules, "sglang.srt.speculative", SimpleNamespace(eagle_utils=utils, dflash_utils=None)
        )
        sglang_speculation.sampled_rule.cache_clear()
        assert sglang_speculation.sampled_rule() is expected
    sglang_speculation.sampled_rule.cache_clear()


@pytest.mark.parametrize(("changes", "rule"), RULES)
def test_replay_is_no_proof_under_a_rule_that_does_not_decide_by_equality(resolved, changes, rule):
    resolved |= changes
    why = why_replay_is_no_proof()
    assert (why == "") is (rule is VerdictRule.TARGET_ONLY)
    assert rule.value in why or not why


def test_under_rejection_sampling_it_is_said_of_which_requests_replay_cannot_tell(resolved):
    resolved["speculative_use_rejection_sampling"] = True
    why = why_replay_is_no_proof()
    assert re.search(r"replay estimates .*, but of requests with top-k, top-p or edited logits", why)


def test_trees_are_replayed_like_chains_and_without_speculation_nothing_is(resolved):
    resolved["speculative_eagle_topk"] = 4
    assert why_replay_is_no_proof() == ""
    resolved |= {"speculative_use_rejection_sampling": True, "speculative_algorithm": None}
    assert why_replay_is_no_proof() == ""


@pytest.mark.parametrize(
    ("rejects", "given", "turn_s"),
    [(False, "", 0.0), (True, "", CANARY_TURN_S), (True, "0", 0.0), (False, "7", 7.0), (True, "7", 7.0)],
)
def test_a_server_on_which_replay_is_no_proof_gives_canaries_their_turns_unless_it_is_told(
    resolved, caplog, rejects, given, turn_s
):
    resolved["speculative_use_rejection_sampling"] = rejects
    settings = plugin._with_canary_turns(from_env({"PACELINE_CANARY_TURN_S": given}))
    assert settings.canary_turn_s == turn_s
    assert ("verified by the rule rejection" in caplog.text) is rejects
    assert all(record.levelno == logging.WARNING for record in caplog.records)
