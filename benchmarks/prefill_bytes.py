"""Bytes that a prompt hands to the courier, as all of its rows would and as capture chooses them in the hook.

A trace window holds a prompt whole, or the last part of it as context where it would be longer than a window; the hook
of a prefill hands on that part alone. One request is prefilled chunk by chunk through the hook bodies, with zeros for
hidden states, and what arrives at the courier's end of the line is counted, heads and names included.
*All rows* is the same with a window as long as the prompt. Neither depends on the values or on the machine.

    python -m paceline.benchmarks.prefill_bytes [--prompt-tokens 1024 2047 2048 8192] [--chunk-tokens 2048]
        [--hidden 4096] [--layers 3] [--trace-tokens 2048]
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from ..serving.breaker import Breaker
from ..serving.capture.courier_sender import CourierSender
from ..serving.capture.outbox import Outbox
from ..serving.capture.prefill_rows import WindowSizes
from ..serving.capture.request_choice import RequestChoice
from ..serving.capture.sglang_capture import CaptureSettings, SglangCapture
from ..serving.config import ServingConfig
from ..serving.courier.receiver import CourierReceiver
from ..serving.wire.counts import CaptureCounts
from ..serving.wire.messages import Message, PrefillHead, WireForward, encode_message
from ..serving.wire.teacher_width import TeacherWidth
from .measure.command_line import benchmark_parser

#: Of unread messages: nothing is to be lost here.
MAX_BYTES = 1 << 40
#: For all messages to cross the line.
ARRIVE_S, POLL_S = 60.0, 0.01
FINISH = "length"


@dataclass(frozen=True, slots=True)
class HandedOn:
    """What arrived of one prompt: prompt tokens with their feature rows, and bytes of whole messages."""

    rows: int
    size_bytes: int


def main() -> None:
    """Measure and print."""
    options = parse()
    chosen = WindowSizes(options.trace_tokens, ServingConfig(trace_tokens=options.trace_tokens).context_tokens)
    print(f"features {options.hidden} x {options.layers} bfloat16, chunks of {options.chunk_tokens} tokens")
    print("| prompt tokens | all rows: rows | bytes per prompt token | chosen: rows | bytes per prompt token | ratio |")
    print("|---|---|---|---|---|---|")
    for prompt_tokens in options.prompt_tokens:
        ways = WindowSizes(prompt_tokens + 1, 1), chosen
        width = options.hidden * options.layers
        every, kept = (handed_on(prompt_tokens, options.chunk_tokens, width, sizes) for sizes in ways)
        print(line(prompt_tokens, every, kept), flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("prefill_bytes", __doc__)
    parser.add_argument(
        "--prompt-tokens", type=int, nargs="+", default=[1024, 2047, 2048, 8192], help="prompts (1024 to 8192)"
    )
    parser.add_argument("--chunk-tokens", type=int, default=2048, help="tokens of a prefill (2048)")
    parser.add_argument("--hidden", type=int, default=4096, help="the target's hidden size (4096)")
    parser.add_argument("--layers", type=int, default=3, help="layers whose states are captured (3)")
    parser.add_argument("--trace-tokens", type=int, default=ServingConfig().trace_tokens, help="of a window (2048)")
    return parser.parse_args()


def line(prompt_tokens: int, every: HandedOn, kept: HandedOn) -> str:
    """One row of the table."""
    cells = [cell for way in (every, kept) for cell in (way.rows, f"{way.size_bytes / prompt_tokens:,.0f}")]
    return f"| {prompt_tokens} | {' | '.join(map(str, cells))} | {kept.size_bytes / every.size_bytes:.3f} |"


def handed_on(prompt_tokens: int, chunk_tokens: int, width: int, sizes: WindowSizes) -> HandedOn:
    """Prefill one prompt whose features are `width` bfloat16 values per token; it ends with its first output token."""
    teacher, breaker = TeacherWidth(sampled=4), Breaker()
    with line_to_courier(teacher) as (sender, courier):
        settings = CaptureSettings(teacher, features=True, sizes=sizes)
        outbox = Outbox(sender, breaker, lambda: False)
        capture = SglangCapture(settings, outbox, RequestChoice(1.0, CaptureCounts(), lambda: 0, lambda: "0"), breaker)
        req = request(prompt_tokens)
        for start in range(0, prompt_tokens, chunk_tokens):
            prefill(capture, req, start, min(chunk_tokens, prompt_tokens - start), width)
        if breaker.faults:
            raise SystemExit(f"hook bodies: got {breaker.faults} faults, expected none")
        return arrived(courier)


@contextmanager
def line_to_courier(teacher: TeacherWidth) -> Iterator[tuple[CourierSender, CourierReceiver]]:
    """Both ends of a line."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        endpoint = f"ipc://{folder}/line"
        courier = CourierReceiver(endpoint, teacher, lambda _: None)
        opened.callback(courier.close)
        sender = CourierSender(endpoint, MAX_BYTES)
        opened.callback(sender.close)
        yield sender, courier


