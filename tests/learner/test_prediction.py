"""What is predicted of a draft: its own weights, on requests that came while it was trained."""

import pytest
from learner_traffic import BATCH, held_out
from paceline.buffer.board.reason import ReasonCode, because
from paceline.learner.delivery import delivery
from paceline.learner.judging.replay import replay_traces
from paceline.learner.round import prediction
from paceline.learner.training.trainer import DraftTrainer
from paceline.policies.acceptance import Tally, replayed_tally
from paceline.policies.promotion import Promotion, Verdict


@pytest.fixture
def learn(house, monkeypatch):
    """Trains on what was sent, while `arriving` more come, each with these changes; whatever it makes is promoted."""

    def learnt(*arriving, verdict=Verdict.PROMOTE, **changes):
        came = []

        def judge(*_, **__):
            for count, fields in arriving:
                came.extend(house.send(count, **fields))
            return Promotion(verdict=verdict, reason=because(ReasonCode.PROVEN))

        monkeypatch.setattr(delivery, "judge", judge)
        return house.learner(**changes).learn_once(), came

    return learnt


def accept_length(house, number, traces) -> float:
    """Of version `number` along the recorded text, trace by trace."""
    runs = replay_traces(house.draft(number), traces, 3)
    return sum(map(replayed_tally, traces, runs), Tally()).accept_length


def test_a_draft_is_predicted_by_what_waits_and_what_was_held_out(house, learn) -> None:
    claimed = house.send()
    report, waiting = learn((15, {}))
    met = [*held_out(claimed), *waiting]
    found = report.promotion.prediction
    assert (found.requests, found.accept_length) == (len(met), pytest.approx(accept_length(house, report.version, met)))
    row = house.board.read().rows[report.version]
    assert row.version.scores == {
        "predicted_accept_length": found.accept_length,
        "predicted_standard_error": found.standard_error,
    }
    assert row.why == because(ReasonCode.PROVEN, **found.figures)
    assert house.buffer.counts().pending == len(waiting)  # read, and not claimed


def test_only_the_newest_requests_predict(house, learn, monkeypatch) -> None:
    monkeypatch.setattr(prediction, "MOST_REQUESTS", 12)
    house.send()
    report, waiting = learn((20, {}))
    expected = accept_length(house, report.version, waiting[-12:])
    assert report.promotion.prediction.accept_length == pytest.approx(expected)


def test_other_answers_to_a_prompt_just_learnt_and_another_targets_do_not_predict(house, learn) -> None:
    house.send()
    house.send(4, prompt="0" * 16)
    report, _ = learn((6, {"prompt": "0" * 16}), (9, {}), (3, {"target_version": "2"}), holdout_share=1e-9)
    assert report.promotion.prediction.requests == 9


def test_the_rest_of_a_request_that_was_learnt_in_an_earlier_round_does_not_predict(house, learn) -> None:
    first = house.send()[0].request_id
    learner = house.learner(holdout_share=1e-9)
    learner.learn_once()
    house.send()
    report, _ = learn((9, {}), (1, {"request_id": first}), holdout_share=1e-9)
    assert report.promotion.prediction.requests == 9


def test_an_older_target_that_is_still_trained_on_does_not_predict(house, learn) -> None:
    house.send()
    report, _ = learn((9, {"target_version": "2"}), (5, {}), holdout_share=1e-9, target_version="2", target_max_age=1)
    assert report.outcomes == {"learned": BATCH}
    assert report.promotion.prediction.requests == 9


@pytest.mark.parametrize(("waiting", "verdict"), [(2, Verdict.PROMOTE), (20, Verdict.REFUSE)])
def test_nothing_is_predicted_by_a_few_requests_nor_of_a_draft_that_does_not_serve(
    house, learn, waiting, verdict
) -> None:
    house.send()
    report, _ = learn((waiting, {}), verdict=verdict, holdout_share=1e-9)
    assert report.promotion.prediction is None
    assert house.board.read().rows[report.version].version.scores == {}


def test_more_traces_are_read_than_requests_are_taken(house, learn) -> None:
    house.send(prompt="0" * 16)
    prompts = [(4, {"prompt": f"{number:016x}"}) for number in range(1, 9)]
    report, _ = learn(*prompts, (20, {"prompt": "0" * 16}), holdout_share=1e-9)
    assert report.promotion.prediction.requests == 32


def test_a_trace_that_replay_fails_of_costs_the_prediction_alone(house, learn, monkeypatch, caplog) -> None:
    claimed, tallies = {trace.trace_id for trace in house.send()}, prediction.tallies

    def failing(draft, traces, steps):
        if {trace.trace_id for trace in traces} - claimed:
            raise RuntimeError("cannot be scored")
        return tallies(draft, traces, steps)

    monkeypatch.setattr(prediction, "tallies", failing)
    report, _ = learn((12, {}))
    assert (report.promotion.prediction, report.promotion.reason) == (None, because(ReasonCode.PROVEN))
    assert "the draft is not predicted: RuntimeError: cannot be scored" in caplog.text
    assert house.board.read().live == report.version


def test_a_round_after_one_that_failed_does_not_read_what_waits(house, learn, monkeypatch, caplog) -> None:
    house.send()
    with monkeypatch.context() as patched:
        patched.setattr(DraftTrainer, "fit", None)
        with pytest.raises(TypeError):
            house.learner(min_new_traces=1).learn_once()
    house.let_claims_lapse()
    monkeypatch.setattr(prediction, "tallies", None)  # called, it would be told of
    report, _ = learn((20, {}), min_new_traces=1)
    assert (report.promotion.verdict, report.promotion.prediction) == (Verdict.PROMOTE, None)
    assert "not predicted" not in caplog.text
