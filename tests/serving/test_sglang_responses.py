"""Acceptance in a response: what is left out where SGLang does not know it, and a fault that costs nothing."""

import asyncio

import pytest
from paceline.serving import sglang_responses

DETAILS = {
    "spec_verify_ct": 4,
    "spec_num_correct_drafts": 3,
    "spec_num_proposed_drafts": 12,
    "spec_correct_drafts_histogram": [2, 1, 1],
}


def test_where_the_length_varies_what_was_proposed_is_left_out():
    assert sglang_responses.speculative_decoding(DETAILS, has_one_length=False) == {
        "mean_acceptance_length": 1.75,
        "acceptance_histogram": [2, 1, 1],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 3,
    }


@pytest.mark.parametrize("details", [None, [DETAILS, DETAILS], {**DETAILS, "spec_verify_ct": 0}])
def test_nothing_is_said_of_no_round_or_of_several_answers(details):
    assert sglang_responses.speculative_decoding(details, has_one_length=True) is None


def test_a_fault_of_ours_leaves_the_response_as_it_was(monkeypatch, caplog):
    class Asking:
        return_spec_tokens_details = True

    async def handle(_serving, _request, _raw_request):
        return "SGLang's"

    def broken(_response):
        raise KeyError("spec_verify_ct")

    monkeypatch.setattr(sglang_responses, "_with_metrics", broken)
    assert asyncio.run(sglang_responses.answer(handle, None, Asking(), None)) == "SGLang's"
    assert "without metrics.speculative_decoding" in caplog.text


def test_a_fault_in_a_stream_costs_no_chunk(monkeypatch, caplog):
    def broken(_body):
        raise KeyError("spec_verify_ct")

    async def sent():
        for chunk in ('data: {"sglext":{}}\n\n', 'data: {"usage":{}}\n\n', "data: [DONE]\n\n"):
            yield chunk

    async def received():
        return [chunk async for chunk in sglang_responses._streamed(sent())]

    monkeypatch.setattr(sglang_responses, "_found", broken)
    assert asyncio.run(received()) == ['data: {"sglext":{}}\n\n', 'data: {"usage":{}}\n\n', "data: [DONE]\n\n"]
    assert "a stream goes on" in caplog.text
