"""The holdout keeps the latest requests and scores them once; the cache keeps few drafts, all as published."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from paceline.buffer.testing.memory_board import MemoryVersionBoard
from paceline.buffer.trace import DraftTrace, VerdictRule
from paceline.buffer.version import DraftVersion
from paceline.buffer.weights_file import sha256_of
from paceline.learner.judging import holdout
from paceline.learner.judging.holdout import Holdout
from paceline.learner.model.draft_cache import DraftCache
from paceline.learner.model.draft_io import load_draft, load_target_embedding, random_draft
from paceline.policies.acceptance import Tally, served_tally


def version_at(folder: Path, number: int) -> DraftVersion:
    digest = sha256_of(folder / "model.safetensors")
    return DraftVersion(number, None, "target", "1", "eagle3", folder.as_uri(), digest, "", ("", ""))


def test_the_latest_request_pushes_the_oldest_out(tiny_speculator: Any) -> None:
    first, second, third = (tiny_speculator.serve(i) for i in range(3))
    kept = Holdout(2)
    for trace in (first, second, replace(first, trace_id="later trace"), third):
        kept.add(trace)
    assert len(kept) == 2
    assert kept.trace_ids == {"trace-0", "later trace", "trace-2"}


def test_what_is_not_retained_is_dropped_with_requests_left_without_a_trace(tiny_speculator: Any) -> None:
    first, second = tiny_speculator.serve(0, born_at=1.0), tiny_speculator.serve(1, born_at=1.0)
    kept = Holdout(9)
    for trace in (first, second, replace(second, trace_id="later trace", born_at=2.0)):
        kept.add(trace)
    kept.retain(lambda trace: trace.born_at > 1.0)
    assert len(kept) == 1
    assert kept.trace_ids == {"later trace"}


def test_a_request_scores_the_sum_of_its_traces(tiny_speculator: Any) -> None:
    traces = [tiny_speculator.serve(0), tiny_speculator.serve(1), tiny_speculator.serve(2, request_id="request-0")]
    kept = Holdout(9)
    for trace in traces:
        kept.add(trace)
    draft = load_draft(tiny_speculator.draft, load_target_embedding(tiny_speculator.target))
    # The draft that served them: its replay is what was served. A new trace makes its request the latest.
    served = [served_tally(trace) for trace in traces]
    assert kept.score(draft, 3) == [served[1], served[0] + served[2]]
    assert kept.score_live(0, draft, 3) == kept.score(draft, 3)


def test_a_live_version_is_replayed_once_per_trace(tiny_speculator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[int] = []
    replay = holdout.replay_traces

    def counted(draft: Any, traces: Sequence[DraftTrace], steps: int) -> Any:
        replayed.append(len(traces))
        return replay(draft, traces, steps)

    monkeypatch.setattr(holdout, "replay_traces", counted)
    draft = load_draft(tiny_speculator.draft, load_target_embedding(tiny_speculator.target))
    kept = Holdout(3)
    for count, number in ((3, 0), (0, 0), (1, 0), (0, 7)):
        for _ in range(count):
            kept.add(tiny_speculator.serve(len(kept.trace_ids) + sum(replayed)))
        kept.score_live(number, draft, 3)
    # Three, nothing new, one new, then another version over all that are kept.
    assert replayed == [3, 1, 3]


def test_requests_judged_by_a_rule_that_tokens_do_not_show_are_kept_and_not_scored(tiny_speculator: Any) -> None:
    served = tiny_speculator.serve(0)
    kept = Holdout(9)
    kept.add(served)
    rules = (VerdictRule.REJECTION, VerdictRule.BLOCK, VerdictRule.THRESHOLDS)
    for i, rule in enumerate(rules, 1):
        kept.add(tiny_speculator.serve(i, verdict_rule=rule))
    draft = load_draft(tiny_speculator.draft, load_target_embedding(tiny_speculator.target))
    assert kept.score(draft, 3) == kept.score_live(0, draft, 3) == [served_tally(served), Tally(), Tally(), Tally()]
    unrecorded = "rejection (target's chances not recorded)"
    assert kept.unscored == {unrecorded: 1, "block": 1, "thresholds": 1}
    later = tiny_speculator.serve(5, request_id="request-1")  # a trace of that request that can be scored
    kept.add(later)
    assert kept.score(draft, 3) == [served_tally(served), Tally(), Tally(), served_tally(later)]
    assert kept.unscored == {"block": 1, "thresholds": 1}
    assert not kept.has_trees
    kept.add(tiny_speculator.serve(6, is_tree=True))
    assert kept.has_trees


def test_an_empty_holdout_scores_nothing(tiny_speculator: Any) -> None:
    draft = load_draft(tiny_speculator.draft, load_target_embedding(tiny_speculator.target))
    assert Holdout(3).score(draft, 3) == Holdout(3).score_live(0, draft, 3) == []
    assert sum(Holdout(3).score(draft, 3), Tally()).accept_length == 1.0


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
