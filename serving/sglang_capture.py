"""Capture on SGLang's own auxiliary-output lane (sglang/srt/managers/auxiliary_output.py).

Hook bodies run in the scheduler thread. They build a few fresh tensors and attach them to
``logits_output.auxiliary_device_output``; SGLang copies them to the host on its copy stream and calls ``consume``
once the tokens are committed. There they are sent to the courier process. Nothing waits.
"""

import functools
import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..buffer.trace import FeatureDtype, Sampling, VerdictRule
from .breaker import Breaker
from .counts import CaptureCounts, SkipReason
from .lane import Chosen, DeviceStep, HostStep
from .letters import FEATURES, LOGITS, READ_IDS, TEACHER_IDS, TEACHER_LOGPROBS, VERDICTS, PrefillHead, VerifyHead
from .link import CourierLink
from .steps import Commit, RequestFacts

#: Request ids SGLang's own probes begin with.
HEALTH_CHECK_PREFIX = "HEALTH_CHECK"
#: Keys a client may set in ``sampling_params.custom_params``.
OPT_OUT_KEY, TENANT_KEY = "paceline_opt_out", "paceline_tenant"


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """What is captured of whom."""

    top_k: int
    features: bool
    sample_rate: float


class SglangCapture:
    """The three hook bodies and what they share. `draft_version` is read when a step is launched."""

    def __init__(
        self,
        settings: CaptureSettings,
        link: CourierLink,
        counts: CaptureCounts,
        breaker: Breaker,
        draft_version: Callable[[], int],
    ) -> None:
        self._settings, self._link, self._counts = settings, link, counts
        self._draft_version = draft_version
        self._prefill: DeviceStep | None = None
        self._consume = breaker.guard(self._offer)
        self.after_verify = breaker.guard(self._after_verify)
        self.before_draft_prefill = breaker.guard(self._before_draft_prefill)
        self.after_prefill = breaker.guard(self._after_prefill)

    def _after_verify(self, result: Any, verify_input: Any, batch: Any, logits_output: Any, *_: Any, **__: Any) -> None:
        """AFTER eagle_sample(verify_input, batch, logits_output, ...) -> (predict, accept_lens, accept_index).

        Only what a chain draft produces is understood: node j of a request is its draft j, node 0 the root.
        """
        chosen = self._choose(batch)
        if chosen is None:
            return
        _, accept_lens, accept_index = result
        width = verify_input.draft_token_num
        rows = _row_index(chosen, len(batch.reqs), accept_lens.device)
        drafted = _rows(verify_input.draft_token.view(-1, width), rows)
        ints = [drafted, _rows(batch.seq_lens, rows).view(-1, 1), _rows(accept_lens, rows).view(-1, 1)]
        tensors = {VERDICTS: torch.cat([part.to(torch.int32) for part in ints], dim=1)}
        tensors |= self._teacher(
            logits_output.next_token_logits.view(-1, width, logits_output.next_token_logits.shape[-1]), rows
        )
        if self._settings.features and logits_output.hidden_states is not None:
            # Accepted nodes only; -1 pads to the tree's depth and is cut on the host, where the length is known.
            nodes = _rows(accept_index, rows).clamp(min=0).reshape(-1).long()
            tensors[FEATURES] = logits_output.hidden_states.index_select(0, nodes)

        def head(commits: tuple[Commit, ...], dtype: FeatureDtype) -> VerifyHead:
            return VerifyHead(chosen.request_ids, chosen.draft_version, commits, dtype)

        _attach(logits_output, DeviceStep(chosen, tensors, head, self._consume))

    def _teacher(self, logits: torch.Tensor, rows: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Top-K log-probabilities of every verified node, [requests, width, K], after penalties, bias and grammar.

        Without a device they would be found on the scheduler's own core: then the logits are kept for the courier.
        """
        if not self._settings.top_k:
            return {}
        if logits.device.type == "cpu":
            return {LOGITS: logits.clone() if rows is None else logits.index_select(0, rows)}
        logits = _rows(logits, rows)
        values, ids = torch.topk(logits, self._settings.top_k, dim=-1)
        logprobs = values - torch.logsumexp(logits, dim=-1, keepdim=True)
        return {TEACHER_IDS: ids.to(torch.int32), TEACHER_LOGPROBS: logprobs.to(torch.float16)}

    def _before_draft_prefill(self, _worker: Any, batch: Any, hidden: Any, *_: Any, **__: Any) -> None:
        """BEFORE _draft_extend_for_prefill: here `batch.input_ids` are still the true ids; the callee rotates them."""
        self._prefill = None
        chosen = self._choose(batch, count_skips=True)
        if chosen is None:
            return
        tensors = {READ_IDS: batch.input_ids.to(torch.int32, copy=True)}
        if self._settings.features and hidden is not None:
            tensors[FEATURES] = hidden.clone()
        ends = list(itertools.accumulate(batch.extend_lens))
        spans = tuple(
            (int(batch.prefix_lens[row]), int(ends[row] - batch.extend_lens[row]), int(ends[row]))
            for row in chosen.rows
        )
        facts = tuple(self._facts(batch.reqs[row]) for row in chosen.rows)

        def head(commits: tuple[Commit, ...], dtype: FeatureDtype) -> PrefillHead:
            return PrefillHead(chosen.request_ids, chosen.draft_version, commits, facts, spans, dtype)

        self._prefill = DeviceStep(chosen, tensors, head, self._consume)

    def _after_prefill(self, result: Any, *_: Any, **__: Any) -> None:
        """AFTER _forward_prefill_batch: SGLang clears the lane before the draft's prefill, so attach only now."""
        step, self._prefill = self._prefill, None
        if step is not None and result is not None and result.logits_output is not None:
            _attach(result.logits_output, step)

    def _choose(self, batch: Any, *, count_skips: bool = False) -> Chosen | None:
        if batch.forward_mode.is_idle() or not batch.reqs:
            return None
        rows = []
        for row, req in enumerate(batch.reqs):
            reason = self._skip_reason(req)
            if reason is None:
                rows.append(row)
            elif count_skips:
                self._counts.skip(reason)
        if not rows:
            return None
        return Chosen(tuple(rows), tuple(batch.reqs[row].rid for row in rows), self._draft_version())

    def _skip_reason(self, req: Any) -> SkipReason | None:
        if req.rid.startswith(HEALTH_CHECK_PREFIX):
            return SkipReason.HEALTH_CHECK
        if (req.sampling_params.custom_params or {}).get(OPT_OUT_KEY):
            return SkipReason.OPTED_OUT
        if self._settings.sample_rate < 1.0 and zlib.crc32(req.rid.encode()) >= self._settings.sample_rate * 2**32:
            return SkipReason.SAMPLED_OUT
        return None

    def _facts(self, req: Any) -> RequestFacts:
        params = req.sampling_params
        greedy = params.top_k == 1  # SGLang writes temperature 0 as top_k 1 at temperature 1
        edited = bool(
            params.frequency_penalty
            or params.presence_penalty
            or params.repetition_penalty != 1.0
            or params.logit_bias
            or req.grammar is not None
        )
        sampling = Sampling(0.0 if greedy else params.temperature, params.top_k, params.top_p, edited)
        tenant = str((params.custom_params or {}).get(TENANT_KEY, ""))
        return RequestFacts(tenant, sampling, VerdictRule.GREEDY if greedy else sampled_rule())

    def _offer(self, step: HostStep, batch: Any, commits: Sequence[Any]) -> None:
        """Scheduler thread, after commit and before streaming: send and return."""
        reqs = [batch.reqs[row] for row in step.chosen.rows]
        if tuple(req.rid for req in reqs) != step.chosen.request_ids:
            self._link.lose(step.chosen.request_ids)
            return
        seen = tuple(_commit(req, commits[row]) for row, req in zip(step.chosen.rows, reqs, strict=True))
        self._link.offer(*step.letter(seen))


@functools.cache
def sampled_rule() -> VerdictRule:
    """The rule by which this SGLang verifies a request at a temperature above 0; inside its scheduler process only.

    Some hosts commit the argmax whatever the temperature: SGLang's own predicate knows, plugins included.
    """
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative import eagle_utils

    # What SGLang resolved, which is not always what its arguments say: on ROCm it turns rejection sampling on.
    is_rejection = bool(get_spec().speculative_use_rejection_sampling)
    if eagle_utils._verify_uses_greedy(  # noqa: SLF001 - the very answer that eagle_sample acts on
        is_all_greedy=False,
        is_cpu=eagle_utils._is_cpu,  # noqa: SLF001 - same
        is_hip=eagle_utils._is_hip,  # noqa: SLF001 - same
        is_xpu=eagle_utils._is_xpu,  # noqa: SLF001 - same
        use_rejection_sampling=is_rejection,
    ):
        return VerdictRule.GREEDY
    return VerdictRule.REJECTION if is_rejection else VerdictRule.TARGET_ONLY


def _attach(logits_output: Any, step: DeviceStep) -> None:
    from sglang.srt.managers.auxiliary_output import append_auxiliary_output

    logits_output.auxiliary_device_output = append_auxiliary_output(logits_output.auxiliary_device_output, step)


def _commit(req: Any, commit: Any) -> Commit:
    finish = req.finished_reason.to_json()["type"] if req.finished() else ""
    if commit is None:
        return Commit(-1, (), finish)
    return Commit(commit.output_index, tuple(commit.token_ids), finish)


def _row_index(chosen: Chosen, batch_size: int, device: torch.device) -> torch.Tensor | None:
    """Rows to keep; None when the whole batch is captured, which needs no gather."""
    return None if len(chosen.rows) == batch_size else torch.tensor(chosen.rows, device=device)


def _rows(tensor: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    return tensor if rows is None else tensor.index_select(0, rows)