def request(prompt_tokens: int) -> Any:
    """A greedy request as SGLang's scheduler has it; `output_ids` grow when its prefill is over."""
    params = SimpleNamespace(
        top_k=1, top_p=1.0, temperature=1.0, frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0,
        min_new_tokens=0, logit_bias=None, custom_params=None,
    )  # fmt: skip
    plain = {"grammar": None, "lora_id": None, "multimodal_inputs": None, "input_embeds": None}
    req = SimpleNamespace(
        rid="0" * 32, sampling_params=params, origin_input_ids=range(prompt_tokens), output_ids=[], **plain
    )
    req.finished = lambda: bool(req.output_ids)
    req.finished_reason = SimpleNamespace(to_json=lambda: {"type": FINISH})
    return req


def prefill(capture: SglangCapture, req: Any, start: int, tokens: int, width: int) -> None:
    """One chunk of the request, from the hook before the draft's prefill to the commit."""
    batch = SimpleNamespace(
        reqs=[req], decoding_reqs=None, extend_lens=[tokens], prefix_lens=[start], device="cpu",
        input_ids=torch.arange(start, start + tokens), forward_mode=SimpleNamespace(is_idle=lambda: False),
    )  # fmt: skip
    hidden = torch.zeros(tokens, width, dtype=torch.bfloat16)
    result = SimpleNamespace(logits_output=SimpleNamespace(auxiliary_device_output=None))
    capture.before_draft_prefill(None, batch, hidden)
    capture.after_prefill(result)
    is_last = start + tokens == len(req.origin_input_ids)
    commit = SimpleNamespace(output_index=0, token_ids=[0]) if is_last else None
    req.output_ids += [0] * is_last
    output = result.logits_output.auxiliary_device_output
    if output is not None:
        output.copy_to_host(torch.clone).consume(batch, [commit])


def arrived(courier: CourierReceiver) -> HandedOn:
    """Read messages up to the one with the request's last forward; exits when it does not come."""
    rows = size_bytes = 0
    until_s = time.monotonic() + ARRIVE_S
    while time.monotonic() < until_s:
        for received in courier.take(POLL_S):
            forwards = tuple(one.forward for one in received.forwards)
            rows, size_bytes = rows + rows_of(forwards), size_bytes + size_of(forwards)
            if any(commit.finish for forward in forwards for commit in forward.head.commits):
                return HandedOn(rows, size_bytes)
    raise SystemExit(f"line to the courier: got no end of the request in {ARRIVE_S} s, expected it")


def size_of(forwards: tuple[WireForward, ...]) -> int:
    """Bytes of the message that brought them."""
    return sum(map(len, encode_message(Message(forwards))))


def rows_of(forwards: Sequence[WireForward]) -> int:
    """Prompt tokens whose rows these forwards hold."""
    heads = [forward.head for forward in forwards if isinstance(forward.head, PrefillHead)]
    return sum(end - begin for head in heads for _, begin, end in head.spans)


if __name__ == "__main__":
    main()
