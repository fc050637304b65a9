"""A learner that follows a moving target: what it trains on, what judges, what is recorded, what survives its death."""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from learner_traffic import BATCH, held_out, ids, not_held_out
from paceline.buffer.board.reason import ReasonCode, because
from paceline.buffer.stream.trace import DraftTrace
from paceline.learner.delivery import delivery
from paceline.learner.judging import line_judge
from paceline.learner.judging.replay import replay_traces
from paceline.learner.round.learning_report import LearningKind, LearningReport
from paceline.learner.state import checkpoint
from paceline.learner.training import trainer
from paceline.policies.acceptance import Tally, replayed_tally
from paceline.policies.promotion import Measured, Promotion, Verdict
from paceline.policies.target_history import SET_BACK_AFTER

FOLLOW = {"target_version": "follow"}
EAGER = {**FOLLOW, "learn": "always", "passes": 4}
VERSIONS = 12


def rollouts(house: Any, version: int, count: int = BATCH, **changes: object) -> list[DraftTrace]:
    """Traces of one step of a run, served by the live draft: the target moves from steps of 5 to steps of 7."""
    live = house.board.read().live
    weights = house.config.versions_dir / f"v{live:06d}" if live else None
    traces = []
    for _ in range(count):
        stride = 7 if house.sent * 7 % VERSIONS < version else 5
        traces += house.send(
            1, weights=weights, draft_version=live or 0, stride=stride, target_version=str(version), **changes
        )
    return traces


def is_last(versions: Sequence[int], version: int) -> list[str]:
    """Names of the last three of `versions`, oldest first, and none after `version`."""
    return [str(known) for known in versions if version - 2 <= known <= version]


@pytest.mark.rollouts
@pytest.mark.guarantee("target-followed")
def test_a_learner_started_once_follows_twelve_versions_of_the_target(house) -> None:
    learner, steps, first_steps, frozen = house.learner(**EAGER), 0, [], None
    learner.learn_once()
    trained = learner._state.trainer
    for version in range(VERSIONS):
        rounds = sum(len(trace.rounds) for trace in rollouts(house, version))
        report = learner.learn_once()
        assert report.kind is LearningKind.LEARNED
        # What was served is replayed to the token under every version of the target.
        assert (report.calibration.equal, report.calibration.compared) == (rounds, rounds)
        steps += report.fit.steps
        assert report.fit.steps > 0
        state, row = learner._state, house.board.read().rows[report.version]
        assert (state.trainer is trained, state.notes.optimiser_steps) == (True, steps)
        assert (state.notes.rounds_trained, state.targets.newest) == (version + 1, str(version))
        assert (row.version.target_version, list(row.version.trained_targets)) == (
            str(version), is_last(range(VERSIONS), version)
        )  # fmt: skip
        record = json.loads((house.pending / f"v{report.version:06d}.json").read_text())
        assert record["params"]["trained_targets"] == ",".join(row.version.trained_targets)
        first_steps.append(record["first_step"])
        frozen = frozen or house.draft(report.version)
    assert first_steps == sorted(set(first_steps))
    assert house.board.read().live > 2
    assert house.buffer.counts().acked.keys() == {"learned", "held_out"}
    # It has learnt the target that it was led to: a draft that stayed with the first version accepts less.
    traces = rollouts(house, VERSIONS)
    frozen_length, length = (
        sum(map(replayed_tally, traces, replay_traces(draft, traces, 3)), Tally()).accept_length
        for draft in (frozen, trained.draft)
    )
    assert length > frozen_length + 0.2


