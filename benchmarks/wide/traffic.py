"""An acted scheduler: random tensors of a real width through the real hook bodies, and what these take of its thread.

R requests run at a time, W nodes are verified of each, D is the width of a feature row.
"""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from ...serving.capture.sglang_capture import SglangCapture

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
#: Of the logits. Finding the best token is a GPU's work: here it must not count.
VOCABULARY = 256
FINISH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is streamed. Every request generates between half and one and a half times `output_tokens`."""

    hidden: int = 4096
    layers: int = 3
    dtype: str = "bfloat16"
    feature_format: str = "captured"  # or int8, quantised before they reach the host, as on a GPU
    prompt_tokens: int = 8192
    requests: int = 64
    at_once: int = 64
    output_tokens: int = 128
    draft_steps: int = 3
    chunk_tokens: int = 2048

    @property
    def width(self) -> int:
        """Values of a feature row."""
        return self.hidden * self.layers

    @property
    def row_bytes(self) -> int:
        """Bytes of a feature row."""
        return self.width * DTYPES[self.dtype].itemsize

    @property
    def forward_bytes(self) -> int:
        """At most so many bytes of features leave one forward."""
        return max(self.at_once * (self.draft_steps + 1), self.chunk_tokens) * self.row_bytes


@dataclass(slots=True, kw_only=True)
class Spent:
    """What the scheduler's thread did: seconds of its own processor time."""

    hooks_s: float = 0.0  # hook bodies, while a forward is launched
    hand_over_s: float = 0.0  # once its tokens are committed
    forwards: int = 0  # of which something was captured
    captured_bytes: int = 0  # of their tensors
    prompts: int = 0
    output_tokens: int = 0


