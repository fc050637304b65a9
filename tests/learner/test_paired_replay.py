"""Requests are replayed with two drafts, those that replay can score; the cache keeps few drafts, all as published."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_versions import version_in
from paceline.buffer.board.version import DraftVersion
from paceline.buffer.stream.trace import VerdictRule
from paceline.learner.judging.paired_replay import paired, unscored
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_cache import DraftCache
from paceline.learner.model.draft_io import load_draft, load_target_embedding, random_draft
from paceline.policies.acceptance import replayed_tally, served_tally
from paceline.policies.paired import Paired
from twins.memory_board import MemoryVersionBoard


def version_at(folder: Path, number: int) -> DraftVersion:
    return version_in(folder, number)


@pytest.fixture
def drafts(tiny_speculator: Any, tmp_path: Path) -> tuple[Any, Any]:
    """The draft that served, and another one."""
    embedding = load_target_embedding(tiny_speculator.target)
    random_draft(tiny_speculator.target, tmp_path / "other", seed=9)
    return load_draft(tiny_speculator.draft, embedding), load_draft(tmp_path / "other", embedding)


def test_a_request_is_paired_with_the_sums_of_its_traces_in_the_order_of_its_first(tiny_speculator, drafts) -> None:
    served = [tiny_speculator.serve(i, tenant=f"tenant {i}") for i in range(3)]
    later = tiny_speculator.serve(3, request_id="request-0", tenant="tenant 0")
    found = paired([*served, later], *drafts, 3)
    ours = [served_tally(trace) for trace in (*served, later)]  # the draft that served them: replay is what was served
    runs = replay_traces(drafts[1], [*served, later], 3)
    theirs = [replayed_tally(trace, run) for trace, run in zip((*served, later), runs, strict=True)]
    assert found == [
        Paired("tenant 0", ours[0] + ours[3], theirs[0] + theirs[3]),
        Paired("tenant 1", ours[1], theirs[1]),
        Paired("tenant 2", ours[2], theirs[2]),
    ]
    assert ours[:3] != theirs[:3]


def test_requests_judged_by_a_rule_that_tokens_do_not_show_are_counted_and_not_scored(tiny_speculator, drafts) -> None:
    served = tiny_speculator.serve(0)
    rules = (VerdictRule.REJECTION, VerdictRule.BLOCK, VerdictRule.THRESHOLDS)
    traces = [served, *(tiny_speculator.serve(i, verdict_rule=rule) for i, rule in enumerate(rules, 1))]
    assert [pair.line for pair in paired(traces, *drafts, 3)] == [served_tally(served)]
    unrecorded = "rejection (target's chances not recorded)"
    assert unscored(traces) == {unrecorded: 1, "block": 1, "thresholds": 1}
    later = tiny_speculator.serve(5, request_id="request-1")  # a trace of that request that can be scored
    assert [pair.line for pair in paired([*traces, later], *drafts, 3)] == [served_tally(served), served_tally(later)]
    assert unscored([*traces, later]) == {"block": 1, "thresholds": 1}


def test_of_no_requests_nothing_is_paired(drafts) -> None:
    assert paired([], *drafts, 3) == []
    assert unscored([]) == {}


def test_the_cache_keeps_the_drafts_used_last_and_refuses_other_bytes(
    tiny_speculator: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    board = MemoryVersionBoard()
    for number in range(3):
        folder = tmp_path / f"draft {number}"  # a space, which file:// URIs encode
        random_draft(tiny_speculator.target, folder, seed=number)
        board.register(version_at(folder, number), "learner", "")
    for number, uri in ((3, "file:///nowhere"), (4, "s3://nowhere")):
        unreadable = replace(version_at(folder, number), weights_uri=uri, sha256=f"{number:064d}")
        board.register(unreadable, "operator:ada", "")
    state, embedding = board.read(), load_target_embedding(tiny_speculator.target)
    drafts = DraftCache(embedding, torch.device("cpu"), capacity=2)
    zero, one = drafts.draft(state, 0), drafts.draft(state, 1)
    assert drafts.draft(state, 0) is zero
    drafts.draft(state, 2)
    assert drafts.draft(state, 0) is zero
    again = drafts.draft(state, 1)
    assert again is not one
    assert torch.equal(again.fc.weight, one.fc.weight)
    assert caplog.text == ""
    (tmp_path / "draft 2" / "model.safetensors").write_bytes(b"other")
    assert [drafts.draft(state, number) for number in (2, 3, 4)] == [None, None, None]
    for number, reason in ((2, "got sha256"), (3, "got no readable"), (4, "weights_uri: got")):
        assert any(f"version {number} is not compared" in line and reason in line for line in caplog.messages)
