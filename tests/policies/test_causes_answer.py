"""The answer in sentences: the first cause with its figures, what it is not, and what the gate refused meanwhile."""

from dataclasses import replace

import pytest
from made_histories import REPLICA, Conditions, changed, histories
from made_versions import made_version
from paceline.buffer.board.version import BoardRow, JudgedOn, VersionState
from paceline.policies.readings.causes.amounts import Amounts, Rounds, ServedKey
from paceline.policies.readings.causes.answer import answer as answer_with
from paceline.policies.readings.causes.explanation import Effect, Explanation, explain
from paceline.policies.readings.causes.length_evidence import draft_evidence
from paceline.policies.readings.causes.parts import Cause
from paceline.policies.readings.causes.periods import draft_periods, since_periods
from paceline.policies.readings.definitions import Reading

PY = Conditions(draft=4, lengths={"py": 2.33, "prose": 1.47})
SHIFTED = changed(PY, draft=6, labels={"prose": 1.0})
#: Draft 5 served both kinds of traffic for a while, and so tells the traffic from the draft.
SHIFT = [
    (560.0, PY),
    (30.0, changed(PY, draft=5)),
    (10.0, changed(PY, draft=5, labels={"prose": 1.0})),
    (60.0, SHIFTED),
]


NO_PLAIN = Reading(name="speed_over_plain", value=None, why_unknown="no plain step was ever taken")


def answer(
    found: Explanation, rows: dict[int, BoardRow], plain: tuple[Reading, Reading] = (NO_PLAIN, NO_PLAIN)
) -> list[str]:
    return answer_with(found, rows, *plain)


def refused(number: int, at: float, judged_on: JudgedOn | None) -> BoardRow:
    version = made_version(number, 6, target_version="0", trained_on=("1-0", "2-0"), judged_on=judged_on)
    return BoardRow(version=version, state=VersionState.REFUSED, why="no better", changed_at=at)


def told(rows: dict[int, BoardRow] | None = None) -> str:
    return " ".join(answer(explain(*since_periods(histories(SHIFT), 600.0, 660.0)), rows or {}))


def test_a_shift_of_traffic_is_named_and_the_swap_is_not_blamed() -> None:
    text = told()
    assert text.startswith("Slower: a request gets ")
    assert "First cause: labels of the traffic, x0.63, 100 % of the change." in text
    assert "Accept length 2.32 before, 1.47 now." in text
    assert "prose 100 % of the tokens, 1 % before; draft 5 itself served 2.33 " in text
    assert "1.47 (" in text
    assert "Not the swap (x1.00, below the noise)." in text
    assert text.endswith("wait for the learner, and see what its gate says.")


def test_candidates_refused_meanwhile_come_with_what_judged_them() -> None:
    judged = JudgedOn(labels={"py": 27, "prose": 4}, newest_labels={"prose": 32})
    rows = {7: refused(7, 610.0, None), 8: refused(8, 640.0, judged), 1: refused(1, -100.0, judged)}
    text = told(rows)
    assert "2 candidates refused since: the gate's requests were 13 % prose, the newest traffic 100 %." in text
    assert "What would change it: a gate that judges on traffic as young as the change" in text


def test_what_judged_a_candidate_may_be_unknown() -> None:
    assert "1 candidate refused since; what judged them is unknown." in told({7: refused(7, 640.0, None)})


def test_without_a_draft_that_served_both_traffic_and_draft_cannot_be_told_apart() -> None:
    found = explain(*since_periods(histories([(600.0, PY), (60.0, SHIFTED)]), 600.0, 660.0))
    assert found.first.cause is Cause.LABELS
    assert "no draft served both py and prose: draft and traffic cannot be told apart" in found.first.evidence


def test_a_dead_draft_is_called_dead() -> None:
    dead = changed(PY, draft=5, lengths_of={5: 0.1})
    found = explain(*draft_periods(histories([(60.0, PY), (60.0, dead)]), 5))
    text = " ".join(answer(found, {}))
    assert "while draft 5 served" in text
    assert "while draft 4 served" in text
    assert "First cause: another draft, x0.43, 100 % of the change." in text
    assert "hardly a token of it is accepted" in text
    assert "paceline rollback" in text


def test_without_a_change_nothing_stands_out() -> None:
    found = explain(*since_periods(histories([(660.0, PY)]), 600.0, 660.0))
    assert answer(found, {})[0].startswith("As fast as before, as far as can be told: a request gets ")
    assert answer(found, {})[1:] == ["Nothing stands out: no cause contributes more than the noise."]


