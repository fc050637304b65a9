"""A learner that rests: what it keeps, what it counts, when it stops resting, and what survives its death."""

import json
import logging
import time

import pytest
import torch
from learner_traffic import BATCH, held_out, ids, not_held_out
from paceline.buffer.board.counters import counters_of
from paceline.buffer.board.reason import ReasonCode, because
from paceline.learner.delivery import delivery
from paceline.learner.round.learning_report import LearningKind
from paceline.learner.state import checkpoint
from paceline.learner.training import regime
from paceline.learner.training.trainer import DraftTrainer
from paceline.policies.learn_schedule import LearnChoice
from paceline.policies.promotion import Measured, Promotion, Verdict
from paceline.policies.verdict_words import sentence

DRIFT = {"rest_after_rounds": 2, "cool_down_s": 0.0, "passes": 6}


MEASURED = Measured(gain=0.1, interval=(0.0, 0.2), line_accept_length=2.1, reference_accept_length=2.0, requests=9)


class DiedError(Exception):
    """The process ended here."""


def die(*_, **__):
    raise DiedError


def decide_all(monkeypatch, verdict):
    decided = Promotion(verdict=verdict, reason=because(ReasonCode.PROVEN), measured=MEASURED)
    monkeypatch.setattr(delivery, "judge", lambda *_, **__: decided)


def weights(learner):
    return [parameter.clone() for parameter in learner._state.trainer.draft.parameters()]


def known_traffic(house):
    """Traces served by the live version."""
    live = house.board.read().live
    return house.send(weights=house.config.versions_dir / f"v{live:06d}", draft_version=live)


@pytest.fixture
def rested(house, monkeypatch):
    """A learner that rests after two learning rounds without a better draft, and the traces of its last one."""
    learner = house.learner(**DRIFT)
    for _ in range(12):  # no round is flat before a draft is better and after it
        house.send()
        if learner.learn_once().promotion.verdict is Verdict.PROMOTE:
            break
    assert house.board.read().live > 0
    decide_all(monkeypatch, Verdict.REFUSE)
    kinds = []
    for _ in range(4):
        traces = known_traffic(house)
        kinds.append(learner.learn_once().kind)
    assert kinds == [LearningKind.LEARNED, LearningKind.LEARNED, LearningKind.RESTED, LearningKind.RESTED]
    return learner, traces


def test_rounds_in_which_no_request_judged_begin_no_rest(house, monkeypatch):
    """As those of further parts of long answers, of which the line has learnt the first."""
    learner, nothing = (
        house.learner(**{**DRIFT, "passes": 1}),
        Promotion(verdict=Verdict.REFUSE, reason=because(ReasonCode.NOT_PROVEN)),
    )
    monkeypatch.setattr(delivery, "judge", lambda *_, **__: nothing)
    monkeypatch.setattr(regime.Regime, "choose", lambda self, *_: setattr(self, "is_cold", False))
    for _ in range(6):
        house.send()
        assert learner.learn_once().kind is LearningKind.LEARNED
    assert len(learner._state.schedule._latest) > 40
    decide_all(monkeypatch, Verdict.REFUSE)
    kinds = []
    for _ in range(3):
        house.send()
        kinds.append(learner.learn_once().kind)
    assert kinds == [LearningKind.LEARNED, LearningKind.LEARNED, LearningKind.RESTED]


def test_a_rest_keeps_traces_for_replay_compares_them_and_changes_no_weight_until_the_draft_does_badly(
    house, rested, caplog
):
    caplog.set_level(logging.INFO)
    learner, _ = rested
    member = f"learner:{house.config.name}"
    before, fits, trained = weights(learner), len(house.fitted), house.config.checkpoints_dir
    files = {path.name: path.stat().st_mtime_ns for path in trained.rglob("trainer.pt")}
    counted = dict(house.buffer.counts().acked)
    traces = known_traffic(house)
    report = learner.learn_once()
    kept = held_out(traces)
    assert (report.kind, report.version, report.fit, report.promotion) == (LearningKind.RESTED, None, None, None)
    assert report.outcomes == {"rested": BATCH - len(kept), "held_out": len(kept)}
    rounds = sum(len(trace.rounds) for trace in traces)
    assert (report.calibration.equal, report.calibration.compared) == (rounds, rounds)
    counts = house.buffer.counts()
    assert counts.acked["rested"] - counted["rested"] == BATCH - len(kept)
    assert (counts.acked["learned"], counts.pending) == (counted["learned"], 0)
    window = [entry.trace.trace_id for entry in learner._state.replay_buffer]
    assert window[-(BATCH - len(kept)) :] == ids(not_held_out(traces))
    assert list(learner._state.replay_buffer.held_out_ids)[-len(kept) :] == ids(kept)
    assert (len(house.fitted), all(map(torch.equal, weights(learner), before))) == (fits, True)
    assert {path.name: path.stat().st_mtime_ns for path in trained.rglob("trainer.pt")} == files
    beat = house.board.heartbeats()[member]
    assert (beat.kind, beat.learn, beat.learn_reason) == ("rested", "rest", report.decision.reason)
    assert (beat.life.traces["rested"], beat.life.rests) == (counts.acked["rested"], 3)
    assert report.why == report.decision.reason
    assert sentence(report.decision.reason) in caplog.text

    strange = house.send(40)  # served by the initial draft: hardly anything is accepted
    began_at = time.time()
    report = learner.learn_once()
    assert (report.kind, report.decision.choice) == (LearningKind.LEARNED, LearnChoice.LEARN)
    assert report.decision.reason.code in {ReasonCode.ACCEPTED_FELL, ReasonCode.UNEXPLORED}
    assert house.fitted[-1] == ids(not_held_out(strange))
    assert set(ids(not_held_out(traces))) <= set(house.replayed[-1])
    beat = house.board.heartbeats()[member]
    assert (beat.kind, beat.learn, beat.learn_reason) == ("learned", "learn", report.decision.reason)
    record = json.loads((house.pending / f"v{report.version:06d}.json").read_text())
    assert record["params"]["learn_reason"] == sentence(report.decision.reason)
    assert f"({sentence(report.decision.reason)})" in caplog.text
    drifts = counters_of(beat.counters).learner
    assert drifts.drifts == 1
    assert began_at <= drifts.drifted_at <= time.time()


