"""Delivery of a line: proof, trust for some rounds, and what ends it."""

import json

import pytest
from paceline.buffer.board.reason import ReasonCode, because
from paceline.policies.acceptance import Tally
from paceline.policies.line_delivery import Delivery, DeliveryRules, Ground, LineDelivery
from paceline.policies.paired import Paired
from paceline.policies.prequential import PrequentialRules

RULES = DeliveryRules(PrequentialRules(), trusted_rounds=2, full_round=20)
LONG = DeliveryRules(PrequentialRules(), trusted_rounds=9, full_round=20)


def block(line_rounds: int, requests: int = 20, tenants: str = "a") -> list[Paired]:
    """Requests of 60 tokens, served in 30 rounds by the reference."""
    line, reference = Tally(60 - line_rounds, line_rounds), Tally(30, 30)
    return [Paired(tenants[number % len(tenants)], line, reference) for number in range(requests)]


GAINS, EQUAL, HARMS = block(22), block(30), block(45)


class Learner:
    """Rounds one after another; version n is trained in round n."""

    def __init__(self, rules: DeliveryRules = RULES) -> None:
        self.delivery = LineDelivery(rules, reference=0)
        self.live = self.newest = 0

    def round(self, *blocks: list[Paired], is_ruined: bool = False) -> Delivery:
        """The line is what serves in the first block of a round that follows a delivery, and has learnt since."""
        for number, met in enumerate(blocks):
            self.delivery.observe(met, is_live=number == 0 and self.newest == self.live)
        self.newest += 1
        decided = self.delivery.decide(self.newest, self.live, is_ruined=is_ruined)
        self.live = decided.version
        return decided


@pytest.mark.guarantee("promotion-gate")
def test_a_line_that_was_never_shown_to_gain_serves_nothing() -> None:
    learner = Learner()
    assert [learner.round(EQUAL).ground for _ in range(9)] == [Ground.NOTHING_YET] * 9
    assert (learner.live, learner.delivery.reference) == (0, 0)


def test_a_proof_makes_the_newest_draft_live_and_trusts_the_line_for_some_rounds() -> None:
    learner = Learner()
    rounds = [learner.round(GAINS), *(learner.round(EQUAL) for _ in range(4))]
    assert [r.ground for r in rounds] == [Ground.PROOF, Ground.TRUST, Ground.TRUST, *[Ground.NOTHING_YET] * 2]
    assert [r.version for r in rounds] == [1, 2, 3, 3, 3]
    figures = [decided.verdict.figures for decided in rounds]
    assert [decided.reason for decided in rounds[:4]] == [
        because(ReasonCode.PROVEN, **figures[0]),
        *(because(ReasonCode.TRUSTED, trust=left, **figures[3 - left]) for left in (2, 1)),
        because(ReasonCode.NOT_PROVEN, **figures[3]),
    ]
    assert Learner().round(GAINS, is_ruined=True).reason == because(ReasonCode.RUINED)
    harmed = Learner().round(HARMS)
    assert (harmed.ground, harmed.reason) == (Ground.HARM, because(ReasonCode.HARMS, **harmed.verdict.figures))


@pytest.mark.parametrize(
    ("requests", "rounds"),
    [(40, 4), (30, 4), (20, 6), (10, 12), (8, 15), (7, 18), (2, 18)],  # a quarter of a round at least
)
def test_rounds_in_which_few_requests_judge_spend_less_of_the_trust(requests: int, rounds: int) -> None:
    learner = Learner(DeliveryRules(PrequentialRules()))
    assert learner.round(GAINS).ground is Ground.PROOF
    grounds = [learner.round(block(30, requests)).ground for _ in range(20)]
    assert grounds == [Ground.TRUST] * rounds + [Ground.NOTHING_YET] * (20 - rounds)
    assert learner.delivery.reference == learner.live == rounds + 1


def test_a_round_restored_between_its_blocks_spends_what_both_judged() -> None:
    delivery, rules = LineDelivery(DeliveryRules(PrequentialRules()), 0), DeliveryRules(PrequentialRules())
    delivery.observe(GAINS, is_live=True)
    delivery.decide(1, 0, is_ruined=False)
    for met in (block(30, 10), block(30, 5)):
        delivery.observe(met, is_live=False)
        restored = LineDelivery(rules, 0)
        restored.restore(json.loads(json.dumps(delivery.state())))
        delivery = restored
    delivery.decide(2, 1, is_ruined=False)
    assert delivery.state()["trust"] == 4 * 30 - 15


def references(learner: Learner, *rounds: list[Paired]) -> list[int]:
    found = []
    for met in rounds:
        learner.round(met)
        found.append(learner.delivery.reference)
    return found


