"""The line in the product's rounds: as decided by hand, in step with the board, and after a death."""

import copy
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis
from learner_traffic import BATCH, held_out, ids
from paceline.buffer.board.member_status import MemberStatus, RequestSaid, StretchesSaid
from paceline.buffer.board.reason import ReasonCode
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version import VersionState
from paceline.buffer.config import BufferConfig
from paceline.buffer.stream.trace import DraftTrace
from paceline.buffer.stream.trace_buffer import TraceEntry
from paceline.learner.config import LearnerConfig
from paceline.learner.delivery import delivery
from paceline.learner.judging import line_judge
from paceline.learner.judging.line_judge import Unlearnt
from paceline.learner.judging.replay import replay_traces
from paceline.learner.state import checkpoint
from paceline.learner.training.plan import RECIPE
from paceline.learner.training.trainer import DraftTrainer
from paceline.policies import prequential
from paceline.policies.acceptance import Tally, replayed_tally
from paceline.policies.learn_schedule import LearnSchedule
from paceline.policies.line_delivery import DeliveryRules, Ground, LineDelivery
from paceline.policies.paired import Paired
from paceline.policies.verdict_words import lead

ROUNDS = 10


class DiedError(Exception):
    """The process ended here."""


def die(*_: object, **__: object) -> None:
    raise DiedError