class ActedScheduler:
    """Prefills requests and verifies drafts of up to `load.at_once` of them together, until all have ended.

    `before_forward` is called with the bytes that a forward may hand on, and may wait.
    """

    def __init__(
        self, load: Load, capture: SglangCapture, before_forward: Callable[[int], object], seed: int = 0
    ) -> None:
        self._load = load
        self._capture = capture
        self._before_forward = before_forward
        self._random = random.Random(seed)
        noise = torch.Generator().manual_seed(seed)
        rows = max(load.chunk_tokens, load.at_once * (load.draft_steps + 1))
        self._hidden_ND = torch.randn(rows, load.width, generator=noise).to(DTYPES[load.dtype])
        self._logits_NV = torch.randn(load.at_once * (load.draft_steps + 1), VOCABULARY, generator=noise)
        self.spent = Spent()

    def run(self) -> Spent:
        """Serve every request; blocks."""
        waiting = [self._request(number) for number in range(self._load.requests)]
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < self._load.at_once:
                running.append(waiting.pop(0))
                self._prefill(running[-1])
            self._verify(running)
            running = [req for req in running if not req.finished()]
        return self.spent

    def _request(self, number: int) -> Any:
        req = request(self._load.prompt_tokens)
        most = self._load.output_tokens * 3 // 2
        wanted = self._random.randint(max(self._load.output_tokens // 2, 2), max(most, 2))
        req.rid = f"{number:032x}"
        req.origin_input_ids = list(range(self._load.prompt_tokens))
        req.finished = lambda: len(req.output_ids) >= wanted
        return req

    def _prefill(self, req: Any) -> None:
        for start in range(0, self._load.prompt_tokens, self._load.chunk_tokens):
            count = min(self._load.chunk_tokens, self._load.prompt_tokens - start)
            batch = SimpleNamespace(
                reqs=[req], decoding_reqs=None, extend_lens=[count], prefix_lens=[start], device="cpu",
                input_ids=torch.arange(start, start + count) % VOCABULARY, forward_mode=_DECODING,
            )  # fmt: skip
            is_last = start + count == self._load.prompt_tokens
            self._forward(batch, [self._commit(req, [0])] if is_last else [None], self._hooks_of_prefill)
        self.spent.prompts += 1

    def _hooks_of_prefill(self, batch: Any) -> Any:
        result = SimpleNamespace(logits_output=SimpleNamespace(auxiliary_device_output=None))
        hidden_ND = self._hidden_ND[: len(batch.input_ids)]
        self._timed(self._capture.before_draft_prefill, None, batch, hidden_ND)
        self._timed(self._capture.after_prefill, result)
        return result.logits_output.auxiliary_device_output

    def _verify(self, reqs: list[Any]) -> None:
        width = self._load.draft_steps + 1
        last_R = [req.output_ids[-1] for req in reqs]
        drafts = [[self._random.randrange(VOCABULARY) for _ in range(width)] for _ in reqs]
        accepted = [self._random.randint(0, width - 1) for _ in reqs]
        position_R = [len(req.origin_input_ids) + len(req.output_ids) - 1 for req in reqs]
        batch = SimpleNamespace(
            reqs=reqs, device="cpu", forward_mode=_DECODING, seq_lens=torch.tensor(position_R),
            accepted=accepted, drafted=[[last, *drafts[row][1:]] for row, last in enumerate(last_R)],
        )  # fmt: skip
        commits = [
            self._commit(req, [*draft[1 : 1 + count], draft[0]])
            for req, draft, count in zip(reqs, drafts, accepted, strict=True)
        ]
        self._forward(batch, commits, self._hooks_of_verify)

    def _hooks_of_verify(self, batch: Any) -> Any:
        width = self._load.draft_steps + 1
        nodes = len(batch.reqs) * width
        lens_R = torch.tensor(batch.accepted) + 1
        index_RW = torch.arange(nodes).view(-1, width)
        index_RW = torch.where(torch.arange(width) < lens_R[:, None], index_RW, -1)
        verify_input = SimpleNamespace(
            draft_token_num=width, tree_topk=1, draft_probs=None, draft_token=torch.tensor(batch.drafted).view(-1)
        )
        # From another place each time, or the rows of a trace would repeat and be compressed as no features are.
        begin = self._random.randrange(len(self._hidden_ND) - nodes + 1)
        # A copy: every forward has tensors of its own, which do not change while they wait.
        hidden_ND = self._hidden_ND[begin : begin + nodes].clone()
        logits_NV = self._logits_NV[:nodes]
        logits = SimpleNamespace(next_token_logits=logits_NV, hidden_states=hidden_ND, auxiliary_device_output=None)
        result = (torch.zeros(nodes), lens_R, index_RW)
        self._timed(self._capture.after_verify, result, verify_input, batch, logits)
        return logits.auxiliary_device_output

    def _forward(self, batch: Any, commits: Iterable[Any], hooks: Callable[[Any], Any]) -> None:
        self._before_forward(self._load.forward_bytes)
        output = hooks(batch)
        commits = list(commits)
        for req, commit in zip(batch.reqs, commits, strict=True):
            req.output_ids += commit.token_ids if commit else []
        if output is None:
            return
        self.spent.forwards += 1
        self.spent.captured_bytes += output.size_bytes
        began_s = time.thread_time()
        output.copy_to_host(_on_the_host).consume(batch, commits)
        self.spent.hand_over_s += time.thread_time() - began_s

    def _commit(self, req: Any, token_ids: list[int]) -> Any:
        self.spent.output_tokens += len(token_ids)
        return SimpleNamespace(output_index=len(req.output_ids), token_ids=token_ids)

    def _timed(self, hook: Callable[..., object], *arguments: object) -> None:
        began_s = time.thread_time()
        hook(*arguments)
        self.spent.hooks_s += time.thread_time() - began_s


_DECODING = SimpleNamespace(is_idle=lambda: False)


def _on_the_host(tensor: torch.Tensor) -> torch.Tensor:
    """In place of the copy that SGLang makes on a stream of its own."""
    return tensor


def request(prompt_tokens: int) -> Any:
    """A greedy request as SGLang's scheduler has it; `output_ids` grow when its prefill is over."""
    params = SimpleNamespace(
        top_k=1, top_p=1.0, temperature=1.0, frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0,
        min_new_tokens=0, logit_bias=None, custom_params=None,
    )  # fmt: skip
    plain = {"grammar": None, "lora_id": None, "multimodal_inputs": None, "input_embeds": None}
    plain |= {"extra_key": None, "routing_key": None}
    req = SimpleNamespace(
        rid="0" * 32, sampling_params=params, origin_input_ids=range(prompt_tokens), output_ids=[], **plain
    )
    req.finished = lambda: bool(req.output_ids)
    req.finished_reason = SimpleNamespace(to_json=lambda: {"type": FINISH})
    return req
