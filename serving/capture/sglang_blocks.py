"""Hooks of DFLASH, whose worker drafts a block, verifies it and keeps the features in one call.

They tell capture, on the entry rank, what it hears of EAGLE's worker step by step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import hook_targets
from .sglang_capture import SglangCapture, attach
from .sglang_forwards import SglangForwards


@dataclass(slots=True, kw_only=True)
class _Verified:
    """What capture reads of a verified block, under the names of SGLang's inputs and outputs of a verification."""

    draft_token: torch.Tensor  # [B * J], the roots among them
    draft_token_num: int
    next_token_logits: torch.Tensor
    hidden_states: torch.Tensor | None = None
    auxiliary_device_output: Any = None
    draft_probs: None = None  # a block is the draft's best tokens: nothing was drawn
    tree_topk: int = 1


class SglangBlocks(SglangForwards):
    """Hook bodies for the scheduler thread of every rank."""

    algorithm = "DFLASH"

    def __init__(self, *before: Callable[[Any, Any], None]) -> None:
        """As SglangForwards."""
        super().__init__(*before)
        self._accepted: tuple[_Verified, torch.Tensor] | None = None  # its block, and tokens committed by request
        self._verified: _Verified | None = None  # the same block, once capture has seen it

    def hooks(self) -> dict[str, tuple[str, Callable[..., Any]]]:
        """What to install."""
        return {
            hook_targets.BLOCK_WORKER: ("after", self.after_worker),
            hook_targets.BLOCK_FORWARD: ("around", self.around_forward),
            hook_targets.ACCEPT_BLOCK: ("after", self.after_accept),
            hook_targets.KEEP_FEATURES: ("before", self.before_features),
        }

    def after_worker(self, _result: Any, worker: Any, *_: Any, **__: Any) -> None:
        """AFTER DFlashWorkerV2.__init__, before graphs are captured: have every rank gather all logits.

        0.5.23 leaves them in shards where it needs the best token alone; capture needs the target's choices.
        """
        processor = getattr(worker, "_target_logits_processor", None)
        if processor is not None:
            processor.defer_verify_gather = False
            worker._target_logits_processor = None  # noqa: SLF001 - no public API

    def after_accept(self, result: Any, _worker: Any, *_: Any, **named: Any) -> None:
        """AFTER _accept_block(candidates=, next_token_logits=, ...) -> (drafts accepted, tokens committed, ...)."""
        if self._capture is not None:
            self._quietly(self._accept, result, named)

    def before_features(self, worker: Any, *_: Any, **named: Any) -> None:
        """BEFORE _append_target_hidden_to_draft_kv_by_loc(target_hidden=, ...), of a prefill or of a verified block."""
        if self._capture is not None and self._batch is not None:
            self._quietly(self._keep, self._capture, worker, named)

    def _accept(self, result: Any, named: Mapping[str, Any]) -> None:
        candidates_BJ = named["candidates"]
        block = _Verified(
            draft_token=candidates_BJ.reshape(-1),
            draft_token_num=candidates_BJ.shape[1],
            next_token_logits=named["next_token_logits"],
        )
        self._accepted = block, result[1]

    def _keep(self, capture: SglangCapture, worker: Any, named: Mapping[str, Any]) -> None:
        features = named["target_hidden"]
        if self._is_prefill:
            capture.before_draft_prefill(worker, self._batch, features)
        if self._accepted is None:
            return
        block, committed_B = self._accepted
        block.hidden_states = features
        nodes_BJ = committed_nodes(committed_B, block.draft_token_num)
        capture.after_verify((None, committed_B, nodes_BJ), block, self._batch, block)
        self._verified = block

    def _end(self, result: Any) -> None:
        super()._end(result)
        if self._verified is not None and self._verified.auxiliary_device_output is not None:
            attach(result.logits_output, self._verified.auxiliary_device_output)

    def _forget(self) -> None:
        self._batch = self._accepted = self._verified = None


def committed_nodes(committed_B: torch.Tensor, width: int) -> torch.Tensor:
    """Nodes of each request that were committed, root first, as SGLang's `accept_index`: int32 [B, width], then -1.

    Nodes are counted over the whole batch. Never asks the device for a value.
    """
    nodes_J = torch.arange(width, dtype=torch.int32, device=committed_B.device)
    first_B1 = torch.arange(len(committed_B), dtype=torch.int32, device=committed_B.device)[:, None] * width
    return torch.where(nodes_J < committed_B[:, None], first_B1 + nodes_J, -1)
