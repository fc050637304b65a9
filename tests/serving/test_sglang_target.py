"""Updates through SGLang's own manager: they reach the target alone, move its version, and meet no fault of ours."""

import json
from pathlib import Path

import pytest
from paceline.serving.supported_release import installed_release
from paceline.serving.target.sglang_guard import REFUSED
from paceline.serving.target.target_updates import LOADING

SCRIPT = Path(__file__).with_name("updated_target.py")
LOADS = ("disk", "ipc", "tensor", "distributed")


@pytest.fixture(scope="module")
def scenarios(sglang_forks):
    """What the calls of each scenario came to."""
    said = sglang_forks.run(SCRIPT.read_text(encoding="utf-8"))
    lines = [line.removeprefix("FOUND ") for line in said.splitlines() if line.startswith("FOUND ")]
    return dict(map(json.loads, lines))


@pytest.fixture(scope="module")
def guarded(scenarios):
    return scenarios["guarded"]


def versions(calls):
    return {name: (call["judging"], call["target_updates"]) for name, call in calls.items()}


def test_without_the_guard_every_update_reaches_the_draft(scenarios):
    calls = scenarios["stock"]
    assert all(calls[name]["touched"] == ["target", "draft"] for name in (*LOADS, "begin", "end"))
    assert calls["check"] == ["target", "draft"]
    assert calls["first"] == "step-3"


@pytest.mark.guarantee("target-updated")
def test_an_update_reaches_the_target_alone_and_a_check_still_both(guarded):
    for calls in (guarded["named"], guarded["unnamed"]):
        assert all(calls[name]["touched"] == ["target"] for name in (*LOADS, "begin", "end"))
        assert all(call["success"] for call in calls.values())
    assert guarded["check"] == ["target", "draft"]
    assert guarded["first"] == "0"  # SGLang's default word names nothing


def test_a_draft_in_the_targets_own_checkpoint_is_updated_with_it_unless_the_board_decides_what_drafts(scenarios):
    for name, touched in (("one checkpoint", ["target"]), ("one checkpoint, not ours", ["target", "draft"])):
        calls = scenarios[name]
        assert all(calls[call]["touched"] == touched for call in (*LOADS, "begin", "end"))


def test_a_call_outside_of_a_session_is_an_update_and_a_session_is_one(guarded):
    assert versions(guarded["named"]) == {
        "disk": ("9", 1), "ipc": ("9", 2), "begin": ("", 2), "tensor": ("", 2), "distributed": ("", 2), "end": ("9", 3),
    }  # fmt: skip
    assert versions(guarded["unnamed"]) == {
        "disk": ("10", 4), "ipc": ("11", 5), "begin": ("", 5), "tensor": ("", 5), "distributed": ("", 5),
        "end": ("12", 6),
    }  # fmt: skip
    assert guarded["named"]["tensor"]["target_reason"] == LOADING
    assert guarded["named"]["end"]["target_update_ms"] > 0


def test_what_sglang_refuses_moves_nothing(guarded):
    call = guarded["no session"]
    assert (call["success"], call["touched"], call["judging"], call["target_updates"]) == (False, [], "12", 6)
    call = guarded["harmless"]
    assert (call["success"], call["judging"], call["target_updates"]) == (False, "12", 6)


def test_an_update_of_the_draft_is_refused_while_the_board_decides_what_drafts(guarded):
    begin, opened, tensor, distributed, end = guarded["refused"]
    assert all((call["success"], call["message"]) == (False, REFUSED) for call in (begin, tensor, distributed))
    assert begin["touched"] == tensor["touched"] == distributed["touched"] == []
    assert opened["success"]
    assert end["success"]
    assert begin["judging"] == "12"


def test_an_update_of_the_draft_is_sglangs_where_the_board_does_not_decide_and_no_update_of_the_target(scenarios):
    calls = scenarios["not ours"]
    assert all(calls[name]["touched"] == ["draft"] for name in ("begin", "tensor", "distributed", "end"))
    assert {(call["judging"], call["target_updates"]) for name, call in calls.items() if name != "first"} == {("7", 0)}


def test_a_load_that_failed_half_way_leaves_a_target_of_no_version_until_the_next_update(guarded):
    load, end = guarded["harmful"]
    assert (load["success"], end["success"], end["judging"]) == (False, True, "")
    assert end["target_reason"] == "an update failed: Failed to update parameter online: half of it"
    assert guarded["mended"]["judging"] == guarded["mended"]["target_version"] != ""


def test_weights_that_were_loaded_count_though_their_flush_was_refused(guarded):
    call = guarded["unflushed"]
    if installed_release() == "0.5.21":
        assert call == {"died": "Cache flush failed after updating weights"}
        return
    assert (call["success"], call["judging"], call["stale_prefixes"]) == (False, "unflushed", True)


def test_prompts_of_the_old_target_are_reported_until_the_cache_is_flushed(guarded):
    assert guarded["kept"]["stale_prefixes"]
    assert guarded["renamed"]["stale_prefixes"]
    assert guarded["renamed"]["target_version"] == "named-later"
    assert not guarded["flushed"]["stale_prefixes"]
    assert guarded["flushed"]["target_updates"] == guarded["kept"]["target_updates"]


def test_a_cache_that_cannot_tell_what_it_holds_may_hold_prompts_of_the_old_target(guarded):
    call = guarded["cache of another kind"]
    assert (call["success"], call["stale_prefixes"], call["judging"]) == (True, True, call["target_version"])


@pytest.mark.guarantee("no-exception-reaches-sglang")
def test_a_fault_of_ours_costs_no_update_and_ends_capture(guarded):
    calls = guarded["fault"]
    assert all((call["success"], call["touched"]) == (True, ["target"]) for call in calls.values())
    assert [calls[name]["judging"] for name in ("tensor", "end", "disk")] == ["", "", ""]
    assert "could not be followed (RuntimeError: planted)" in calls["disk"]["target_reason"]
