"""What a request's drafts came to, in its OpenAI response as vLLM has it; for SGLang's HTTP process.

SGLang tells a request that asks for it (`return_spec_tokens_details`) under `sglext`. Load generators read what vLLM
has since its pull requests 48915 and 43310, `metrics.speculative_decoding`: in a whole answer at the top, in a stream
in the chunk of its usage, and of one choice alone.
"""

import json
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

log = logging.getLogger(__name__)

#: SGLang's `OpenAIServingBase.handle_request`: serving, request, raw request -> a pydantic model or a response.
Handle = Callable[[Any, Any, Any], Awaitable[Any]]
_DATA = "data: "


async def answer(handle: Handle, serving: Any, request: Any, raw_request: Any) -> Any:
    """Around `handle_request`: add the metrics to the response of a request that asked for SGLang's own.

    Of others nothing is touched, and on a fault of ours the response is SGLang's.
    """
    response = await handle(serving, request, raw_request)
    if not getattr(request, "return_spec_tokens_details", False):
        return response
    try:
        return _with_metrics(response)
    except Exception:  # the answer is there: it goes out without the metrics
        log.exception("paceline: a response goes out without metrics.speculative_decoding")
        return response


def speculative_decoding(details: Any, *, has_one_length: bool) -> Mapping[str, Any] | None:
    """vLLM's object of SGLang's `spec_tokens_details`; None of several choices, and without a verify round.

    `acceptance_histogram[j]` counts the verify rounds that accepted j drafts, and the mean includes the bonus token.
    Where the number of draft steps varies, SGLang does not count what was proposed: those fields are left out.
    """
    if not isinstance(details, Mapping) or not details["spec_verify_ct"]:
        return None
    rounds = details["spec_verify_ct"]
    accepted = details["spec_num_correct_drafts"]
    proposed = details["spec_num_proposed_drafts"]
    drafts = proposed // rounds
    counted = details["spec_correct_drafts_histogram"]
    told = {
        "mean_acceptance_length": 1 + accepted / rounds,
        "acceptance_histogram": counted + [0] * (drafts + 1 - len(counted)) if has_one_length else counted,
        "num_spec_steps": rounds,
        "num_accepted_draft_tokens": accepted,
    }
    if not has_one_length:
        return told
    return {
        **told,
        "draft_acceptance_rate": accepted / proposed,
        "num_draft_tokens": proposed,
        "num_spec_tokens": drafts,
    }


def _with_metrics(response: Any) -> Any:
    from fastapi.responses import Response, StreamingResponse
    from pydantic import BaseModel

    if isinstance(response, StreamingResponse):
        response.body_iterator = _streamed(response.body_iterator)
        return response
    if not isinstance(response, BaseModel):  # an error
        return response
    body = json.loads(response.model_dump_json(by_alias=True))
    found = _found(body)
    return response if found is None else Response(_dumped({**body, **found}), media_type="application/json")


async def _streamed(chunks: AsyncIterable[Any]) -> AsyncIterator[Any]:
    """The same chunks; the one of the usage has what an earlier one said of the drafts."""
    found: Mapping[str, Any] | None = None
    async for chunk in chunks:
        told = chunk
        try:
            if '"sglext"' in chunk:
                found = _found(json.loads(chunk.removeprefix(_DATA)))
            elif found is not None and '"usage":{' in chunk:
                told = f"{_DATA}{_dumped({**json.loads(chunk.removeprefix(_DATA)), **found})}\n\n"
        except Exception:  # as above
            log.exception("paceline: a stream goes on without metrics.speculative_decoding")
        yield told


def _found(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`metrics` of a response or of a stream's chunk that has `sglext`."""
    from sglang.srt.runtime_context import get_spec

    details = (body.get("sglext") or {}).get("spec_tokens_details")
    told = speculative_decoding(details, has_one_length=not get_spec().speculative_adaptive)
    return None if told is None else {"metrics": {"speculative_decoding": told}}


def _dumped(body: Mapping[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))