@pytest.mark.rollouts
@pytest.mark.guarantee("target-followed")
def test_killed_and_started_again_between_versions_it_goes_on_as_if_it_had_not_been(house, tmp_path) -> None:
    lasting = type(house)(house.speculator, tmp_path / "lasting")
    reports: dict[str, list[LearningReport]] = {"lasting": [], "killed": []}
    learner = lasting.learner(**EAGER)
    for version in range(5):
        for name, one in (("lasting", lasting), ("killed", house)):
            rollouts(one, version)
            working = learner if name == "lasting" else house.learner(**EAGER)
            reports[name].append(working.learn_once())
        assert working._state.targets.state() == learner._state.targets.state()
        assert working._state.notes == learner._state.notes
        pairs = zip(working._state.trainer.draft.parameters(), learner._state.trainer.draft.parameters(), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    outcomes, grounds = (
        {name: [of(report) for report in found] for name, found in reports.items()}
        for of in (lambda report: report.outcomes, lambda report: report.promotion.ground)
    )
    assert outcomes["killed"] == outcomes["lasting"]
    assert grounds["killed"] == grounds["lasting"]


@pytest.mark.usefixtures("fearless")
def test_killed_in_the_round_that_saw_a_new_version_it_sees_it_again(house, monkeypatch) -> None:
    rollouts(house, 4)
    house.learner(**EAGER).learn_once()
    rollouts(house, 5)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            house.learner(**EAGER).learn_once()
    assert checkpoint.load(house.config.checkpoints_dir)[0].targets["first_seen"].keys() == {"4"}
    house.let_claims_lapse()
    restarted = house.learner(**EAGER)
    report = restarted.learn_once()
    assert (report.kind, restarted._state.targets.trained) == (LearningKind.LEARNED, ("4", "5"))


#: Versions of the traces of one claim, in the order of the stream: a replica is late, and a request ends long after.
CLAIMS = [["3"] * 24, ["3", "4"] * 12, [*["4"] * 8, *["5"] * 7, "3", *["5"] * 7, "2"], ["6", "4", "5", "8"] * 6]


@pytest.mark.guarantee("target-followed")
def test_every_trace_counts_by_the_age_of_the_version_that_verified_it(house, monkeypatch) -> None:
    """No trace of one version is learnt as another's: weights and outcomes are those of a slow count."""
    drawn: list[tuple[Counter[str], Counter[str], Any]] = []
    draw = trainer.draw_batches

    def noted(fresh: Any, replay: Any, **named: Any) -> Any:
        batches = list(draw(fresh, replay, **named))
        names = Counter(trace.trace_id for batch in batches for trace in batch)
        drawn.append((Counter({name: names[name] for name in ids(fresh)}), ids(replay), named["log_weights_N"]))
        return iter(batches)

    monkeypatch.setattr(trainer, "draw_batches", noted)
    learner, seen, version_of, refused = house.learner(**EAGER), set[str](), {}, 0
    for claim in CLAIMS:
        traces = [house.send(1, target_version=version)[0] for version in claim]
        version_of |= {trace.trace_id: trace.target_version for trace in traces}
        seen |= set(claim)
        ages = {str(version): age for age, version in enumerate(sorted(map(int, seen), reverse=True)) if age <= 2}
        drawn.clear()
        report = learner.learn_once()
        kept = [trace for trace in traces if trace.target_version in ages]
        expected = {"learned": len(not_held_out(kept)), "held_out": len(held_out(kept))}
        expected |= {"other_target_version": len(traces) - len(kept)} if len(kept) < len(traces) else {}
        refused += len(traces) - len(kept)
        assert report.outcomes == expected
        for often, replayed, log_weights in drawn:
            assert {version_of[name] for name in (*often, *replayed)} <= ages.keys()
            assert all(abs(count - 4 * 0.5 ** ages[version_of[name]]) < 1 for name, count in often.items())
            weights = [0.5 ** ages[version_of[name]] for name in replayed]
            found = [1.0] * len(weights) if log_weights is None else log_weights.exp().tolist()
            assert found == pytest.approx(weights)
        assert set().union(*(often for often, _, _ in drawn)) == set(ids(not_held_out(kept)))
        assert {entry.trace.target_version for entry in learner._state.replay_buffer} <= ages.keys()
    assert house.buffer.counts().acked["other_target_version"] == refused >= 3
    assert learner._state.targets.trained == ("5", "6", "8")


def test_a_restart_reads_back_only_what_is_young_enough(house) -> None:
    learner = house.learner(**EAGER)
    for version in range(4):
        traces = rollouts(house, version, 12)
        learner.learn_once()
    restarted = house.learner(**EAGER)
    assert restarted.learn_once().kind is LearningKind.IDLE
    before, after = ([e.trace.trace_id for e in one._state.replay_buffer] for one in (learner, restarted))
    assert after == before
    assert {entry.trace.target_version for entry in restarted._state.replay_buffer} == {"1", "2", "3"}
    assert set(ids(not_held_out(traces))) <= set(after)


def test_before_the_first_trace_no_version_is_known_and_none_is_shown(house) -> None:
    learner = house.learner(**FOLLOW)
    assert learner.learn_once().kind is LearningKind.IDLE
    assert house.board.read().rows[0].version.target_version == ""
    beat = house.board.heartbeats()[f"learner:{house.config.name}"]
    assert (beat.life.target_version, beat.life.trained_targets) == ("", [])
    house.send(target_version="default")
    report = learner.learn_once()
    assert house.board.read().rows[report.version].version.target_version == "default"
    beat = house.board.heartbeats()[f"learner:{house.config.name}"]
    assert (beat.life.target_version, beat.life.trained_targets) == ("default", ["default"])


def test_a_learner_without_its_checkpoint_finds_the_versions_in_the_stream(house) -> None:
    learner = house.learner(**EAGER)
    for version in range(3):
        rollouts(house, version, 12)
        learner.learn_once()
    for path in sorted(house.config.checkpoints_dir.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    restarted = house.learner(**EAGER)
    restarted.learn_once()
    assert restarted._state.targets.trained == ("0", "1", "2")
    assert len(restarted._state.replay_buffer) == len(learner._state.replay_buffer)


def test_another_target_is_followed_from_its_own_first_version(house, caplog) -> None:
    caplog.set_level(logging.INFO)
    learner = house.learner(**EAGER)
    house.send(target_version="41")
    learner.learn_once()
    house.send(12, target_version="2", target="other")
    house.send(12, target_version="42")
    report = house.learner(**EAGER, target="other").learn_once()
    assert report.outcomes["other_target_version"] == 12
    assert "the target has version 41; trained on are ('41',)" in caplog.text
    assert "the target has version 2; trained on are ('2',)" in caplog.text


def test_a_run_that_begins_again_is_refused_for_a_hundred_traces_and_then_followed(house) -> None:
    learner = house.learner(**EAGER)
    for version in ("498", "499", "500"):
        house.send(8, target_version=version)
        learner.learn_once()
    before = house.buffer.counts().acked["learned"]
    house.send(SET_BACK_AFTER - 1, target_version="0")
    assert learner.learn_once().why == "every claimed trace was refused"
    traces = house.send(8, target_version="0")
    assert learner.learn_once().kind is LearningKind.LEARNED
    acked = house.buffer.counts().acked
    assert (acked["other_target_version"], acked["learned"] - before) == (99, len(not_held_out(traces)))
    assert {entry.trace.target_version for entry in learner._state.replay_buffer} == {"0"}


def test_requests_of_every_trained_version_judge_and_the_record_says_which(house, monkeypatch) -> None:
    """One step of 64 requests, of which a third was verified before the last two updates."""
    looked, is_ruined = [], line_judge.is_ruined
    monkeypatch.setattr(
        line_judge, "is_ruined", lambda pairs, rules: looked.append(len(pairs)) or is_ruined(pairs, rules)
    )
    learner = house.learner(**{**EAGER, "passes": 8})
    rollouts(house, 5)
    learner.learn_once()
    traces = [trace for version, count in ((5, 21), (6, 21), (7, 22)) for trace in rollouts(house, version, count)]
    report = learner.learn_once()
    judged, version = report.promotion.judged_on, house.board.read().rows[report.version].version
    # All but those of the first block while the line is the live version itself.
    is_live = house.board.read().rows[1].state.value in {"live", "retired"}
    left_out = 32 if is_live and report.promotion.reference == 1 else 0
    assert judged.requests == report.promotion.measured.requests == 64 - left_out
    assert sum(judged.targets.values()) == judged.requests
    assert set(judged.targets) == {"5", "6", "7"} if not left_out else {"6", "7"}
    assert looked[-1] == len(held_out(traces))
    assert (version.judged_on, version.trained_targets, version.target_version) == (judged, ("5", "6", "7"), "7")
    assert report.promotion.reason.figures.items() >= report.promotion.prediction.figures.items()


DRIFT = {**FOLLOW, "rest_after_rounds": 2, "cool_down_s": 0.0, "passes": 6}


@pytest.mark.rollouts
def test_a_moving_target_wakes_a_resting_learner_only_when_less_is_accepted(house, monkeypatch) -> None:
    learner = house.learner(**DRIFT)
    for _ in range(12):  # no round is flat before a draft is better and after it
        house.send(target_version="1")
        if learner.learn_once().promotion.verdict is Verdict.PROMOTE:
            break
    live = house.board.read().live
    assert live > 0
    refused = Promotion(
        verdict=Verdict.REFUSE,
        reason=because(ReasonCode.NOT_PROVEN),
        measured=Measured(
            gain=0.1, interval=(0.0, 0.2), line_accept_length=2.1, reference_accept_length=2.0, requests=9
        ),
    )
    monkeypatch.setattr(delivery, "judge", lambda *_, **__: refused)
    weights = house.config.versions_dir / f"v{live:06d}"
    kinds = []
    for version in range(2, 14):
        house.send(weights=weights, draft_version=live, target_version=str(version))
        kinds.append(learner.learn_once().kind)
    assert kinds == [LearningKind.LEARNED] * 2 + [LearningKind.RESTED] * 10
    assert learner._state.targets.trained == ("11", "12", "13")
    assert {entry.trace.target_version for entry in learner._state.replay_buffer} <= {"11", "12", "13"}
    # The same draft on a target that has moved away from it.
    house.send(40, weights=weights, draft_version=live, target_version="14", stride=7)
    report = learner.learn_once()
    assert report.kind is LearningKind.LEARNED
    assert report.decision.reason.code in {ReasonCode.ACCEPTED_FELL, ReasonCode.UNEXPLORED}


@pytest.mark.parametrize("version", ["follow", "13"])
def test_a_version_that_is_named_stays_whatever_traces_say(house, version: str) -> None:
    house.send(12, target_version="13")
    house.send(12, target_version="14")
    learner = house.learner(target_version=version)
    report = learner.learn_once()
    trained = {"follow": ("13", "14"), "13": ("13",)}[version]
    assert learner._state.targets.trained == trained
    assert report.outcomes.get("other_target_version", 0) == (0 if version == "follow" else 12)
    assert learner._state.notes.targets.keys() == (set() if version == "13" else learner._state.targets.state().keys())


@pytest.mark.guarantee("target-followed")
def test_a_target_that_was_set_back_is_followed_as_soon_by_learners_that_are_started_for_every_claim(house) -> None:
    settings = {"learn": "always", "passes": 1, "holdout_share": 0.001, "target_version": "follow"}
    learner = house.learner(**settings)
    for version in ("7", "8", "9"):
        house.send(8, target_version=version)
        learner.learn_once()
    seen = []
    for _ in range(3):
        house.send(40, target_version="0")
        learner = house.learner(**settings)
        seen.append((learner.learn_once().outcomes.get("other_target_version", 0), learner._state.targets.newest))
    assert seen == [(40, "9"), (40, "9"), (0, "0")]
