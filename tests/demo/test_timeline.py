"""What happened when, against sums made by hand."""

import random

from paceline.buffer.board.version import VersionState
from paceline.dashboards.tables import VersionLine
from paceline.demo.timeline import STRETCH_REQUESTS, timeline
from paceline.policies.acceptance import Tally
from paceline.rig.prompts import Prompt
from paceline.rig.reader import Swap
from paceline.rig.traffic import Arrival, Served

BEGAN = 1_000.0


def served(domain: str, sent_s: float, accepted: int, rounds: int = 10) -> Served:
    arrivals = (Arrival(BEGAN + sent_s + 2.0, 5),)
    prompt = Prompt(f"{domain}-{sent_s}", domain, (1,))
    return Served(
        prompt=prompt,
        sent_at=BEGAN + sent_s,
        arrivals=arrivals,
        output_ids=(1,),
        finish="length",
        tally=Tally(accepted, rounds),
        retractions=0,
    )


def test_every_request_is_in_one_stretch_of_its_domain_in_the_order_of_ending() -> None:
    draw = random.Random(3)
    py = [served("py", float(second), draw.randrange(30)) for second in range(2 * STRETCH_REQUESTS + 5)]
    prose = [served("prose", 40.0 + second, draw.randrange(30)) for second in range(3)]
    mixed = [*py, *prose]
    draw.shuffle(mixed)
    found = timeline(mixed, [], [])["accept_length"]
    assert [(each["domain"], each["requests"]) for each in found] == [("py", 14), ("py", 15), ("prose", 3)]
    for each, part in zip(found, (py[:14], py[14:], prose), strict=True):
        accepted = sum(one.tally.accepted for one in part)
        rounds = sum(one.tally.rounds for one in part)
        assert each["accept_length"] == round(1 + accepted / rounds, 4)
        assert each["at_s"] == round(sum(one.sent_at + 2.0 - BEGAN for one in part) / len(part), 1)
    assert all(each["low"] < each["accept_length"] < each["high"] for each in found[:2])
    assert (found[2]["low"], found[2]["high"]) == (None, None)  # of three requests no spread is known


def test_a_request_that_failed_is_in_no_stretch() -> None:
    (found,) = timeline([served("py", 0.0, 10), served("py", 1.0, 0, rounds=0)], [], [])["accept_length"]
    assert (found["requests"], found["accept_length"]) == (1, 2.0)


def test_domains_begin_when_their_first_request_was_sent() -> None:
    sent = [served("prose", 30.0, 0), served("py", 0.0, 0), served("py", 10.0, 0), served("prose", 40.0, 0)]
    assert timeline(sent, [], [])["domains"] == [{"domain": "py", "from_s": 0.0}, {"domain": "prose", "from_s": 30.0}]


def test_domains_that_take_turns_have_no_turn() -> None:
    sent = [served(domain, float(second), 0) for second, domain in enumerate(("py", "prose", "py"))]
    assert timeline(sent, [], [])["domains"] == []


def test_swaps_refusals_and_rollbacks_are_told_by_number_time_and_reason() -> None:
    swaps = [Swap(1, 2.0, 3, BEGAN + 20.04), Swap(2, 2.0, 0, BEGAN + 50.0)]
    states = [VersionState.RETIRED, VersionState.LIVE, VersionState.REFUSED, VersionState.ROLLED_BACK]
    versions = [
        VersionLine(number=n, state=state, reason=f"why {n}", changed_at=BEGAN + 10.0 * n)
        for n, state in enumerate(states, 1)
    ]
    found = timeline([served("py", 0.0, 0)], swaps, versions)
    assert found["swaps"] == [{"number": 1, "at_s": 20.0}, {"number": 2, "at_s": 50.0}]
    assert found["refused"] == [{"number": 3, "at_s": 30.0, "reason": "why 3"}]
    assert found["rolled_back"] == [{"number": 4, "at_s": 40.0, "reason": "why 4"}]
