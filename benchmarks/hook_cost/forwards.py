"""Forwards of a made-up batch, as SGLang hands them to the hooks of capture."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from ...serving.breaker import Breaker
from ...serving.capture.prefill_rows import WindowSizes
from ...serving.capture.request_choice import RequestChoice
from ...serving.capture.sglang_capture import CaptureSettings, SglangCapture
from ...serving.wire.counts import CaptureCounts
from ...serving.wire.request_forward import TeacherWidth

#: Small, so that times are those of calls and not of arithmetic.
VOCAB = 64
FEATURE_WIDTH = 48
PROMPT_TOKENS = 12
#: What `paceline serve` captures unless it is told otherwise.
TEACHER = TeacherWidth(sampled=8)
SIZES = WindowSizes(trace_tokens=2048, context_tokens=512)


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of forward; `drafts` per request, 0 for a prefill."""

    batch: int
    drafts: int
    features: bool

    @property
    def is_prefill(self) -> bool:
        """Whether it reads prompts."""
        return self.drafts == 0


def capture_of(shape: Shape, outbox: Any) -> SglangCapture:
    """The product's hooks for one kind of forward; what they capture goes to `outbox`."""
    choice = RequestChoice(1.0, CaptureCounts(), lambda: 3, lambda: "7")
    return SglangCapture(CaptureSettings(TEACHER, shape.features, SIZES), outbox, choice, Breaker())


def batch_of(shape: Shape, device: str, *, is_captured: bool = True) -> Any:
    """Greedy requests on `device`; with `is_captured` false, all of them have opted out."""
    custom = None if is_captured else {"paceline_opt_out": True}
    reqs = [_request(f"request-{number}", custom) for number in range(shape.batch)]
    return SimpleNamespace(
        reqs=reqs,
        device=device,
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        decoding_reqs=None,
        seq_lens=torch.full((shape.batch,), PROMPT_TOKENS, device=device),
        input_ids=torch.zeros(shape.batch * PROMPT_TOKENS, dtype=torch.int64, device=device),
        extend_lens=[PROMPT_TOKENS] * shape.batch,
        prefix_lens=[0] * shape.batch,
    )


def hooks_of(capture: SglangCapture, shape: Shape, batch: Any, device: str) -> Any:
    """A call that runs the hooks of one forward, whose tensors are made here."""
    logits_output = SimpleNamespace(auxiliary_device_output=None)
    if shape.is_prefill:
        hidden = torch.zeros(shape.batch * PROMPT_TOKENS, FEATURE_WIDTH, dtype=torch.bfloat16, device=device)

        def prefill() -> Any:
            capture.before_draft_prefill(None, batch, hidden)
            capture.after_prefill(SimpleNamespace(logits_output=logits_output))
            return logits_output.auxiliary_device_output

        return prefill
    width = shape.drafts + 1
    nodes = shape.batch * width
    logits_output.next_token_logits = torch.zeros(nodes, VOCAB, device=device)
    logits_output.hidden_states = torch.zeros(nodes, FEATURE_WIDTH, dtype=torch.bfloat16, device=device)
    accepted = torch.ones(shape.batch, dtype=torch.int32, device=device)
    index = torch.arange(nodes, dtype=torch.int32, device=device).view(shape.batch, width)
    verify_input = SimpleNamespace(
        draft_token_num=width,
        tree_topk=1,
        draft_probs=None,
        draft_token=torch.zeros(nodes, dtype=torch.int64, device=device),
    )

    def verify() -> Any:
        capture.after_verify((None, accepted, index), verify_input, batch, logits_output)
        return logits_output.auxiliary_device_output

    return verify


def _request(request_id: str, custom_params: Any) -> Any:
    params = SimpleNamespace(
        top_k=1, top_p=1.0, temperature=1.0, frequency_penalty=0, presence_penalty=0, repetition_penalty=1.0,
        logit_bias=None, custom_params=custom_params, min_new_tokens=0,
    )  # fmt: skip
    return SimpleNamespace(
        rid=request_id,
        sampling_params=params,
        grammar=None,
        lora_id=None,
        extra_key=None,
        routing_key=None,
        multimodal_inputs=None,
        input_embeds=None,
        origin_input_ids=list(range(PROMPT_TOKENS)),
        output_ids=[],
        finished=lambda: False,
    )
