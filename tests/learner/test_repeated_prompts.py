"""A learner whose requests are several answers to a few prompts: one bet for each of these, and none a claim late."""

from typing import Any

from paceline.learner.judging.paired_replay import paired
from paceline.learner.model.draft_io import load_draft, load_target_embedding

EAGER = {"learn": "always", "passes": 1}
PROMPTS = [f"{number:016x}" for number in range(9)]


def send(house: Any, *prompts: str) -> None:
    """One request for each, in this order."""
    for prompt in prompts:
        house.send(1, prompt=prompt)


def late(reason: str) -> str:
    """What the reason says of requests left out for their prompts."""
    return next((part for part in reason.split("; ") if "just judged" in part), "")


def test_answers_to_a_prompt_bet_together_and_those_of_the_next_claim_do_not_bet_again(house) -> None:
    learner = house.learner(**EAGER)
    house.send()  # the line moves away from the reference
    learner.learn_once()
    send(house, *PROMPTS[:6] * 4)  # in turns, as answers come that are made at the same time
    first = learner.learn_once().promotion
    assert first.measured.requests == 24
    assert "on 36 requests to 18 prompts: " in first.reason  # with the second half of the claim before
    assert late(first.reason) == ""

    send(house, *PROMPTS[:6], *PROMPTS[6:] * 4)  # one answer to each is a claim late
    second = house.learner(**EAGER).learn_once().promotion  # as after a restart
    assert second.measured.requests == 12
    assert late(second.reason) == "6 more left out, since other answers to their prompts had just judged"

    send(house, *PROMPTS[:6] * 2)
    third = house.learner(**EAGER).learn_once().promotion
    assert (third.measured.requests, late(third.reason)) == (12, "")


def test_a_pair_has_the_prompt_of_its_request(tiny_speculator) -> None:
    traces = [tiny_speculator.serve(i, prompt=prompt) for i, prompt in enumerate((PROMPTS[1], "", PROMPTS[1]))]
    draft = load_draft(tiny_speculator.draft, load_target_embedding(tiny_speculator.target))
    assert [pair.prompt for pair in paired(traces, draft, draft, 3)] == [PROMPTS[1], "", PROMPTS[1]]
