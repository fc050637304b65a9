"""A learner whose requests are several answers to a few prompts: one bet for each of these, and none a claim late."""

import json
from dataclasses import replace
from typing import Any

from paceline.buffer.board.reason import Reason
from paceline.buffer.board.version import VersionState
from paceline.buffer.stream.trace import DraftTrace
from paceline.learner.judging.line_judge import LastLearnt
from paceline.learner.judging.paired_replay import paired
from paceline.learner.model.draft_io import load_draft, load_target_embedding

EAGER = {"learn": "always", "passes": 1}
A_KEY, B_KEY, C_KEY = (f"{number:016x}" for number in (10, 11, 12))
PROMPTS = [f"{number:016x}" for number in range(9)]


def send(house: Any, *prompts: str) -> None:
    """One request for each, in this order."""
    for prompt in prompts:
        house.send(1, prompt=prompt)


def late(reason: Reason) -> float:
    """Requests left out for their prompts."""
    return reason.figures.get("late", 0)


def test_answers_to_a_prompt_bet_together_and_those_of_the_next_claim_do_not_bet_again(house) -> None:
    learner = house.learner(**EAGER)
    house.send()  # the line moves away from the reference
    learner.learn_once()
    send(house, *PROMPTS[:6] * 4)  # in turns, as answers come that are made at the same time
    first = learner.learn_once().promotion
    assert first.measured.requests == 24
    counts = first.reason.figures["requests"], first.reason.figures["prompts"]
    assert counts == (36, 18)  # with the second half of the claim before
    assert late(first.reason) == 0

    send(house, *PROMPTS[:6], *PROMPTS[6:] * 4)  # one answer to each is a claim late
    second = house.learner(**EAGER).learn_once().promotion  # as after a restart
    assert second.measured.requests == 12
    assert late(second.reason) == 6

    send(house, *PROMPTS[:6] * 2)
    third = house.learner(**EAGER).learn_once().promotion
    assert (third.measured.requests, late(third.reason)) == (12, 0)


def test_no_answer_judges_whose_prompt_was_learnt_in_the_claim_before_in_either_block(house) -> None:
    learner, new = house.learner(**EAGER), iter(f"{number:016x}" for number in range(100, 200))
    old = [next(new) for _ in range(16)]
    send(house, *old)  # the first block is learnt by a line that is the reference, and so is not judged
    assert learner.learn_once().promotion.measured.requests == 8
    send(house, *(next(new) for _ in range(16)), *old)  # the further answers are the second block
    promotion = learner.learn_once().promotion
    assert promotion.measured.requests == 16
    assert late(promotion.reason) == 16


def test_a_request_judges_once_even_where_the_replay_buffer_holds_no_trace_of_it_any_more(house) -> None:
    learner = house.learner(**EAGER, replay_traces=4)
    house.send()  # the line moves away from the reference
    learner.learn_once()
    house.send(1, request_id="long")
    house.send(15)
    assert learner.learn_once().promotion.measured.requests == 16
    assert "long" not in {entry.trace.request_id for entry in learner._state.replay_buffer}
    house.send(8)
    house.send(1, request_id="long")
    assert learner.learn_once().promotion.measured.requests == 8


def test_what_is_remembered_is_one_claim_of_a_tenant_s_prompts(make_trace) -> None:
    def trace(request: str, prompt: str, tenant: str = "ada") -> DraftTrace:
        return replace(make_trace(0), request_id=request, prompt=prompt, tenant=tenant)

    first = LastLearnt({})
    first.note([trace("r1", A_KEY), trace("r2", "")])
    first.note([trace("r3", B_KEY)])
    assert not first.has_prompt_of(trace("r4", A_KEY))  # all answers of a claim are in one block
    second = LastLearnt(json.loads(json.dumps(first.state())))
    assert second.requests == {"r1", "r2", "r3"}
    asked = [(A_KEY, "ada"), (B_KEY, "ada"), (C_KEY, "ada"), (A_KEY, "bob"), ("", "ada")]
    assert [second.has_prompt_of(trace("r5", *each)) for each in asked] == [True, True, False, False, False]
    assert second.state() == first.state()  # it has learnt nothing itself
    second.note([trace("r5", A_KEY), trace("r6", C_KEY)])
    assert json.loads(json.dumps(second.state())) == {"requests": ["r5", "r6"], "prompts": [["ada", C_KEY]]}


def test_a_line_that_starts_over_still_knows_what_its_weights_have_just_learnt(house) -> None:
    learner = house.learner(**EAGER)
    house.send()
    learner.learn_once()
    send(house, *PROMPTS)
    learner.learn_once()
    other = next(number for number in house.board.read().rows if number != house.board.read().live)
    house.board.move(other, VersionState.LIVE, "operator:ada", "by hand")
    send(house, *PROMPTS, *(f"{number:016x}" for number in range(50, 59)))
    promotion = learner.learn_once().promotion
    assert late(promotion.reason) == 9


def test_a_pair_has_the_prompt_of_its_request(tiny_speculator) -> None:
    traces = [tiny_speculator.serve(i, prompt=prompt) for i, prompt in enumerate((PROMPTS[1], "", PROMPTS[1]))]
    draft = load_draft(tiny_speculator.draft, load_target_embedding(tiny_speculator.target))
    assert [pair.prompt for pair in paired(traces, draft, draft, 3)] == [PROMPTS[1], "", PROMPTS[1]]