def test_the_proven_draft_is_the_reference_once_it_has_served_a_round_and_then_what_serves_when_trust_ends() -> None:
    assert references(Learner(), GAINS, EQUAL, EQUAL, EQUAL) == [0, 1, 3, 3]


def test_a_proven_draft_under_suspicion_does_not_become_the_reference() -> None:
    suspected = [*block(20, 14, "m"), *block(36, 6, "ab")]
    learner = Learner(LONG)
    assert references(learner, GAINS, suspected) == [0, 0]
    assert learner.live == 2
    cleared = block(22, tenants="ab")
    assert references(learner, cleared, cleared) == [2, 2]


def test_a_new_proof_renews_the_trust() -> None:
    learner = Learner()
    grounds = [learner.round(met).ground for met in (GAINS, EQUAL, GAINS, EQUAL, EQUAL, EQUAL)]
    expected = [Ground.PROOF, Ground.TRUST, Ground.PROOF, Ground.TRUST, Ground.TRUST, Ground.NOTHING_YET]
    assert grounds == expected
    assert learner.live == 5


@pytest.mark.guarantee("promotion-gate")
def test_harm_by_what_serves_ends_the_trust_and_the_last_unsuspected_version_serves_again() -> None:
    learner = Learner(LONG)
    assert [learner.round(met).version for met in (GAINS, EQUAL, EQUAL)] == [1, 2, 3]
    harmed = learner.round(HARMS, HARMS)
    assert (harmed.version, harmed.ground) == (2, Ground.HARM)
    assert harmed.reason.figures["losers"] == "all requests"
    assert learner.round(EQUAL).version == 2
    assert learner.delivery.reference == 2


def test_harm_by_what_came_later_leaves_what_serves_and_compares_with_it() -> None:
    learner = Learner(LONG)
    assert [learner.round(met).version for met in (GAINS, EQUAL)] == [1, 2]
    harmed = learner.round(block(28, 10), HARMS)
    assert (harmed.version, harmed.ground, learner.delivery.reference) == (2, Ground.HARM, 2)
    assert learner.round(EQUAL).ground is Ground.NOTHING_YET


def test_gains_beside_harm_are_no_proof() -> None:
    # The heaviest tenant's gains outweigh what the others lose.
    flood = [*block(20, 28, "m"), *block(42, 12, "abc")]
    learner = Learner()
    assert [learner.round(flood).ground for _ in range(4)] == [Ground.HARM] * 4
    assert [learner.round(EQUAL).ground for _ in range(9)][-1] is Ground.NOTHING_YET
    assert learner.live == 0


def test_a_line_that_recovers_from_harm_must_prove_itself_again() -> None:
    learner = Learner()
    assert [learner.round(HARMS).ground for _ in range(3)] == [Ground.HARM] * 3
    grounds = [learner.round(block(27)).ground for _ in range(9)]
    assert grounds[0] is not Ground.PROOF
    assert Ground.PROOF in grounds


def test_a_ruined_draft_is_not_delivered_whatever_was_proven() -> None:
    learner = Learner()
    held_back = learner.round(GAINS, is_ruined=True)
    assert (held_back.version, held_back.ground) == (0, Ground.RUINED)
    assert learner.round(GAINS).ground is Ground.PROOF
    assert learner.round(EQUAL, is_ruined=True).version == 2
    assert learner.round(EQUAL).version == 4


def test_without_trust_every_step_needs_a_proof_of_its_own() -> None:
    learner = Learner(DeliveryRules(PrequentialRules(), trusted_rounds=0))
    grounds = [learner.round(met).ground for met in (GAINS, EQUAL, GAINS)]
    assert grounds == [Ground.PROOF, Ground.NOTHING_YET, Ground.PROOF]


@pytest.mark.parametrize("rounds", range(5))
def test_a_restored_delivery_decides_as_the_first_one_would(rounds: int) -> None:
    met = [EQUAL, GAINS, EQUAL, block(28), HARMS]
    learner, copy = Learner(), Learner()
    for one in met[:rounds]:
        learner.round(one)
    copy.live, copy.newest = learner.live, learner.newest
    copy.delivery.restore(json.loads(json.dumps(learner.delivery.state())))
    for one in met[rounds:]:
        assert copy.round(one) == learner.round(one)
    assert copy.delivery.reference == learner.delivery.reference


def test_an_empty_state_changes_nothing() -> None:
    learner = Learner()
    learner.delivery.restore({})
    assert (learner.delivery.reference, learner.round(EQUAL).ground) == (0, Ground.NOTHING_YET)


def test_fewer_than_no_trusted_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="trusted_rounds: got -1, expected at least 0"):
        DeliveryRules(trusted_rounds=-1)
    with pytest.raises(ValueError, match="full_round: got 0, expected at least 1"):
        DeliveryRules(full_round=0)
