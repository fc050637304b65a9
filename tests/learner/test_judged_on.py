"""What a published version says it was judged on, from the claim to the board, the heartbeat and MLflow's record."""

import json
from statistics import median

import pytest
from learner_traffic import BATCH
from paceline.buffer.board.version import JudgedOn
from paceline.learner.delivery.run_record import record_from_board
from paceline.policies.judged_on import sentence

NOW_S = 1_700_000_000.0


@pytest.fixture
def published(house, monkeypatch):
    """The report of the second of two learning rounds, half a minute apart and of other labels; the judged traces."""
    clock = [NOW_S]
    monkeypatch.setattr("time.time", lambda: clock[0])
    learner, traces = house.learner(learn="always", passes=1), []
    for label, now_s in (("code", NOW_S), ("chat/de", NOW_S + 30.0)):
        clock[0] = now_s
        traces += house.send(label=label, born_at=now_s - 1.0)
        traces += house.send(1, label=label, born_at=now_s - 500.0)
        report = learner.learn_once()
    return report, traces[-BATCH - 1 :]


def test_a_version_says_which_requests_judged_it_and_what_was_served_last(house, published):
    report, judged = published
    labels = [trace.label for trace in judged]
    ages_s = [NOW_S + 30.0 - trace.born_at for trace in judged]
    expected = JudgedOn(
        labels={"chat/de": len(labels)},
        newest_labels={"chat/de": BATCH + 1},
        median_age_s=median(ages_s),
        oldest_age_s=max(ages_s),
        targets={"1": len(judged)},
        drafts={0: len(judged)},
    )
    row = house.board.read().rows[report.version]
    assert row.version.judged_on == report.promotion.judged_on == expected
    assert report.promotion.measured.requests == expected.requests == len(judged)
    assert row.why == report.promotion.reason


def test_the_heartbeat_and_mlflows_record_say_it_too(house, published):
    report, _ = published
    judged_on = report.promotion.judged_on
    beat = house.board.heartbeats()[f"learner:{house.config.name}"]
    assert (beat.judged.labels, beat.judged.newest_labels) == (judged_on.labels, judged_on.newest_labels)
    assert beat.judged.drafts == {"0": judged_on.requests}
    record = json.loads((house.pending / f"v{report.version:06d}.json").read_text())
    figures = {"judged_requests": judged_on.requests, "judged_median_age_s": judged_on.median_age_s}
    figures["judged_oldest_age_s"] = judged_on.oldest_age_s
    assert {
        f"judged_{name}": getattr(beat.judged, name) for name in ("requests", "median_age_s", "oldest_age_s")
    } == figures
    assert {name: record["metrics"][f"gate/{name}"] for name in figures} == figures
    assert record["params"]["judged_on"] == sentence(judged_on)
    of_board = record_from_board(house.board.read().rows[report.version].version, NOW_S)
    assert {name: of_board.metrics[f"gate/{name}"] for name in figures} == figures
    assert of_board.params["judged_on"] == sentence(judged_on)


def test_a_request_that_replay_cannot_score_is_not_said_to_have_judged(house):
    house.send(label="sampled", verdict_rule="rejection")
    house.send()
    report = house.learner(learn="always", passes=1).learn_once()
    assert report.promotion.judged_on.labels == {"": report.promotion.measured.requests}
    assert report.promotion.judged_on.newest_labels == {"": BATCH, "sampled": BATCH}
