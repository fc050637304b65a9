"""What the live bench makes of two drafters' answers: the choice, its best, and the table."""

from paceline.benchmarks.learning.choice_live import BEST, CHOICE, DRAFT, NGRAM, best_known, choices, markdown
from paceline.policies.acceptance import Tally
from paceline.rig.prompts import Prompt
from paceline.rig.traffic import Arrival, Served


def served(label, rounds, seconds):
    """Ten tokens, one request of `label`, in so many rounds and seconds."""
    return Served(
        prompt=Prompt(label, label, (1,)),
        sent_at=100.0,
        arrivals=(Arrival(100.0 + seconds, 10),),
        output_ids=(7,) * 10,
        finish="length",
        tally=Tally(10 - rounds, rounds),
        retractions=0,
    )


#: The draft is better at prose and the table at code, for each of 200 requests.
FOUND = {
    DRAFT: [served("prose", 4, 1.0), served("code", 9, 2.0)] * 200,
    NGRAM: [served("prose", 9, 2.0), served("code", 3, 0.5)] * 200,
}


def test_every_label_comes_to_the_drafter_that_needs_less_time_for_it():
    chosen = choices(FOUND, seed=0)
    assert chosen[-100:] == [DRAFT, NGRAM] * 50
    assert {*chosen[:8]} == {DRAFT, NGRAM}  # of the first requests nothing is known


def test_the_best_is_known_by_label_and_the_table_tells_what_each_makes_of_it():
    best = best_known(FOUND)
    assert len(best) == 400
    assert {(one.prompt.domain, one.tally.rounds) for one in best} == {("prose", 4), ("code", 3)}
    rows = [row.split(" | ") for row in markdown([FOUND | {CHOICE: best}]).splitlines()[2:]]
    speeds = {DRAFT: 20 / 3.0, NGRAM: 20 / 2.5, CHOICE: 20 / 1.5, BEST: 20 / 1.5}
    for name, accepted, over_draft, over_best in rows:
        speed = speeds[name.removeprefix("| ")]
        assert over_draft == f"{speed / speeds[DRAFT]:.2f}"
        assert over_best.removesuffix(" |") == f"{speed / speeds[BEST]:.2f}"
        assert accepted == f"{20 / {DRAFT: 13, NGRAM: 12, CHOICE: 7, BEST: 7}[name.removeprefix('| ')] - 1:.2f}"