def decided_by_hand(versions: Sequence[Any], rounds: Sequence[Sequence[DraftTrace]]) -> list[int]:
    """The version of the line that serves after every round.

    Each version is replayed from the beginning on every request, one trace a request; version v met block v, half of
    a round, before it learnt it.
    """
    traces = [trace for claimed in rounds for trace in claimed]
    blocks = [2 * number + place * 2 // len(part) for number, part in enumerate(rounds) for place in range(len(part))]
    kept = set(ids(held_out(traces)))
    rules = DeliveryRules()
    delivery, live, served = LineDelivery(rules, 0), 0, []

    def tallies(requests: Sequence[int], version: int) -> list[Tally]:
        served = [traces[n] for n in requests]
        return list(map(replayed_tally, served, replay_traces(versions[version], served, 3)))

    def pairs(requests: Sequence[int], version: int, reference: int) -> list[Paired]:
        both = zip(requests, tallies(requests, version), tallies(requests, reference), strict=True)
        return [Paired(traces[n].tenant, line, other) for n, line, other in both]

    for number in range(len(rounds)):
        reference = delivery.reference
        for version in (2 * number, 2 * number + 1):
            if version != reference:
                block = [n for n, of in enumerate(blocks) if of == version]
                delivery.observe(pairs(block, version, reference), is_live=version == live)
        newest = 2 * number + 2
        claimed = [n for n, of in enumerate(blocks) if of // 2 == number and traces[n].trace_id in kept]
        is_ruined = prequential.is_ruined(pairs(claimed, newest, live), rules.test)
        live = delivery.decide(newest, live, is_ruined=is_ruined).version
        served.append(live // 2)
    return served


@pytest.mark.parametrize("target", ["named", pytest.param("followed", marks=pytest.mark.rollouts)])
def test_every_round_decides_as_by_hand(house, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """By all requests of every round, under whichever versions of a followed target they were verified."""
    versions: list[Any] = []
    fit = DraftTrainer.fit

    def noted(self: DraftTrainer, *traces: Any) -> Any:
        # One round ruins the draft, so that harm is among what is decided.
        self.recipe = replace(RECIPE, warm_learning_rate=1.0, cold_learning_rate=1.0) if len(versions) == 10 else RECIPE
        versions.append(copy.deepcopy(self.draft))
        return fit(self, *traces)

    monkeypatch.setattr(DraftTrainer, "fit", noted)
    named = {"followed": {"target_version": "follow"}, "named": {}}[target]
    learner, rounds, served, grounds = house.learner(learn="always", passes=4, **named), [], [], []
    for number in range(ROUNDS):
        # Every second round is claimed a version late, in part.
        late, newest = (str(number - number % 2), str(number)) if named else ("1", "1")
        rounds.append([*house.send(BATCH // 2, target_version=late), *house.send(BATCH // 2, target_version=newest)])
        report = learner.learn_once()
        served.append(house.board.read().live)
        grounds.append(report.promotion.ground)
    versions.append(learner._state.trainer.draft)
    assert len(versions) == 2 * ROUNDS + 1

    assert served == decided_by_hand(versions, rounds)
    assert {Ground.PROOF, Ground.TRUST, Ground.NOTHING_YET, Ground.HARM} <= set(grounds), grounds


def scripted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The line's rounds against 30 of the reference, of 20 requests, in the blocks to come; the last one goes on.

    All that a learning round of these tests claims makes a full round.
    """
    script, full = [30], DeliveryRules(full_round=BATCH // 2)
    monkeypatch.setattr(LearnerConfig, "delivery_rules", full)

    def paired(traces: Sequence[DraftTrace], *_: object) -> list[Paired]:
        rounds = script.pop(0) if len(script) > 1 else script[0]
        return [Paired("", Tally(60 - rounds, rounds), Tally(30, 30))] * len({trace.request_id for trace in traces})

    monkeypatch.setattr(line_judge, "paired", paired)
    monkeypatch.setattr(line_judge, "is_ruined", lambda *_: False)
    return script


def rounds_of(house: Any, learner: Any, script: list[int], *rounds: int) -> list[Ground]:
    """The grounds of rounds whose blocks are all alike."""
    grounds = []
    for one in rounds:
        script[:] = [one]
        house.send()
        grounds.append(learner.learn_once().promotion.ground)
    return grounds


GAIN, SAME, SUSPECT, HARM = 22, 30, 32, 45
EAGER = {"learn": "always", "passes": 1}


@pytest.fixture
def redis_house(house, redis_client: redis.Redis) -> Any:
    """The same house with its board on Redis."""
    house.board = RedisVersionBoard(redis_client, BufferConfig())
    return house


@pytest.mark.guarantee("promotion-gate")
def test_harm_puts_an_unsuspected_version_back_and_no_rollback_returns_to_what_was_trusted(
    redis_house, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, script = redis_house, scripted(monkeypatch)
    learner = house.learner(**EAGER)
    grounds = rounds_of(house, learner, script, GAIN, SAME, SUSPECT, HARM)
    assert grounds == [Ground.PROOF, Ground.TRUST, Ground.TRUST, Ground.HARM]
    state = house.board.read()
    assert {number: row.state.value for number, row in state.rows.items()} == {
        0: "retired", 1: "live", 2: "rolled_back", 3: "rolled_back", 4: "refused",
    }  # fmt: skip
    assert (state.live, state.previous) == (1, 0)
    assert (state.rows[1].why.code, state.rows[1].why.figures["serves"]) == (ReasonCode.PUT_BACK, 1)
    assert rounds_of(house, learner, script, SAME) != [Ground.TRUST]
    assert house.board.read().live == 1


def test_harm_by_later_drafts_alone_leaves_what_serves(house, monkeypatch) -> None:
    script, learner = scripted(monkeypatch), house.learner(**EAGER)
    rounds_of(house, learner, script, GAIN, SAME)
    script[:] = [SAME, HARM]  # the draft that serves, then what it has become
    house.send()
    assert learner.learn_once().promotion.ground is Ground.HARM
    assert (house.board.read().live, reference_and_trust(learner)) == (2, (2, 0))


def test_harm_to_the_reference_itself_refuses_the_newest_and_moves_nothing_else(house, monkeypatch) -> None:
    script = scripted(monkeypatch)
    assert rounds_of(house, house.learner(**EAGER), script, HARM, HARM) == [Ground.HARM] * 2
    state = house.board.read()
    assert (state.live, [state.rows[number].state.value for number in (1, 2)]) == (0, ["refused"] * 2)


def test_where_somebody_moved_versions_meanwhile_harm_moves_none(house, monkeypatch) -> None:
    script, carry_out = scripted(monkeypatch), delivery._carry_out
    learner = house.learner(**EAGER)
    rounds_of(house, learner, script, GAIN, SAME)

    def later(*arguments: Any, **named: Any) -> None:
        house.board.move(0, VersionState.LIVE, "operator:ada", "back to the start")
        carry_out(*arguments, **named)

    monkeypatch.setattr(delivery, "_carry_out", later)
    assert rounds_of(house, learner, script, HARM) == [Ground.HARM]
    assert house.board.read().live == 0


def reference_and_trust(learner: Any) -> tuple[int, int]:
    line = learner._state.notes.line
    return line["reference"], line["trust"] * 2 // BATCH


@pytest.mark.parametrize("moved_by", ["operator", "canary", "silent_death"])
def test_a_line_starts_over_with_whatever_else_is_live(house, monkeypatch, caplog, moved_by: str) -> None:
    caplog.set_level(logging.INFO)
    script, learner = scripted(monkeypatch), house.learner(**EAGER)
    rounds_of(house, learner, script, GAIN, SAME)
    assert reference_and_trust(learner) == (1, 3)
    assert house.board.read().live == 2
    if moved_by == "operator":
        house.board.move(0, VersionState.LIVE, "operator:ada", "back to the start")
    else:
        house.board.roll_back("replica:a", moved_by, 2)
    live = house.board.read().live
    assert rounds_of(house, learner, script, SAME) == [Ground.NOTHING_YET]
    assert reference_and_trust(learner) == (live, 0)
    assert (house.board.read().live, live) == (live, 0 if moved_by == "operator" else 1)
    assert f"version {live} is live: the line is compared with it from now on" in caplog.text


def test_a_line_whose_reference_cannot_be_read_starts_over(house, monkeypatch) -> None:
    script, learner = scripted(monkeypatch), house.learner(**EAGER)
    rounds_of(house, learner, script, GAIN, SAME)
    (house.config.versions_dir / "v000001" / "model.safetensors").unlink()
    restarted = house.learner(**EAGER)  # without the draft in memory
    assert rounds_of(house, restarted, script, SAME) == [Ground.NOTHING_YET]
    assert reference_and_trust(restarted) == (2, 0)


def test_a_canary_that_wins_is_what_the_line_decided_to_serve(house, monkeypatch) -> None:
    for replica in ("a", "b"):
        served = StretchesSaid(version=0, ended=[RequestSaid("ab", [], 3, 3)])
        house.board.beat(f"replica:{replica}", MemberStatus(capture="on", swap="on", stretches=served), 1e9)
    script, learner = scripted(monkeypatch), house.learner(**EAGER, canary_limit_s=1e12)
    assert rounds_of(house, learner, script, GAIN) == [Ground.PROOF]
    assert house.board.read().canary == 1
    house.board.move(1, VersionState.LIVE, "replica:b", "better")
    assert rounds_of(house, learner, script, SAME) == [Ground.TRUST]


def test_the_versions_that_the_gate_needs_outlive_their_age(house, monkeypatch) -> None:
    script, learner = scripted(monkeypatch), house.learner(**EAGER, kept_versions=1)
    rounds_of(house, learner, script, GAIN, SAME, SAME, SUSPECT)
    left = sorted(path.name for path in house.config.versions_dir.iterdir())
    assert left == ["v000001", "v000002", "v000003", "v000004"]  # compared with, unsuspected, live before, live
    assert rounds_of(house, learner, script, HARM) == [Ground.HARM]
    assert house.board.read().live == 2


@pytest.mark.usefixtures("fearless")
@pytest.mark.parametrize(
    ("place", "name"),
    [(delivery, "save_draft"), (delivery, "_carry_out"), (DraftTrainer, "fit"), (None, "ack")],
)
def test_a_learner_killed_at_any_point_of_a_round_decides_the_same_again(house, monkeypatch, place, name) -> None:
    script, learner = scripted(monkeypatch), house.learner(**EAGER)
    rounds_of(house, learner, script, GAIN)
    script[:] = [SAME]
    house.send()
    with monkeypatch.context() as patched:
        patched.setattr(place or house.buffer, name, die)
        with pytest.raises(DiedError):
            house.learner(**EAGER).learn_once()
    house.let_claims_lapse()
    restarted = house.learner(**EAGER)
    restarted.learn_once()  # after an ack that failed there is nothing left but to ack
    assert reference_and_trust(restarted) == (1, 3)
    assert house.board.read().live == max(n for n, row in house.board.read().rows.items() if row.state == "live") >= 2


@pytest.mark.usefixtures("fearless")
def test_a_version_that_went_live_in_a_lost_round_is_not_judged_on_what_it_has_learnt(house, monkeypatch) -> None:
    script = scripted(monkeypatch)
    script[:] = [GAIN]
    traces = house.send()
    save = checkpoint.save
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", lambda *of: die() if of[1].rounds_trained else save(*of))
        with pytest.raises(DiedError):
            house.learner(**EAGER).learn_once()
    assert house.board.read().live == 1
    house.let_claims_lapse()
    restarted = house.learner(**EAGER)
    report = restarted.learn_once()
    assert report.promotion.ground is Ground.NOTHING_YET
    assert report.promotion.measured is None
    assert report.outcomes["held_out"] == len(held_out(traces))
    assert house.board.read().live == 1


def test_only_a_proof_counts_as_a_better_draft(house, monkeypatch) -> None:
    script, learner, counted = scripted(monkeypatch), house.learner(**EAGER), []

    def noted(*_: Any, is_better: bool | None, is_warm: bool) -> None:
        counted.append(is_better)

    monkeypatch.setattr(LearnSchedule, "record_learning", noted)
    grounds = rounds_of(house, learner, script, SAME, GAIN, SAME, HARM)
    assert grounds == [Ground.NOTHING_YET, Ground.PROOF, Ground.TRUST, Ground.HARM]
    assert counted == [False, True, False, False]


def test_the_heartbeat_says_why_a_version_serves_and_what_it_was_compared_with(house, monkeypatch) -> None:
    script, learner = scripted(monkeypatch), house.learner(**EAGER)
    rounds_of(house, learner, script, GAIN, SAME, SAME)
    beat = house.board.heartbeats()[f"learner:{house.config.name}"]
    assert (beat.judged.verdict, beat.judged.ground, beat.judged.reference) == ("promote", "trust", 1)
    assert beat.judged.line_accept_length == beat.judged.reference_accept_length == 2.0
    assert (beat.judged.reason.code, beat.judged.reason.figures["trust"]) == (ReasonCode.TRUSTED, 3.0)


def test_the_log_and_the_board_lead_with_the_verdict_and_the_board_has_its_figures(house, monkeypatch, caplog) -> None:
    caplog.set_level(logging.INFO)
    script, learner = scripted(monkeypatch), house.learner(**EAGER)
    rounds_of(house, learner, script, GAIN)
    made, live = [event.why for event in house.board.events() if event.number == 1]
    assert (made, live.code) == (live, ReasonCode.PROVEN)
    (line,) = [record.message for record in caplog.records if record.message.startswith("learning round 1: ")]
    assert f" held out; {lead(live)} (" in line


def entry(entry_id: str, trace: DraftTrace) -> TraceEntry:
    return TraceEntry(entry_id, trace)


def test_what_the_line_or_the_reference_may_have_learnt_does_not_judge(make_trace) -> None:
    traces = [replace(make_trace(i), trace_id=str(i), request_id=f"r{i}", target_version="8") for i in range(5)]
    traces[3] = replace(traces[3], target_version="7")
    entries = [entry(f"{9 + i}-{i}", trace) for i, trace in enumerate(traces)]
    assert ids(Unlearnt(("8",), "9-0", {"r2"}).of(entries)) == ["1", "4"]
    assert ids(Unlearnt(("8",), "", set()).of(entries)) == ["0", "1", "2", "4"]
    assert ids(Unlearnt(("8",), "10-0", set()).of(entries)) == ["1", "2", "4"]
    assert ids(Unlearnt(("7", "8"), "10-0", set()).of(entries)) == ["1", "2", "3", "4"]


def test_a_request_that_was_learnt_in_part_does_not_judge(house) -> None:
    learner = house.learner(**EAGER)
    first = house.send()
    learner.learn_once()
    learnt = next(trace for trace in first if trace not in held_out(first))
    house.send(BATCH - 1)
    house.send(1, request_id=learnt.request_id)
    report = learner.learn_once()
    assert sum(report.outcomes.values()) == BATCH
    assert report.promotion.measured.requests == BATCH - 1
