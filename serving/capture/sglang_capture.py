"""Capture through SGLang's own auxiliary outputs (sglang/srt/managers/auxiliary_output.py).

Hook bodies run in the scheduler thread. They build a few fresh tensors and attach them to
``logits_output.auxiliary_device_output``; SGLang copies them to the host on its copy stream and calls ``consume``
once the tokens are committed. From there they go to the courier process. Nothing waits.
"""

import itertools
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ...buffer.stream.trace import FeatureDtype, TreeShape
from ..breaker import Breaker, losing_on_fault
from ..wire.counts import DropReason
from ..wire.messages import (
    COMMITTED_LOGPROBS,
    FEATURES,
    NODES,
    PACKED,
    READ_IDS,
    VERDICTS,
    PrefillHead,
    VerifyHead,
)
from ..wire.request_forward import Commit, TeacherWidth
from .committed_chances import committed_logprobs
from .device_output import FEATURE_DTYPES, Chosen, ForwardOutput, UncapturedForward
from .draft_path import is_tree, tokens_on, tree_of, tree_path
from .outbox import Outbox
from .plain_rounds import decoding_rows, plain_rounds
from .prefill_rows import WindowSizes, gathered, kept_rows
from .request_choice import RequestChoice
from .scaled_rows import scaled_rows
from .sglang_requests import adapter_of, commit_of, facts_of, ids_before
from .teacher import has_best_alone, rows_of, teacher_of

