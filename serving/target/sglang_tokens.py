"""Hooks that make an answer depend on its tokens alone where SGLang keeps account by rounds: penalties and ends.

Without paceline, such an answer depends on the draft and on how many tokens it drafts, and paceline changes both while
requests run. docs/faults.md says what SGLang does, and in which releases.
"""

from collections.abc import Callable
from typing import Any

import torch

from .. import hook_targets
from ..breaker import Breaker
from ..sglang_speculation import is_counted
from .token_penalties import chain_paths, edited, penalties, tree_paths


class SglangTokens:
    """Hook bodies for the scheduler thread of every rank: ranks that edited logits unlike would disagree on tokens.

    None raises. After three faults in a row (serving/breaker.py) SGLang's own account counts again; `fault` says so.
    """

    def __init__(self) -> None:
        self._breaker = Breaker(what="counting penalties by tokens")
        #: What capture does with the result of eagle_sample: SGLang lets a target be hooked once.
        self.after_verify: Callable[..., None] | None = None
        self._batch: Any = None  # whose block is being verified

    @property
    def fault(self) -> str:
        """Why penalties are counted by rounds; empty while they are counted by tokens."""
        return self._breaker.reason

    def refuse(self, reason: str) -> None:
        """Its hooks could not be installed."""
        self._breaker.open(reason)

    def hooks(self) -> dict[str, tuple[str, Callable[..., Any]]]:
        """What to install; `before_forward` comes beside them."""
        return {
            hook_targets.EAGLE_SAMPLE: ("around", self.around_verify),
            hook_targets.OVERLAPS: ("after", self.after_overlaps),
            hook_targets.FINISH: ("around", self.around_finish),
        }

    def block_hooks(self) -> dict[str, tuple[str, Callable[..., Any]]]:
        """The same for DFLASH; `before_block` comes beside them."""
        return {
            hook_targets.ADJUST_LOGITS: ("around", self.around_adjust),
            hook_targets.OVERLAPS: ("after", self.after_overlaps),
            hook_targets.FINISH: ("around", self.around_finish),
        }

    def before_block(self, worker: Any, batch: Any) -> None:
        """BEFORE forward_batch_generation of DFLASH or NGRAM, of a prefill too."""
        self._batch = batch
        self.before_forward(worker, batch)

    def before_forward(self, _worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        """BEFORE EAGLEWorkerV2.forward_batch_generation: of a prefill, the requests that were answered something.

        They run on in a mixed batch, or were retracted, for which SGLang forgets what it has counted.
        """
        info = batch.sampling_info
        if info is None or info.acc_additive_penalties is None or self.fault or not batch.forward_mode.is_extend():
            return
        try:
            added_BV = info.acc_additive_penalties
            scales_BV = info.acc_scaling_penalties
            root_W = torch.zeros(1, device=batch.device)
            paths_WW = chain_paths(1, batch.device)
            for row, req in enumerate(batch.reqs):
                if req.output_ids and is_counted(req.sampling_params):
                    added_WV, scales_WV = penalties(req, root_W, paths_WW, added_BV.shape[1])
                    added_BV[row] = added_WV[0]
                    if scales_WV is not None:
                        scales_BV[row] = scales_WV[0]
        except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
            self._breaker.note("the penalties of a prefill", fault)

    def around_verify(
        self, sample: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, *rest: Any, **named: Any
    ) -> Any:
        """AROUND eagle_sample(verify_input, batch, logits_output, ...) -> (predict, accept_lens, accept_index)."""
        info = batch.sampling_info
        kept = None if info is None else info.acc_additive_penalties
        if kept is None:
            result = sample(verify_input, batch, logits_output, *rest, **named)
        else:
            kept = kept, info.acc_scaling_penalties
            if self._edit(verify_input, batch, logits_output.next_token_logits):
                info.acc_additive_penalties = info.acc_scaling_penalties = None
            try:
                result = sample(verify_input, batch, logits_output, *rest, **named)
            finally:
                info.acc_additive_penalties, info.acc_scaling_penalties = kept
        if self.after_verify is not None:
            self.after_verify(result, verify_input, batch, logits_output)
        return result

    def around_adjust(self, adjust: Callable[..., None], **named: Any) -> None:
        """AROUND apply_dflash_verify_logits_adjustments(next_token_logits=, sampling_info=, draft_token_num=).

        SGLang adds what penalties subtract twice there, and leaves what they scale by out.
        """
        info = named["sampling_info"]
        if info is None or info.acc_additive_penalties is None or not self._edit_block(named["next_token_logits"]):
            adjust(**named)
            return
        kept = info.acc_additive_penalties, info.acc_scaling_penalties, info.penalizer_orchestrator
        info.acc_additive_penalties = info.acc_scaling_penalties = info.penalizer_orchestrator = None
        try:
            adjust(**named)
        finally:
            info.acc_additive_penalties, info.acc_scaling_penalties, info.penalizer_orchestrator = kept

    def _edit_block(self, logits: torch.Tensor) -> bool:
        return self._batch is not None and self._edit(self._batch.spec_info, self._batch, logits)

    def _edit(self, verify_input: Any, batch: Any, logits: torch.Tensor) -> bool:
        """Apply penalties to the logits of every node; False where SGLang has to, since these did not."""
        if self.fault:
            return False
        try:
            width = verify_input.draft_token_num
            rows = [row for row, req in enumerate(batch.reqs) if is_counted(req.sampling_params)]
            nodes = [slice(row * width, (row + 1) * width) for row in rows]
            paths = _paths(verify_input, rows, batch.device)
            edits = [
                edited(logits[at], batch.reqs[row], verify_input.draft_token[at], paths_WW)
                for row, at, paths_WW in zip(rows, nodes, paths, strict=True)
            ]
            for at, edit in zip(nodes, edits, strict=True):  # only once all are there: SGLang's edits come on top
                logits[at] = edit
        except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
            self._breaker.note("the penalties of a verify round", fault)
            return False
        return True

    def after_overlaps(self, _result: Any, scheduler: Any, batch: Any, *_: Any, **__: Any) -> bool | None:
        """AFTER Scheduler.is_disable_overlap_for_batch: whether the last result is committed before the next launch.

        Penalties need the tokens of the last round, and the overlap schedule would launch the next without them.
        """
        info = batch.sampling_info if batch else None
        if info is None or not info.penalizer_orchestrator.is_required or self.fault:
            return None
        return True if scheduler.result_queue else None

    def around_finish(self, update: Callable[..., None], req: Any, new_tokens: int = 1) -> None:
        """AROUND Req.update_finish_state(new_accepted_len): ask after every token whether a stop text ends it there.

        SGLang asks once for all tokens of a round, and finds the first of several ends in another order.
        """
        params = req.sampling_params
        if new_tokens < 2 or not (params.stop_strs or params.stop_regex_strs) or req.to_finish or req.finished():
            update(req, new_tokens)
            return
        output = req.output_ids
        grammar = req.grammar
        later = output[-new_tokens:]
        del output[-new_tokens:]
        req.grammar = None  # it has read all of them, and may have ended at the last
        try:
            while later and not req.finished():
                output.append(later.pop(0))
                if not later:
                    req.grammar = grammar
                update(req, 1)
            if later and req.finished_len is None:
                req.finished_len = len(output)
        finally:
            req.grammar = grammar
            output.extend(later)


def _paths(verify_input: Any, rows: list[int], device: Any) -> list[torch.Tensor]:
    """The way to every node, of each of these requests. Of trees alone, the host waits for the draft."""
    width = verify_input.draft_token_num
    if getattr(verify_input, "tree_topk", 1) == 1:  # DFLASH's input has none
        return [chain_paths(width, device)] * len(rows)
    children = verify_input.retrieve_next_token.tolist()
    siblings = verify_input.retrieve_next_sibling.tolist()
    return [tree_paths(children[row], siblings[row], device) for row in rows]
