"""The words of reasons: every code has all three forms, and nothing that was written on a board breaks them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.buffer.board.reason import Reason, ReasonCode, because
from paceline.policies.guard import AlarmName
from paceline.policies.verdict_words import alarm_sentence, figures, lead, sentence, shown_odds

NUMBERS = [
    "odds",
    "needed",
    "harm_odds",
    "requests",
    "prompts",
    "trust",
    "serves",
    "live",
    "judged",
    "by",
    "gain",
    "gain_low",
    "gain_high",
    "confidence",
    "limit",
    "bound",
    "margin",
    "limit_s",
    "begin_rounds",
    "late",
    "accept_length",
    "reference_accept_length",
    "measured_requests",
    "predicted",
    "predicted_noise",
    "predicted_requests",
    "canary_accept_length",
    "canary_requests",
    "canary_rounds",
    "live_accept_length",
    "live_requests",
    "live_rounds",
    *("flat_rounds", "rest_after", "rested_s", "cool_down_s", "usual", "level", "low", "latest", "one_in"),
]
#: A dead draft's.
ALARM = {"alarm": "silent_death", "length": 1.0, "rounds": 50.0, "length_before": 3.0}
KNOWN = (
    dict.fromkeys(NUMBERS, 1.0)
    | ALARM
    | dict.fromkeys(("losers", "uri", "draft", "fault", "beside", "replica", "mode", "left_out"), "text")
)
GATE = {"odds": 392.6, "needed": 10, "requests": 40, "prompts": 8, "accept_length": 2.41}
GATE |= {"reference_accept_length": 1.87, "measured_requests": 40, "gain": 0.54, "confidence": 0.95}
ROW = (
    "odds 393 to 1 for a gain, 40 requests, 8 prompts, accept length 2.410, reference 1.870, on 40 new requests, "
    "gain +0.540, 95% interval +0.200 to +0.900"
)


@pytest.mark.parametrize("code", ReasonCode)
def test_every_code_has_a_short_lead_a_row_of_numbers_and_a_long_form(code: ReasonCode) -> None:
    reason = Reason(code, KNOWN)
    assert 3 <= len(lead(reason).split()) <= 9
    assert sentence(reason).startswith(lead(reason))
    assert sentence(reason).endswith(figures(reason))
    assert "unknown" not in sentence(reason)


def test_a_verdict_is_said_first_then_its_numbers_and_at_length_both_and_what_they_mean() -> None:
    reason = because(ReasonCode.PROVEN, **GATE, gain_low=0.2, gain_high=0.9, late=None)
    assert (lead(reason), figures(reason)) == ("promoted: proven, 393 to 1", ROW)
    assert sentence(reason) == f"promoted: proven, 393 to 1; 10 to 1 are enough; {ROW}"
    typed = "by hand; as the paper says"
    assert (lead(typed), figures(typed), sentence(typed)) == (typed, "", typed)


def test_figures_that_are_not_known_are_left_out_of_the_row() -> None:
    reason = because(ReasonCode.PROVEN, **GATE, gain_low=float("-inf"), gain_high=float("inf"))
    assert figures(reason) == ROW.partition(", 95%")[0]
    assert lead(Reason(ReasonCode.PROVEN)) == "promoted: proven, unknown to 1"


@given(st.sampled_from(ReasonCode), st.dictionaries(st.sampled_from(NUMBERS), st.text() | st.floats()))
def test_no_figure_off_a_board_is_an_error(code: ReasonCode, found: dict[str, float | str]) -> None:
    assert sentence(Reason(code, found)).startswith(lead(Reason(code, found)))


def test_odds_are_shown_without_exponents() -> None:
    shown = [shown_odds(odds) for odds in (0.0123, 1.214, 99.94, 392.6, 4716.2, 3e6)]
    assert shown == ["0.0123", "1.21", "99.9", "393", "4,716", "over 1,000,000"]


@pytest.mark.parametrize("name", AlarmName)
def test_every_alarm_has_a_sentence_whatever_is_known_of_it(name: AlarmName) -> None:
    assert len(alarm_sentence(name, {}).split()) >= 5


def test_an_alarm_of_a_later_release_is_told_by_its_figures() -> None:
    assert alarm_sentence("gpu_on_fire", {"degrees": 451.0, "where": "gpu-1"}) == "degrees 451.0, where gpu-1"