#: What a hook attaches to a forward.
_Launched = ForwardOutput | UncapturedForward


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """What is captured of a request."""

    teacher: TeacherWidth
    features: bool
    sizes: WindowSizes
    is_int8: bool = False  # whether a GPU quantises features before they leave it; a CPU leaves it to the courier

    def sent(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of features as they are sent from their device."""
        return scaled_rows(rows) if self.is_int8 and rows.is_cuda else rows


class SglangCapture:
    """The three hook bodies and what they share.

    While the target is being loaded, a forward runs with weights that no version names: nothing of it is captured, and
    its requests are lost once it is committed.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        outbox: Outbox,
        choice: RequestChoice,
        breaker: Breaker,
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self.choice = choice
        self._prefill: _Launched | None = None
        self._plain: _Launched | None = None  # decode steps in that prefill
        self._breaker = breaker
        self._consume = breaker.guard(self._offer)
        self._copy_failed = breaker.guard(self._lose)
        self._consume_uncaptured = breaker.guard(self._lose_committed)
        self.after_verify = breaker.guard(self._after_verify)
        self.before_draft_prefill = breaker.guard(self._before_draft_prefill)
        self.after_prefill = breaker.guard(self._after_prefill)

    def _after_verify(self, result: Any, verify_input: Any, batch: Any, logits_output: Any, *_: Any, **__: Any) -> None:
        """AFTER eagle_sample(verify_input, batch, logits_output, ...) -> (predict, accept_lens, accept_index).

        Of a chain, node j of a request is its draft j, node 0 the root; of a tree, a path is kept (draft_path.py).
        """
        with losing_on_fault(self.lose_batch, batch):
            chosen = self.choice.choose_again(batch)
        if chosen is None:
            return
        self.choice.rounds += len(chosen.rows)
        with losing_on_fault(self._lose_launched, chosen):
            attach(
                logits_output,
                self._verified(chosen, result, verify_input=verify_input, batch=batch, logits_output=logits_output),
            )

    def _verified(self, chosen: Chosen, result: Any, *, verify_input: Any, batch: Any, logits_output: Any) -> _Launched:
        if not chosen.target_version:
            return UncapturedForward(chosen, self._consume_uncaptured)
        logits = logits_output.next_token_logits
        features = logits_output.hidden_states if self._settings.features else None
        if logits.is_cuda:
            # Only here, where SGLang has imported Triton: nothing else needs it.
            from .round_kernel import fits, pack_round

            is_plain = not _has_probs(chosen, verify_input) and has_best_alone(chosen.is_greedy, self._settings.teacher)
            is_int8 = features is not None and self._settings.is_int8
            if is_plain and fits(verify_input, logits, features, is_quantised=is_int8):
                packed = pack_round(
                    result,
                    verify_input,
                    seq_lens=batch.seq_lens,
                    logits=logits,
                    features=features,
                    rows=chosen.row_index,
                    is_quantised=is_int8,
                )
                dtype = FEATURE_DTYPES[torch.int8 if is_int8 else torch.float32 if features is None else features.dtype]
                head = partial(_packed_head, chosen, verify_input.draft_token_num, dtype)
                return ForwardOutput(
                    chosen=chosen,
                    tensors={PACKED: packed},
                    make_head=head,
                    on_consume=self._consume,
                    on_copy_failed=self._copy_failed,
                )
        tensors = self._round_tensors(chosen, result, verify_input=verify_input, batch=batch, logits=logits)
        if features is not None:
            tensors |= _committed_rows(features, result[2], chosen.row_index)
            tensors[FEATURES] = self._settings.sent(tensors[FEATURES])
        head = partial(_verify_head, chosen, has_tree=is_tree(verify_input), tree=tree_of(result[2], verify_input))
        return ForwardOutput(
            chosen=chosen, tensors=tensors, make_head=head, on_consume=self._consume, on_copy_failed=self._copy_failed
        )

    def _round_tensors(
        self, chosen: Chosen, result: Any, *, verify_input: Any, batch: Any, logits: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """All of a round but its features, by single operations: for what the kernel does not know."""
        _, accept_lens, accept_index = result
        width = verify_input.draft_token_num
        rows = chosen.row_index
        widths = self._settings.teacher
        if is_tree(verify_input):
            path = rows_of(tree_path(accept_lens, accept_index, verify_input), rows)
            drafted = tokens_on(path, verify_input.draft_token)
            nodes = path.clamp(min=0).reshape(-1)
            teacher = teacher_of(logits.index_select(0, nodes).view(*path.shape, -1), None, chosen.is_greedy, widths)
        else:
            drafted = rows_of(verify_input.draft_token.view(-1, width), rows)
            teacher = teacher_of(logits.view(-1, width, logits.shape[-1]), rows, chosen.is_greedy, widths)
        ints = [drafted, rows_of(batch.seq_lens, rows).view(-1, 1), rows_of(accept_lens, rows).view(-1, 1)]
        tensors = {VERDICTS: torch.cat(ints, dim=1)} | teacher
        if _has_probs(chosen, verify_input):
            tensors[COMMITTED_LOGPROBS] = rows_of(committed_logprobs(result, verify_input, batch, logits), rows)
        return tensors

    def _before_draft_prefill(self, worker: Any, batch: Any, hidden: Any, *_: Any, **__: Any) -> None:
        """BEFORE _draft_extend_for_prefill: here `batch.input_ids` are still the true ids; the callee rotates them."""
        self._prefill = self._plain = None
        self.choice.forget()
        with losing_on_fault(self.lose_batch, batch):
            decoding = decoding_rows(batch)
            chosen = self.choice.choose(batch, is_prefill=True, decoding=decoding)
        if chosen is not None:
            hidden = hidden if self._settings.features else None
            with losing_on_fault(self._lose_launched, chosen):
                self._prefill = self._prefilled(chosen, batch, hidden, decoding, worker=worker)
                self._plain = self._decoded(chosen, batch, hidden, decoding)

    def _decoded(self, whole: Chosen, batch: Any, hidden: Any, decoding: Container[int]) -> _Launched | None:
        """The running requests of a mixed batch; None when there is none. SGLang counts no verify round for them."""
        rows = [row for row in whole.rows if row in decoding]
        if not rows:
            return None
        chosen = replace(whole.only(rows), is_prefill=False)
        if not chosen.target_version:
            return UncapturedForward(chosen, self._consume_uncaptured)
        tensors = plain_rounds(batch, rows, hidden)
        if hidden is not None:
            tensors[FEATURES] = self._settings.sent(tensors[FEATURES])
        return ForwardOutput(
            chosen=chosen,
            tensors=tensors,
            make_head=partial(_verify_head, chosen, has_tree=False, tree=None),
            on_consume=self._consume,
            on_copy_failed=self._copy_failed,
        )

    def _prefilled(
        self, whole: Chosen, batch: Any, hidden: Any, decoding: Container[int], *, worker: Any
    ) -> _Launched | None:
        """None when nothing of this prefill will be kept: it reads the middle of long prompts."""
        rows = [row for row in whole.rows if row not in decoding]
        if rows and not whole.target_version:
            return UncapturedForward(whole.only(rows), self._consume_uncaptured)
        kept = tuple(kept_rows(batch, rows, self._settings.sizes))
        if not kept:
            return None
        chosen = whole.only([one.row for one in kept])
        tensors = {READ_IDS: gathered(batch.input_ids, kept).to(torch.int32)}
        if hidden is not None:
            tensors[FEATURES] = self._settings.sent(gathered(hidden, kept))
        ends = itertools.accumulate(one.end - one.begin for one in kept)
        spans = tuple((one.start, end - (one.end - one.begin), end) for one, end in zip(kept, ends, strict=True))
        reqs = [batch.reqs[one.row] for one in kept]
        facts = tuple(facts_of(req, adapter_of(worker, req)) for req in reqs)
        # Features are all that a learner needs of what was read before; without them it needs the tokens.
        prefixes = () if hidden is not None else tuple(ids_before(batch.reqs[one.row], one.start) for one in kept)

        def head(commits: tuple[Commit, ...], dtype: FeatureDtype) -> PrefillHead:
            return PrefillHead(
                request_ids=chosen.request_ids,
                draft_version=chosen.draft_version,
                target_version=chosen.target_version,
                commits=commits,
                facts=facts,
                spans=spans,
                feature_dtype=dtype,
                prefixes=prefixes,
            )

        return ForwardOutput(
            chosen=chosen,
            tensors=tensors,
            make_head=head,
            on_consume=self._consume,
            on_copy_failed=self._copy_failed,
            prefix_bytes=sum(map(len, prefixes)),
        )

    def _after_prefill(self, result: Any, *_: Any, **__: Any) -> None:
        """AFTER _forward_prefill_batch: before the draft's prefill SGLang clears auxiliary outputs, so attach now."""
        launched = (self._prefill, self._plain)
        self._prefill = None
        self._plain = None
        for forward in launched:
            if forward is not None and result is not None and result.logits_output is not None:
                with losing_on_fault(self._lose_launched, forward.chosen):
                    attach(result.logits_output, forward)

    def _lose(self, chosen: Chosen, fault: Exception) -> None:
        self._breaker.note("copy_to_host", fault)
        self._lose_launched(chosen)

    def _lose_launched(self, chosen: Chosen) -> None:
        self._outbox.sender.lose(chosen.request_ids)

    def lose_batch(self, batch: Any) -> None:
        """Choosing failed: these requests miss a forward, and nothing later may tell the courier that they ended."""
        self._outbox.sender.lose(tuple(req.rid for req in batch.reqs or () if self.choice.is_captured(req)))

    def _offer(self, forward: ForwardOutput, batch: Any, commits: Sequence[Any]) -> None:
        """Scheduler thread, after commit and before streaming: put aside, and now and then send what waits."""
        with losing_on_fault(self._outbox.lose, forward.chosen):
            self._outbox.add(forward, _visible(forward.chosen, batch, commits))

    def _lose_committed(self, chosen: Chosen, batch: Any, commits: Sequence[Any]) -> None:
        """As `_offer`, of a forward that nothing was captured of: only now is it known who had ended before it."""
        with losing_on_fault(self._outbox.lose, chosen):
            self._outbox.lose(chosen, _visible(chosen, batch, commits), DropReason.TARGET_LOADING)


def _has_probs(chosen: Chosen, verify_input: Any) -> bool:
    """Whether the chances of what was drafted are known, and matter to a captured request."""
    return getattr(verify_input, "draft_probs", None) is not None and not all(chosen.is_greedy)  # NGRAM has none


def _visible(chosen: Chosen, batch: Any, commits: Sequence[Any]) -> tuple[Commit, ...]:
    """What became visible of each chosen request; ValueError when the batch is another one."""
    reqs = [batch.reqs[row] for row in chosen.rows]
    request_ids = tuple(req.rid for req in reqs)
    if request_ids != chosen.request_ids:
        raise ValueError(f"requests of a forward: got {request_ids}, expected {chosen.request_ids}")
    return tuple(commit_of(req, commits[row]) for row, req in zip(chosen.rows, reqs, strict=True))


def _verify_head(
    chosen: Chosen, commits: tuple[Commit, ...], dtype: FeatureDtype, *, has_tree: bool, tree: TreeShape | None
) -> VerifyHead:
    return VerifyHead(
        request_ids=chosen.request_ids,
        draft_version=chosen.draft_version,
        target_version=chosen.target_version,
        commits=commits,
        is_greedy=chosen.is_greedy,
        feature_dtype=dtype,
        is_tree=has_tree,
        tree=tree,
    )


def _packed_head(
    chosen: Chosen, width: int, dtype: FeatureDtype, commits: tuple[Commit, ...], _: FeatureDtype
) -> VerifyHead:
    return VerifyHead(
        request_ids=chosen.request_ids,
        draft_version=chosen.draft_version,
        target_version=chosen.target_version,
        commits=commits,
        is_greedy=chosen.is_greedy,
        feature_dtype=dtype,
        packed_width=width,
    )


def attach(logits_output: Any, output: Any) -> None:
    """Add one of SGLang's auxiliary outputs, such as _Launched, to those of a forward."""
    from sglang.srt.managers.auxiliary_output import append_auxiliary_output

    logits_output.auxiliary_device_output = append_auxiliary_output(logits_output.auxiliary_device_output, output)


def _committed_rows(
    features: torch.Tensor, accept_index: torch.Tensor, rows: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """FEATURES of the captured requests in `rows`, and of no other: what the courier leaves out leaves this process."""
    index_RD = rows_of(accept_index, rows)
    if rows is None and features.device.type == "cpu":
        # SGLang allocates both for every forward on a CPU, where there are no graphs: nothing need be copied.
        return {FEATURES: features, NODES: index_RD}
    # After the committed rows come copies of the root's: how many there are is known to the device alone.
    nodes_RD = torch.where(index_RD < 0, index_RD[:, :1], index_RD).clamp(min=0)
    return {FEATURES: features.index_select(0, nodes_RD.reshape(-1).long())}