def test_a_restarted_learner_keeps_resting_with_the_state_of_the_old_one(house, rested):
    learner, _ = rested
    restarted = house.learner(**DRIFT)
    assert restarted.learn_once().kind is LearningKind.IDLE
    before, after = learner._state, restarted._state
    assert after.schedule.state() == before.schedule.state()
    assert (after.notes, before.notes.rounds_rested) == (before.notes, 2)
    assert [entry.entry_id for entry in after.replay_buffer] == [entry.entry_id for entry in before.replay_buffer]
    assert after.replay_buffer.held_out_ids == before.replay_buffer.held_out_ids
    known_traffic(house)
    assert restarted.learn_once().kind is LearningKind.RESTED
    house.send(40)
    assert restarted.learn_once().kind is LearningKind.LEARNED


@pytest.mark.usefixtures("fearless")
def test_killed_while_resting_nothing_is_counted_or_observed_twice(house, rested, monkeypatch):
    learner, _ = rested
    ack = house.buffer.ack
    for number, died_at in enumerate(("rested", "held_out", "notes"), 1):
        counted = dict(house.buffer.counts().acked)
        traces = known_traffic(house)
        with monkeypatch.context() as patched:
            patched.setattr(
                house.buffer, "ack", lambda of, outcome, at=died_at: die() if outcome == at else ack(of, outcome)
            )
            if died_at == "notes":
                patched.setattr(checkpoint, "save_notes", die)
            with pytest.raises(DiedError):
                learner.learn_once()
        house.let_claims_lapse()
        learner = house.learner(**DRIFT)  # another process
        learner.learn_once()
        counts, kept = house.buffer.counts(), len(held_out(traces))
        assert counts.pending == 0
        assert counts.acked == counted | {
            "rested": counted["rested"] + BATCH - kept,
            "held_out": counted["held_out"] + kept,
        }
        window = [entry.trace.trace_id for entry in learner._state.replay_buffer]
        assert len(set(window)) == len(window)
        # The schedule observed each request once: as many as came since the rest began.
        assert len(learner._state.schedule.state()["latest"]) == (2 + number) * BATCH
        assert learner._state.notes.rounds_rested == 2 + number


def test_never_is_a_baseline_without_updates_and_learning_can_be_allowed_again(house):
    learner = house.learner(learn="never")
    before = None
    for _ in range(3):
        traces = house.send()
        assert learner.learn_once().kind is LearningKind.RESTED
        before = before or weights(learner)
    assert all(map(torch.equal, weights(learner), before))
    assert (house.fitted, house.board.read().live, set(house.board.read().rows)) == ([], 0, {0})
    assert set(house.buffer.counts().acked) == {"rested", "held_out"}
    allowed = house.learner()
    house.send()
    assert allowed.learn_once().kind is LearningKind.LEARNED
    assert set(ids(not_held_out(traces))) <= set(house.replayed[0])


def test_a_rested_trace_that_no_training_survives_costs_no_other_trace(house, monkeypatch):
    learner = house.learner(learn="never")
    poison = ids(not_held_out(house.send()))[0]
    learner.learn_once()
    fit, failed = DraftTrainer.fit, 0
    monkeypatch.setattr(
        DraftTrainer,
        "fit",
        lambda self, fresh, window, *more: die() if poison in ids(window) else fit(self, fresh, window, *more),
    )
    learner, sent = house.learner(min_new_traces=1, replay_traces=60), []
    for _ in range(4):
        sent += house.send()
        for _ in range(8):
            try:
                learner.learn_once()
            except DiedError:
                failed += 1
    counts = house.buffer.counts()
    assert failed == 3  # each time it was replayed, until sixty newer traces had pushed it out
    assert (counts.dead_lettered, counts.pending) == (0, 0)
    assert counts.acked["learned"] == len(sent) - len(held_out(sent))
    assert poison not in [entry.trace.trace_id for entry in learner._state.replay_buffer]


def test_drafts_that_the_gate_promotes_and_serving_rolls_back_end_in_a_rest(house, monkeypatch):
    learner = house.learner(**{**DRIFT, "passes": 2})
    for _ in range(4):
        house.send()
        learner.learn_once()
    decide_all(monkeypatch, Verdict.PROMOTE)
    kinds = []
    for _ in range(4):
        known_traffic(house)
        report = learner.learn_once()
        kinds.append(report.kind)
        if report.version is not None:
            house.board.roll_back("canary", "accept far less", report.version)
    assert LearningKind.LEARNED in kinds
    assert kinds[-1] is LearningKind.RESTED
