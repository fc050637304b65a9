"""What an OpenAI response says of a request's drafts is what its trace says, in vLLM's shape."""

import json
from collections import Counter

import httpx
import pytest

pytestmark = pytest.mark.e2e
ASKED = {"return_spec_tokens_details": True}


def posted(rig, path, **more):
    """The bodies of a response: one, or one per chunk of a stream."""
    body = {"model": "any", "temperature": 0.0, "ignore_eos": True, "max_tokens": 24, **more}
    text = rig.texts[0][:200]
    body |= {"prompt": text} if path == "completions" else {"messages": [{"role": "user", "content": text}]}
    reply = httpx.post(f"http://127.0.0.1:{rig.port}/v1/{path}", json=body, timeout=300.0, trust_env=False)
    assert reply.status_code == 200, reply.text
    if not body.get("stream"):
        return [reply.json()]
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def of_the_trace(trace, steps):
    """vLLM's object, from the rounds one by one."""
    accepted = [int(each) for each in trace.rounds.accepted]
    counted = Counter(accepted)
    return {
        "mean_acceptance_length": 1 + sum(accepted) / len(accepted),
        "draft_acceptance_rate": sum(accepted) / (len(accepted) * steps),
        "acceptance_histogram": [counted[drafts] for drafts in range(steps + 1)],
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": len(accepted) * steps,
        "num_spec_tokens": steps,
    }


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("stream", [{}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_a_response_tells_what_the_trace_tells(rig, path, stream):
    *earlier, last = posted(rig, path, **ASKED, **stream)
    rig.drained()
    (trace,) = rig.traces_of(last["id"])
    assert last["metrics"] == {"speculative_decoding": of_the_trace(trace, rig.steps)}
    assert last["usage"]["completion_tokens"] == 24
    assert not any("metrics" in body for body in earlier)


def test_what_nobody_asked_for_or_is_of_two_answers_is_not_there(rig):
    asked = posted(rig, "completions", n=2, **ASKED)
    assert len(asked[0]["sglext"]["spec_tokens_details"]) == 2  # which vLLM leaves out as well
    for body in [*asked, *posted(rig, "completions"), *posted(rig, "completions", stream=True)]:
        assert "metrics" not in body


def test_a_refused_request_is_refused_as_before(rig):
    body = {"model": "any", "prompt": "a", "max_tokens": 100_000, **ASKED}
    reply = httpx.post(f"http://127.0.0.1:{rig.port}/v1/completions", json=body, timeout=300.0, trust_env=False)
    assert (reply.status_code, reply.json()["object"]) == (400, "error")
