"""A learner on a real buffer, board and trainer: what it acks, what it trains on, what survives its death."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from learner_traffic import BATCH, held_out, ids, not_held_out
from paceline.buffer.board.counters import MODEL_FREE
from paceline.buffer.board.member_status import MemberStatus, RequestSaid, StretchesSaid
from paceline.buffer.board.reason import ReasonCode, because
from paceline.buffer.board.version import VersionState
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BoardConflict, BufferUnavailable, LeaseLost
from paceline.buffer.stream.trace import DraftTrace, TreeShape, VerdictRule
from paceline.buffer.stream.trace_buffer import MAX_DELIVERIES
from paceline.buffer.stream.trace_codec import encode_trace
from paceline.learner.delivery import delivery
from paceline.learner.delivery.mlflow_registry import Registry
from paceline.learner.heartbeat import ALIVE_S
from paceline.learner.judging import paired_replay
from paceline.learner.judging.replay import replay_traces
from paceline.learner.round import learning_round
from paceline.learner.round.learning_report import LearningKind
from paceline.learner.state import checkpoint
from paceline.learner.training import trainer
from paceline.learner.training.first_position import FirstPosition
from paceline.learner.training.trainer import DraftTrainer
from paceline.policies.acceptance import Tally, replayed_tally
from paceline.policies.promotion import Measured, Promotion, Verdict
from said import said_by
from twins import memory_stream as memory
from twins.memory_board import MemoryVersionBoard
from twins.memory_stream import MemoryTraceBuffer
from waiting import until

MEASURED = Measured(gain=0.1, interval=(0.0, 0.2), line_accept_length=2.1, reference_accept_length=2.0, requests=9)


class DiedError(Exception):
    """The process ended here."""


SAID = because(ReasonCode.PROVEN, odds=12)


def die(*_: object, **__: object) -> None:
    raise DiedError


def deciding(verdict: Verdict) -> Callable[..., Promotion]:
    return lambda *_, **__: Promotion(verdict=verdict, reason=SAID, measured=MEASURED)


def test_a_learning_round_acks_every_trace_with_one_outcome_and_the_counts_add_up(house) -> None:
    traces = house.send()
    no_features = np.zeros((0, 48), np.float32)
    tokens = traces[0].tokens.copy()
    tokens[0] = 32  # the vocabulary ends at 31
    strangers = [
        replace(traces[0], trace_id="x1", target="other"),
        replace(traces[0], trace_id="x2", target_version="2"),
        replace(traces[0], trace_id="x3", features=no_features),
        replace(traces[0], trace_id="x4", tokens=tokens),
        replace(traces[0], trace_id="x5", features=traces[0].features[:, :-1]),
    ]
    house.buffer.append(strangers)
    house.send_again(traces[1])
    report = house.learner().learn_once()
    kept = len(held_out(traces))
    expected = {"learned": BATCH - kept, "held_out": kept}
    expected |= {"other_target_version": 2, "duplicate": 1, "no_features": 1, "incompatible": 2}
    assert kept >= 3
    assert report.kind is LearningKind.LEARNED
    assert report.outcomes == expected
    assert (house.buffer.counts().acked, house.buffer.counts().pending) == (expected, 0)


@pytest.mark.guarantee("held-out-requests")
def test_held_out_requests_are_never_trained_on(house) -> None:
    learner, traces = house.learner(), []
    for _ in range(3):
        traces += house.send()
        learner.learn_once()
    trained = {name for fit in (*house.fitted, *house.replayed) for name in fit}
    assert trained == set(ids(not_held_out(traces)))
    assert [len(window) for window in house.replayed] == [0, len(house.fitted[0]), 30]


def test_a_better_draft_goes_live_with_the_lengths_of_the_requests_that_judged_it(house) -> None:
    learner = house.learner(passes=12)
    for _ in range(3):
        traces = house.send()
        reference = learner._state.notes.line["reference"] if learner._state else None
        report = learner.learn_once()
    assert report.promotion.verdict is Verdict.PROMOTE
    assert report.promotion.reference == reference
    number = report.version
    state = house.board.read()
    assert state.live == number
    assert state.rows[number].why == report.promotion.reason
    assert state.rows[number].version.parent == number - 1
    runs = replay_traces(house.draft(reference), traces, 3)
    scores = state.rows[number].version.scores
    assert scores["reference_accept_length"] == sum(map(replayed_tally, traces, runs), Tally()).accept_length
    assert scores["judged_accept_length"] - scores["reference_accept_length"] == scores["gain"]
    assert scores["gain"] >= scores["gain_low"] > 0


def test_with_too_few_traces_a_learning_round_is_idle_and_claims_nothing(house) -> None:
    house.send(7)
    report = house.learner().learn_once()
    assert (report.kind, report.why) == (LearningKind.IDLE, "7 traces pending, 8 needed")
    assert len(house.buffer.claim("somebody", 99)) == 7
    assert house.fitted == []
    assert house.board.read().live == 0


def test_only_one_learner_of_a_speculator_works_at_a_time(house) -> None:
    house.send()
    with house.board.lease("learner:default", 60.0) as is_held:
        report = house.learner().learn_once()
    assert is_held
    assert (report.kind, report.why) == (LearningKind.IDLE, "another learner of default is at work")
    assert house.buffer.counts().pending == BATCH
    assert house.board.heartbeats()[f"learner:{house.config.name}"].kind == "idle"


@pytest.mark.parametrize("mode", ["always", "never"])
def test_learners_that_take_turns_continue_from_each_others_learning_rounds(house, mode: str) -> None:
    pair = [house.learner(name=name, learn=mode) for name in ("a", "b")]
    kinds = []
    for number in range(6):
        house.send()
        kinds.append(pair[number % 2].learn_once().kind)
    assert set(kinds) == {LearningKind.LEARNED if mode == "always" else LearningKind.RESTED}
    notes, _ = checkpoint.load(house.config.checkpoints_dir)
    assert (notes.rounds_trained, notes.rounds_rested) == ((6, 0) if mode == "always" else (0, 6))
    assert house.buffer.counts().pending == 0
    assert house.learner(learn="always").learn_once().kind is LearningKind.IDLE  # a new learner continues from there


def test_the_folders_number_overrides_the_notes_and_notes_never_go_to_another_checkpoint(house) -> None:
    house.send()
    house.learner(learn="always").learn_once()
    folder = house.config.checkpoints_dir
    notes, _ = checkpoint.load(folder)
    stored = {"layout": 1, **asdict(replace(notes, rounds_trained=0))}
    (folder / "round-00000001" / "notes.json").write_text(json.dumps(stored))
    assert checkpoint.load(folder)[0].rounds_trained == 1
    with pytest.raises(FileNotFoundError, match="as the newest checkpoint, expected this one"):
        checkpoint.save_notes(folder, replace(notes, rounds_trained=0))


def test_a_refused_candidate_is_on_the_board_and_the_trainer_continues_from_it(
    house, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "judge", deciding(Verdict.REFUSE))
    learner = house.learner()
    for _ in range(2):
        house.send()
        learner.learn_once()
    rows = house.board.read().rows
    assert house.board.read().live == 0
    assert [(rows[n].state, rows[n].why, rows[n].version.parent) for n in (1, 2)] == [
        (VersionState.REFUSED, SAID, 0),
        (VersionState.REFUSED, SAID, 1),
    ]
    assert house.draft(1).fc.weight.tolist() != house.draft(2).fc.weight.tolist()


def test_without_a_live_version_the_gate_waits_for_an_operator_and_nothing_is_published(house) -> None:
    learner = house.learner()
    learner.learn_once()
    house.board.move(0, VersionState.ROLLED_BACK, "operator:ada", "off")
    house.send()
    report = learner.learn_once()
    assert report.why == because(ReasonCode.NO_LIVE)
    assert (report.promotion.verdict, report.version) == (Verdict.WAIT, None)
    assert set(house.board.read().rows) == {0}
    assert house.buffer.counts().pending == 0


def test_a_live_version_whose_weights_are_gone_is_not_compared_with(house) -> None:
    learner = house.learner()
    learner.learn_once()
    (house.config.versions_dir / "v000000" / "model.safetensors").write_bytes(b"other bytes")
    house.send()
    report = learner.learn_once()
    assert (report.why.code, report.why.figures["live"]) == (ReasonCode.LIVE_UNREADABLE, 0)
    assert report.calibration.compared == 0


@pytest.mark.guarantee("alarm-weights-gone")
def test_a_live_version_whose_folder_was_removed_raises_an_alarm_until_it_is_back(house, tmp_path) -> None:
    def standing() -> list[str]:
        return [alarm.name for alarm in house.board.heartbeats()[f"learner:{house.config.name}"].standing_alarms]

    house.learner().learn_once()
    (house.config.versions_dir / "v000000").rename(tmp_path / "away")
    house.send()
    report = house.learner().learn_once()
    assert (report.kind, report.version, standing()) == (LearningKind.LEARNED, None, ["weights_gone"])
    assert report.alarm.figures["live"] == 0
    (tmp_path / "away").rename(house.config.versions_dir / "v000000")
    house.send()
    assert house.learner().learn_once().version is not None
    assert standing() == []


def test_an_operator_who_moves_live_while_a_candidate_is_judged_overrides_the_gate(
    house, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "judge", deciding(Verdict.PROMOTE))
    learner = house.learner()
    house.send()
    learner.learn_once()
    judge_candidate = delivery.judge_candidate

    def rolled_back_meanwhile(*arguments: Any, **named: Any) -> Promotion:
        house.board.roll_back("operator:ada", "served worse")
        return judge_candidate(*arguments, **named)

    monkeypatch.setattr(learning_round, "judge_candidate", rolled_back_meanwhile)
    house.send()
    learner.learn_once()
    state = house.board.read()
    assert (state.live, state.rows[2].state) == (0, VersionState.REFUSED)
    assert state.rows[2].why == SAID.but(ReasonCode.LIVE_MOVED, judged=1, live=0)


def beat_alone(board: MemoryVersionBoard, turn_s: float) -> None:
    """One replica, which gives a canary turns of `turn_s` seconds; 0: none."""
    board.beat("replica:a", MemberStatus(capture="on", swap="on", canary_window_s=turn_s), 1e9)


@pytest.mark.parametrize("turn_s", [0.0, 30.0])
@pytest.mark.parametrize("judged", [0, BATCH - 1], ids=["none", "fewer than half"])
def test_where_replay_cannot_judge_most_requests_the_canary_decides_alone(house, turn_s: float, judged: int) -> None:
    beat_alone(house.board, turn_s)
    house.send(verdict_rule=VerdictRule.BLOCK)
    house.send(judged)
    report = house.learner(canary_limit_s=1e12).learn_once()
    assert report.promotion is not None
    assert report.promotion.verdict is Verdict.UNJUDGED
    expected = because(ReasonCode.UNJUDGED, requests=BATCH + judged, left_out=f"{BATCH} by block")
    assert report.promotion.reason.figures.items() >= expected.figures.items()
    row, live = house.board.read().rows[1], house.board.read().live
    assert (row.state, live) == ((VersionState.CANARY if turn_s else VersionState.REFUSED), 0)
    assert row.version.scores == {}
    assert row.why == (report.promotion.reason if turn_s else report.promotion.reason.but(ReasonCode.NO_CANARY))
    told = said_by(report).judged
    assert (told.verdict, told.ground) == ("unjudged", "")
    assert told.line_accept_length is told.reference_accept_length is None


def test_with_enough_requests_that_replay_can_judge_the_others_change_nothing(house) -> None:
    house.send(BATCH - 3, verdict_rule=VerdictRule.BLOCK)
    house.send()
    report = house.learner(min_new_traces=2 * BATCH - 3).learn_once()
    # In the first block the line is the live version itself.
    in_first = (2 * BATCH - 2) // 2 - (BATCH - 3)
    assert report.promotion.measured.requests == report.promotion.judged_on.requests == BATCH - in_first
    assert report.promotion.reason.figures["left_out"] == f"{BATCH - 3} by block"
    assert report.promotion.verdict in {Verdict.PROMOTE, Verdict.REFUSE}


@pytest.mark.parametrize(
    ("tree", "turn_s", "drafter"),
    [(None, 0.0, 0), (None, 30.0, 0), (TreeShape(3, 4, 8), 0.0, 0), (None, 0.0, MODEL_FREE)],
)
def test_a_winner_on_trees_of_an_unknown_shape_is_never_live_without_a_canary(
    house, monkeypatch: pytest.MonkeyPatch, tree: TreeShape | None, turn_s: float, drafter: int
) -> None:
    beat_alone(house.board, turn_s)
    monkeypatch.setattr(delivery, "judge", deciding(Verdict.PROMOTE))
    house.send(is_tree=True, tree=tree, replay_exact=False, draft_version=drafter)
    house.learner(canary_limit_s=1e12).learn_once()
    expected = VersionState.CANARY if turn_s else VersionState.REFUSED
    state = house.board.read()
    is_odd = tree is None and drafter != MODEL_FREE
    assert (state.rows[1].state, state.live) == ((expected, 0) if is_odd else (VersionState.LIVE, 1))


def test_with_two_replicas_a_winner_is_canary_first_and_traces_stay_pending_until_it_is_decided(
    house, monkeypatch: pytest.MonkeyPatch
) -> None:
    for replica in ("a", "b"):
        served = StretchesSaid(version=0, ended=[RequestSaid("ab", [], 3, 3)])
        house.board.beat(f"replica:{replica}", MemberStatus(capture="on", swap="on", stretches=served), 1e9)
    monkeypatch.setattr(delivery, "judge", deciding(Verdict.PROMOTE))
    learner = house.learner(canary_limit_s=1e12)  # the board's clock and the learner's are years apart here
    house.send()
    learner.learn_once()
    state = house.board.read()
    assert (state.live, state.canary, state.rows[1].replica) == (0, 1, "b")
    house.send()
    report = learner.learn_once()
    assert (report.kind, report.why) == (
        LearningKind.IDLE,
        "version 1 is canary; traces wait until it is decided",
    )
    house.board.move(1, VersionState.LIVE, "replica:b", "better")
    assert learner.learn_once().kind is LearningKind.LEARNED


def test_the_gate_compares_with_the_version_an_operator_made_live(house) -> None:
    learner = house.learner(passes=12)
    for _ in range(3):
        house.send()
        learner.learn_once()
    assert learner._state.notes.line["reference"] > 0
    house.board.move(0, VersionState.LIVE, "operator:ada", "back to the start")
    traces = house.send()
    report = learner.learn_once()
    runs = replay_traces(house.draft(0), traces, 3)
    expected = sum(map(replayed_tally, traces, runs), Tally()).accept_length
    assert report.promotion.reference == 0
    assert report.promotion.measured.reference_accept_length == expected


def test_a_candidate_that_somebody_else_moved_first_stays_where_it_is(house, monkeypatch: pytest.MonkeyPatch) -> None:
    def conflict(*_: object, **__: object) -> None:
        raise BoardConflict("taken")

    monkeypatch.setattr(delivery, "judge", deciding(Verdict.PROMOTE))
    learner = house.learner()
    learner.learn_once()
    house.send()
    monkeypatch.setattr(house.board, "move", conflict)
    assert learner.learn_once().version == 1
    assert house.buffer.counts().pending == 0


def test_a_server_that_drafts_with_other_weights_shows_in_the_calibration(house) -> None:
    learner = house.learner(passes=12)
    for _ in range(3):
        house.send()
        learner.learn_once()
    live = house.config.versions_dir / f"v{house.board.read().live:06d}"
    # Served by the live weights, but stamped with the version the server was started with.
    rounds = sum(len(trace.rounds) for trace in house.send(weights=live, draft_version=0))
    calibration = learner.learn_once().calibration
    assert calibration.compared == rounds
    assert calibration.equal < 0.7 * rounds
    assert calibration.gap < -0.5


def test_traces_that_cannot_be_replayed_exactly_are_not_compared(house) -> None:
    house.send(12, replay_exact=False)
    house.send(12, draft_version=77)
    assert house.learner().learn_once().calibration.compared == 0


def test_the_trainer_takes_over_the_draft_steps_of_the_server(house) -> None:
    learner = house.learner()
    house.send()
    learner.learn_once()
    house.send(steps=5)
    learner.learn_once()
    house.send(steps=7, draft_version=MODEL_FREE)  # as deep as no draft that learns is
    learner.learn_once()
    assert learner._state.trainer.plan.steps == 5
    assert house.learner(draft_steps=2).learn_once().kind is LearningKind.IDLE
    restarted = house.learner()
    restarted.learn_once()
    assert restarted._state.trainer.plan.steps == 5


def test_a_warm_draft_between_the_two_thresholds_stays_warm_when_the_server_drafts_further(
    house, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, kinds = house.learner(), []
    for share, steps in ((0.5, 3), (0.45, 3), (0.45, 5), (0.39, 4), (0.45, 3)):
        measured = FirstPosition(accept=share, attainable=1.0)
        monkeypatch.setattr(trainer, "first_position", lambda *_, measured=measured: measured)
        house.send(steps=steps)
        fit = learner.learn_once().fit
        assert fit is not None
        kinds.append((learner._state.trainer.plan.steps, fit.is_cold))
    assert kinds == [(3, False), (3, False), (5, False), (4, True), (3, True)]


@pytest.mark.usefixtures("fearless")
@pytest.mark.guarantee("delivered-twice")
def test_a_copy_of_a_trace_does_not_pass_for_it_after_a_round_that_died(house, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = house.send()
    house.send_again(*traces[:6])
    with monkeypatch.context() as patched:
        patched.setattr(learning_round, "judge_candidate", die)
        with pytest.raises(DiedError):
            house.learner().learn_once()
    house.let_claims_lapse()
    kept = len(held_out(traces))
    assert house.learner().learn_once().outcomes == {"learned": BATCH - kept, "held_out": kept, "duplicate": 6}


@pytest.mark.parametrize("died_at", ["learned", "held_out"])
def test_killed_between_checkpoint_and_ack_nothing_is_learned_or_counted_twice(
    house, monkeypatch: pytest.MonkeyPatch, died_at: str
) -> None:
    traces = house.send()
    ack = house.buffer.ack
    with monkeypatch.context() as patched:
        patched.setattr(house.buffer, "ack", lambda ids, outcome: die() if outcome == died_at else ack(ids, outcome))
        with pytest.raises(DiedError):
            house.learner().learn_once()
    assert house.buffer.counts().pending >= 3
    # The next learner acks at its start, without waiting for the claims to lapse.
    restarted = house.learner()
    assert restarted.learn_once().kind is LearningKind.IDLE
    kept = len(held_out(traces))
    assert house.buffer.counts().acked == {"learned": BATCH - kept, "held_out": kept}
    house.let_claims_lapse()
    house.send()
    restarted.learn_once()
    assert [len(fit) for fit in house.fitted] == [BATCH - kept, len(house.fitted[1])]
    assert set(house.fitted[0]).isdisjoint(house.fitted[1])
    assert set(house.replayed[1]) == set(house.fitted[0])


@pytest.mark.usefixtures("fearless")
@pytest.mark.parametrize(
    ("place", "name", "shown"),
    [
        (delivery, "save_draft", {0}),
        (MemoryVersionBoard, "register", {0}),
        (MemoryVersionBoard, "move", {0, 1}),
        (DraftTrainer, "save", {0, 1}),
    ],
)
def test_killed_while_publishing_the_traces_come_again_and_no_half_version_is_seen(
    house, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, shown: set[int]
) -> None:
    monkeypatch.setattr(delivery, "judge", deciding(Verdict.PROMOTE))
    house.learner().learn_once()
    traces = house.send()
    with monkeypatch.context() as patched:
        patched.setattr(place, name, die)
        with pytest.raises(DiedError):
            house.learner().learn_once()
    assert set(house.board.read().rows) == shown
    assert house.buffer.counts().acked == {}
    house.let_claims_lapse()
    report = house.learner().learn_once()
    kept = len(held_out(traces))
    assert report.outcomes == {"learned": BATCH - kept, "held_out": kept}
    assert house.fitted[0] == house.fitted[1]
    assert house.replayed == [[], []]
    state = house.board.read()
    assert (report.version, state.live) == (2, 2)
    # From the same weights, over the same traces in the same order: the bytes that the lost learning round had.
    folders = sorted(path.name for path in house.config.versions_dir.iterdir())
    assert folders == (["v000000", "v000002"] if name == "save_draft" else ["v000000", "v000001", "v000002"])
    if 1 in shown:
        assert state.rows[1].version.sha256 == state.rows[2].version.sha256
        assert state.rows[1].state is (VersionState.REFUSED if name == "move" else VersionState.RETIRED)


def test_a_restarted_learner_has_the_state_of_the_old_one(house) -> None:
    learner, traces = house.learner(), []
    for _ in range(2):
        traces += house.send()
        learner.learn_once()
    house.send_again(*traces[-3:])
    before = learner._state
    restarted = house.learner()
    assert restarted.learn_once().kind is LearningKind.IDLE
    after = restarted._state
    assert [entry.entry_id for entry in after.replay_buffer] == [entry.entry_id for entry in before.replay_buffer]
    assert (
        list(after.replay_buffer.held_out_ids) == list(before.replay_buffer.held_out_ids) == ids(held_out(traces))[-10:]
    )
    assert after.notes == before.notes
    for ours, theirs in zip(after.trainer.draft.parameters(), before.trainer.draft.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    house.send()
    assert restarted.learn_once().outcomes["duplicate"] == 3


def test_a_learner_whose_learning_round_failed_starts_again_from_its_checkpoint(
    house, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = house.learner(min_new_traces=1)
    house.send()
    with monkeypatch.context() as patched:
        patched.setattr(learning_round, "judge_candidate", die)
        with pytest.raises(DiedError):
            learner.learn_once()
    for _ in range(4):  # a quarter at a time, without waiting for the claims to lapse
        learner.learn_once()
    assert sum(map(len, house.fitted[1:])) == len(house.fitted[0])
    assert [name for fit in house.fitted[1:] for name in fit] == house.fitted[0]
    assert house.buffer.counts().pending == 0
    assert learner._state.notes.rounds_trained == 4


@pytest.mark.guarantee("poison-trace")
def test_a_trace_that_no_round_survives_stops_nobody_and_its_neighbours_are_learnt(
    house, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = house.send(40)
    learnable = ids(not_held_out(traces))
    poison, fit, failed = learnable[20], DraftTrainer.fit, 0

    def poisoned(self: DraftTrainer, fresh: Sequence[DraftTrace], *others: Any) -> Any:
        return die() if poison in ids(fresh) else fit(self, fresh, *others)

    monkeypatch.setattr(DraftTrainer, "fit", poisoned)
    learner = house.learner(min_new_traces=1)
    for _ in range(30):
        try:
            learner.learn_once()
        except DiedError:
            failed += 1
    counts = house.buffer.counts()
    assert (failed, counts.pending) == (MAX_DELIVERIES, 0)
    assert counts.acked == {"learned": len(learnable) - 1, "held_out": len(held_out(traces))}
    assert house.buffer.dead_letters(9) == [
        ("delivered 5 times and never acked", encode_trace(next(t for t in traces if t.trace_id == poison)))
    ]


@pytest.mark.guarantee("poison-trace")
@pytest.mark.parametrize("reader", ["decoding", "scoring"])
def test_a_trace_that_its_reader_dies_of_outside_training_ends_alone_too(
    house, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    traces = house.send(40)
    failed, poison = 0, held_out(traces)[1] if reader == "decoding" else not_held_out(traces)[-2]
    if reader == "decoding":
        decode = memory.decode_trace
        monkeypatch.setattr(memory, "decode_trace", lambda raw: die() if raw == encode_trace(poison) else decode(raw))
    else:
        replay = paired_replay.replay_traces
        monkeypatch.setattr(
            paired_replay,
            "replay_traces",
            lambda draft, of, *more, **named: (
                die() if poison.trace_id in ids(of) else replay(draft, of, *more, **named)
            ),
        )
    for _ in range(40):
        try:
            house.learner(min_new_traces=1).learn_once()  # a new process every time
        except DiedError:
            failed += 1
            house.let_claims_lapse()
    counts = house.buffer.counts()
    assert (failed, counts.pending, counts.dead_lettered) == (MAX_DELIVERIES, 0, 1)
    assert sum(counts.acked.values()) == 39


def test_without_room_for_a_learning_round_nothing_is_claimed_however_often_it_is_tried(
    house, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.send()
    learner, usage = house.learner(), checkpoint.shutil.disk_usage
    learner.learn_once()
    traces = house.send()
    message = (
        r"/checkpoints/default: got 0 MiB free, expected at least \d+ MiB for what a learning round writes: make room; "
        r"until then traces stay pending\Z"
    )
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.shutil, "disk_usage", lambda path: usage(path)._replace(free=1 << 10))
        for _ in range(MAX_DELIVERIES + 2):
            with pytest.raises(OSError, match=message):
                learner.learn_once()
    assert house.buffer.counts().pending == BATCH
    assert sum(learner.learn_once().outcomes.values()) == len(traces)


def lose_lease(house) -> None:
    """As after a long suspension: another learner took the lease."""
    house.board._leases["learner:default"] = (house.clock.now + 60.0, object())


@pytest.mark.parametrize(
    ("place", "name", "shown"), [(learning_round, "judge_candidate", {0}), (delivery, "_carry_out", {0, 1})]
)
def test_a_learner_that_lost_its_lease_publishes_saves_and_acks_nothing_more(
    house, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, shown: set[int]
) -> None:
    monkeypatch.setattr(delivery, "judge", deciding(Verdict.REFUSE))
    learner, step = house.learner(), getattr(place, name)

    def slow(*arguments: Any, **named: Any) -> Any:
        done = step(*arguments, **named)
        lose_lease(house)
        return done

    house.send()
    with monkeypatch.context() as patched:
        patched.setattr(place, name, slow)
        with pytest.raises(LeaseLost, match=r"got lost, expected held \(nothing was (published|saved) from here on\)"):
            learner.learn_once()
    assert set(house.board.read().rows) == shown
    assert house.buffer.counts().acked == {}
    assert [path.name for path in house.config.checkpoints_dir.glob("round-*")] == ["round-00000000"]
    house.let_leases_lapse()
    assert learner.learn_once().kind is LearningKind.LEARNED


@pytest.mark.guarantee("learner-suspended")
@pytest.mark.parametrize("fault", ["lease", "redis"])
def test_rounds_that_fail_for_no_traces_fault_cost_none_however_many_they_are(
    house, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    traces, learner, judge = house.send(), house.learner(), learning_round.judge_candidate

    def late(*arguments: Any, **named: Any) -> Any:
        if fault == "redis":
            raise BufferUnavailable("gone")
        lose_lease(house)
        return judge(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(learning_round, "judge_candidate", late)
        for _ in range(MAX_DELIVERIES + 2):
            with pytest.raises((LeaseLost, BufferUnavailable)):
                learner.learn_once()
            house.let_leases_lapse()
    assert house.fitted == [house.fitted[0]] * (MAX_DELIVERIES + 2)  # all traces, every time
    assert sum(learner.learn_once().outcomes.values()) == len(traces)
    assert house.buffer.counts().dead_lettered == 0


def test_the_heartbeat_of_a_learning_round_is_renewed_while_it_runs_and_ends_soon_after_its_death(
    house, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats, beat, fit = [], house.board.beat, DraftTrainer.fit

    def noted(member: str, status: MemberStatus, ttl_s: float) -> None:
        beats.append((status.kind, ttl_s))
        beat(member, status, ttl_s)

    def long(self: DraftTrainer, *traces: Any) -> Any:
        until(lambda: beats.count(("learning", 0.3)) >= 3, "three beats of the round")
        return fit(self, *traces)

    monkeypatch.setattr(house.board, "beat", noted)
    monkeypatch.setattr(DraftTrainer, "fit", long)
    house.send()
    house.learner(round_lease_s=0.3).learn_once()
    assert set(beats[:-1]) == {("comparing", 0.3), ("learning", 0.3)}
    assert beats[-1] == ("learned", ALIVE_S)


def test_few_large_traces_start_a_learning_round_when_they_fill_half_of_the_buffer(house) -> None:
    size = len(encode_trace(house.speculator.serve(0)))
    bounds = BufferConfig(max_bytes=20 * size)
    house.buffer = MemoryTraceBuffer(bounds, house.clock)
    learner = house.learner(buffer=bounds, min_new_traces=40)
    house.send(9)
    assert learner.learn_once().why == "9 traces pending, 40 needed"
    house.send(3)
    assert learner.learn_once().kind is LearningKind.LEARNED
    # Learned traces stay in the buffer for replay, but are not pending.
    house.send(5)
    assert learner.learn_once().why == "5 traces pending, 40 needed"


def test_traces_trimmed_before_they_were_learned_are_warned_of_once(house, caplog: pytest.LogCaptureFixture) -> None:
    learner = house.learner(min_new_traces=400)
    house.send(5)
    house.clock.now += BufferConfig().max_age_s + 1
    house.send(3)
    learner.learn_once()
    assert "were trimmed" not in caplog.text  # it was not running yet
    house.clock.now += BufferConfig().max_age_s + 1
    house.send(1)
    learner.learn_once()
    learner.learn_once()
    warned = [record.getMessage() for record in caplog.records if "were trimmed" in record.getMessage()]
    message = (
        "3 traces were trimmed before they were learned since the last learning round; raise PACELINE_BUFFER_MAX_BYTES "
        "(1073741824) or lower PACELINE_MIN_NEW_TRACES (400)"
    )
    assert warned == [message]


def test_weights_of_old_versions_leave_the_disk_and_their_rows_stay(house, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = house.learner(kept_versions=2, passes=1)
    for verdict in (Verdict.PROMOTE, Verdict.PROMOTE, Verdict.REFUSE, Verdict.REFUSE, Verdict.REFUSE):
        monkeypatch.setattr(delivery, "judge", deciding(verdict))
        house.send(9)
        learner.learn_once()
    state = house.board.read()
    assert (state.live, state.previous, sorted(state.rows)) == (2, 1, [0, 1, 2, 3, 4, 5])
    left = sorted(path.name for path in house.config.versions_dir.iterdir())
    assert left == ["v000001", "v000002", "v000004", "v000005"]


def test_a_learner_without_its_checkpoint_continues_from_the_live_version(house) -> None:
    learner = house.learner(passes=12)
    for _ in range(2):
        house.send()
        learner.learn_once()
    live = house.board.read().live
    for path in sorted(house.config.checkpoints_dir.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    restarted = house.learner()
    restarted.learn_once()
    assert live in {1, 2}
    assert restarted._state.notes.parent == live
    assert torch.equal(restarted._state.trainer.draft.fc.weight, house.draft(live).fc.weight)


def test_the_heartbeat_carries_totals_and_the_last_figures_through_idle_rounds(house) -> None:
    learner = house.learner()
    traces = house.send()
    report = learner.learn_once()
    learner.learn_once()
    beat = house.board.heartbeats()[f"learner:{house.config.name}"]
    kept, rounds = len(held_out(traces)), sum(len(trace.rounds) for trace in traces)
    assert (beat.kind, beat.life.pending) == ("idle", 0)
    assert (beat.life.traces["learned"], beat.life.traces["held_out"]) == (BATCH - kept, kept)
    assert (beat.life.identity_equal, beat.life.identity_compared, beat.life.calibration_gap) == (rounds, rounds, 0.0)
    assert report.fit is not None
    assert beat.fit.losses[-1] == pytest.approx(report.fit.losses[-1], rel=1e-4)
    assert (beat.life.rounds, beat.life.optimiser_steps) == (1, report.fit.steps)


def test_while_mlflow_is_away_it_is_asked_once_and_versions_are_pending_in_folder_and_status(
    house, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, connect = [], Registry._connect
    monkeypatch.setattr(Registry, "_connect", lambda self: (asked.append(1), connect(self)))
    learner = house.learner()
    versions, shown = [], []
    for _ in range(2):
        house.send()
        versions.append(learner.learn_once().version)
        assert learner.learn_once().kind is LearningKind.IDLE
        shown.append(house.board.heartbeats()[f"learner:{house.config.name}"].pending_registrations)
    assert sorted(path.name for path in house.pending.iterdir()) == [f"v{n:06d}.json" for n in versions]
    assert (versions, shown, len(asked)) == ([1, 2], [1, 2], 1)


def test_traces_that_another_learner_has_claimed_are_not_said_to_be_refused(house) -> None:
    house.send()
    held = house.buffer.claim("another", 100)
    report = house.learner().learn_once()
    assert (report.kind, report.why) == (LearningKind.IDLE, "another learner holds what is pending")
    assert house.buffer.counts().pending == len(held) == 24
