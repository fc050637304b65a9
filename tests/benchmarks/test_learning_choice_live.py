"""What the live bench makes of two drafters' answers: the choice, its best, and the table."""

import pytest
from paceline.benchmarks.learning import choice_live
from paceline.benchmarks.learning.choice_live import BEST, CHOICE, DRAFT, NGRAM, Answer, best_known, markdown, passes
from paceline.rig.prompts import Prompt


def answer(label, rounds, seconds):
    """Ten tokens, one request of `label`, in so many rounds and seconds."""
    return Answer(label=label, tokens=10, accepted=10 - rounds, rounds=rounds, seconds=seconds)


#: The draft is better at prose and the table at code.
BY_DRAFT = {"prose": answer("prose", 4, 1.0), "code": answer("code", 9, 2.0)}
BY_TABLE = {"prose": answer("prose", 9, 2.0), "code": answer("code", 3, 0.5)}
LABELS = ["prose", "code"] * 20


@pytest.fixture
def found(monkeypatch):
    """Twenty requests of each label, served by servers that always answer so."""
    by_url = {"draft": BY_DRAFT, "table": BY_TABLE, "chosen": BY_TABLE}
    flushed = []
    monkeypatch.setattr(choice_live, "flush_cache", flushed.append)
    monkeypatch.setattr(choice_live, "served", lambda url, prompt: by_url[url][prompt.domain])
    prompts = [Prompt(f"{label}-{number}", label, (1,)) for number, label in enumerate(LABELS)]
    found = passes({DRAFT: "draft", NGRAM: "table", CHOICE: "chosen"}, prompts, seed=0)
    assert flushed == [*by_url]
    return found


def test_every_label_comes_to_the_drafter_that_needs_less_time_for_it(found):
    assert found[DRAFT] == [BY_DRAFT[label] for label in LABELS]
    assert found[NGRAM] == [BY_TABLE[label] for label in LABELS]
    assert found[CHOICE][-20:] == [BY_DRAFT["prose"], BY_TABLE["code"]] * 10


def test_the_best_is_known_by_label_and_the_table_tells_what_each_makes_of_it(found):
    best = best_known(found)
    assert best == [BY_DRAFT["prose"], BY_TABLE["code"]] * 20
    rows = [row.strip("| ").split(" | ") for row in markdown([found | {CHOICE: best}]).splitlines()[2:]]
    speeds = {DRAFT: 20 / 3.0, NGRAM: 20 / 2.5, CHOICE: 20 / 1.5, BEST: 20 / 1.5}
    rounds = {DRAFT: 13, NGRAM: 12, CHOICE: 7, BEST: 7}
    assert [row[0] for row in rows] == [*speeds]
    for name, accepted, over_draft, over_better, later_half in rows:
        assert accepted == f"{20 / rounds[name] - 1:.2f}"
        assert over_draft == f"{speeds[name] / speeds[DRAFT]:.2f}"
        assert over_better == later_half == f"{speeds[name] / speeds[NGRAM]:.2f}"
