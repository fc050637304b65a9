"""A click on the page changes what the real server drafts with, and no token of its answers."""

import numpy as np
import pytest
from learned_draft import register
from paceline.buffer.board.version import VersionState
from paceline.learner.model.draft_io import load_draft, load_target_embedding, save_draft
from paceline.learner.training.plan import TrainingPlan
from paceline.learner.training.trainer import DraftTrainer
from page_acts import TOKEN, fill_act
from real_stack import REPLICA
from waiting import until

pytestmark = pytest.mark.window

REQUESTS = 16
WORSE, BETTER = 1, 12  # passes over the same traces


@pytest.fixture(scope="module")
def drafts(real):
    """(better, worse): both learnt the same traces, one of them longer; the worse one is live, the better was."""
    real.wave("first", REQUESTS)
    real.drained()
    traces = [entry.trace for entry in real.buffer.replay(1000)]
    folders = [real.draft, *(learnt(real, traces, passes) for passes in (BETTER, WORSE))]
    for folder in folders:
        number = register(real, folder)
        real.board.move(number, VersionState.LIVE, "test", folder.name)
        until(lambda number=number: real.status().draft_version == number, "the swap")
    return number - 1, number


def learnt(real, traces, passes):
    """A folder with the draft that the server was started with, trained so often on these traces."""
    plan = TrainingPlan(steps=3, passes=passes)
    trainer = DraftTrainer(load_draft(real.draft, load_target_embedding(real.target)), plan)
    assert trainer.fit(traces, []).skipped_steps == 0
    folder = real.folder / f"{passes} passes"
    save_draft(trainer.draft, folder)
    return folder


def served(real, name):
    """Answers of one wave, its accept length as SGLang counts it, and its traces."""
    replies = real.wave(name, REQUESTS)
    real.drained()
    traces = [e.trace for e in real.buffer.replay(1000) if e.trace.request_id.startswith(f"{name}-")]
    metas = [reply["meta_info"] for reply in replies]
    rounds, accepted = (sum(meta[key] for meta in metas) for key in ("spec_verify_ct", "spec_num_correct_drafts"))
    assert len(traces) == REQUESTS
    length = 1 + accepted / rounds
    traced = 1 + np.concatenate([trace.rounds.accepted for trace in traces]).mean()
    assert traced == pytest.approx(length, abs=0.05)  # SGLang cuts the last round where the request ends
    return [reply["output_ids"] for reply in replies], length, {trace.draft_version for trace in traces}


def test_a_rollback_by_click_changes_what_is_served_and_no_token(real, drafts, tab):
    better, worse = drafts
    done = real.command("token", "set", said=f"{TOKEN}\n")
    assert done.returncode == 0, done.stderr
    before, length_before, drafted_before = served(real, "before")
    page = tab(real.page_url)
    page.wait_for_selector(f"#draft-title:text-is('Draft {worse}')")
    fill_act(page, worse, TOKEN, "the other one is accepted more")
    page.click("#act-rollback")
    page.wait_for_selector("#act-result .done")
    page.wait_for_selector(f"#act-result li:has-text('✓ {REPLICA}: drafts with {better}')")
    after, length_after, drafted_after = served(real, "after")
    assert (drafted_before, drafted_after) == ({worse}, {better})
    assert length_after > length_before + 0.3
    assert after == before
    event = real.board.events()[-1]
    assert (event.number, event.state, event.why) == (better, VersionState.LIVE, "the other one is accepted more")
    assert event.by.endswith(", on the page")
    page.wait_for_selector(f"#draft-title:text-is('Draft {better}')")