def test_without_a_step_clock_the_accept_length_is_compared() -> None:
    found = explain(*since_periods(histories(SHIFT, has_clock=False), 600.0, 660.0))
    assert answer(found, {})[0].startswith(
        "Slower: accept length 1.47 in the last minute, 2.32 in the 10 minutes before"
    )
    assert "of step times too little is known" in answer(found, {})[0]


def test_replicas_that_came_and_went_are_said() -> None:
    one, other = (histories([(660.0, PY)]) for _ in range(2))
    found = {"replica:a": one[REPLICA][:60], "replica:b": other[REPLICA][100:]}
    sentences = answer(explain(*since_periods(found, 600.0, 660.0)), {})
    assert sentences[1] == "Not the same replicas served: none joined, replica:a left."


def test_nothing_known_is_said_with_its_reasons() -> None:
    sentences = answer(explain(*since_periods({}, 600.0, 660.0)), {})
    assert sentences[0] == "Why serving is faster or slower cannot be told."
    assert all("unknown" in sentence for sentence in sentences[1:])


def test_the_speed_over_plain_decoding_is_said_where_it_is_known() -> None:
    found = explain(*since_periods(histories(SHIFT), 600.0, 660.0))
    before, now = (
        Reading(name="speed_over_plain", value=value, count=9, at=0.0, low=value - 0.05, high=value + 0.04)
        for value in (1.31, 0.92)
    )
    first = answer(found, {}, (before, now))[0]
    assert first.endswith(
        "That is 0.92 (0.87 .. 0.96) times the speed of plain decoding, 1.31 times before; "
        "drafts cost more than they save."
    )
    assert answer(found, {}, (now, before))[0].endswith("times the speed of plain decoding, 0.92 times before.")


def test_where_nothing_is_certain_the_likeliest_is_named_with_its_own_interval() -> None:
    found = explain(*since_periods(histories(SHIFT), 600.0, 660.0))
    effects = [
        replace(each.effect, is_noise=True, low=each.effect.log - 0.2, high=each.effect.log + 0.2)
        for each in found.findings
    ]
    unsure = replace(
        found, findings=[replace(each, effect=effect) for each, effect in zip(found.findings, effects, strict=True)]
    )
    assert unsure.first is None
    sentences = answer(unsure, {})
    assert sentences[1] == "No cause is certain. Likeliest: labels of the traffic, x0.63, 95 % 0.52 .. 0.78 by itself."
    assert sentences[2].startswith("prose 100 % of the tokens, 1 % before")


@pytest.mark.parametrize(("part", "is_named"), [(0.2, True), (0.19, False), (-0.5, False)])
def test_the_likeliest_goes_the_way_of_the_change_and_is_a_part_of_it(part: float, is_named: bool) -> None:
    found = explain(*since_periods(histories(SHIFT), 600.0, 660.0))
    assert found.request_speed is not None
    assert not found.request_speed.is_noise
    log = part * found.request_speed.log
    small = Effect(log, log - 0.01, log + 0.01, is_noise=True)
    finding = replace(found.findings[0], effect=small, share=part)
    assert (replace(found, findings=[finding]).likeliest is finding) == is_named


@pytest.mark.parametrize(("log", "low", "high"), [(-0.3, -0.7, 0.1), (0.01, 0.005, 0.015), (-0.3, None, None)])
def test_what_is_small_or_may_be_nothing_is_not_likely(log: float, low: float | None, high: float | None) -> None:
    assert not Effect(log, low, high, is_noise=True).is_likely


def test_a_draft_is_compared_with_the_one_that_lost_most_among_those_that_served_a_label_with_it() -> None:
    before = Amounts(
        served={
            ServedKey("py", "greedy", 4): Rounds(4000, 5600),
            ServedKey("prose", "greedy", 5): Rounds(1000, 900),
            ServedKey("prose", "greedy", 3): Rounds(600, 300),
        }
    )
    now = Amounts(served={ServedKey("prose", "greedy", 6): Rounds(2000, 3000)})
    assert draft_evidence(before, now).startswith(
        "draft 6 100 % of the tokens, 0 % before; on prose (greedy) it served"
    )
    assert ", draft 5 1.90" in draft_evidence(before, now)
    other = Amounts(served={ServedKey("html", "greedy", 6): Rounds(2000, 3000)})
    assert draft_evidence(before, other).endswith("no label was served by both it and a draft that drafts less now")
