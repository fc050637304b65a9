"""The draft model inside SGLang: on which device it runs, whether it takes weights at this moment, and the copy itself.

Weights come from host memory. The device holds them twice during a copy alone, while SGLang's own loader cuts out this
rank's share.
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ...buffer.errors import WeightsRefused
from .staging import KEPT_DRAFTS, DraftLayout, StagedDraft, short_name, stage
from .swap_effect import Probe, try_probe

log = logging.getLogger(__name__)


class SglangDraft:
    """One rank's draft model; for the scheduler thread, but for what says otherwise."""

    def __init__(self, scheduler: Any, runner: Any) -> None:
        """`runner` is SGLang's ModelRunner of the draft. AttributeError where SGLang lacks what is read of it."""
        self._scheduler = scheduler
        self._runner = runner
        # SGLang's device has no index, and without one a thread that it did not start would mean GPU 0.
        device = torch.device(runner.device)
        self._is_on_cuda = device.type == "cuda"
        self._device = torch.device("cuda", runner.gpu_id) if self._is_on_cuda else device
        # Of a router for one, in a model that is in bfloat16: rounded, its bias would choose other experts.
        self._in_float32 = {short_name(n) for n, held in runner.model.named_parameters() if held.dtype is torch.float32}
        self.why_not_now()  # an SGLang without such a record is found at the start, not at every swap

    def check_unquantised(self) -> None:
        """Raise WeightsRefused for a draft that SGLang has quantised: its loader would mix packed and plain values."""
        from sglang.srt.layers.linear import LinearBase
        from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

        for name, layer in self._runner.model.named_modules():
            if isinstance(layer, LinearBase) and not isinstance(layer.quant_method, UnquantizedLinearMethod):
                raise WeightsRefused(
                    f"{name} of the served draft: got {type(layer.quant_method).__name__}, expected no quantisation; "
                    "start the server with --speculative-draft-model-quantization unquant"
                )

    def why_not_now(self) -> str:
        """Why the weights may be neither copied nor read at this moment; empty when they may."""
        released = ", ".join(sorted(self._scheduler.weight_updater.offload_tags))
        return f"SGLang has released {released}; the swap follows resume_memory_occupation" if released else ""

    def stage(self, file: Path, sha256: str, layout: DraftLayout) -> StagedDraft:
        """As `staging.stage`, for this draft: any thread, blocks on the disk."""
        if self._is_on_cuda:
            torch.cuda.set_device(self._device)  # of this thread, for the memory that it pins
        dtype = self._runner.dtype
        return stage(file, sha256, layout, dtype, is_pinned=self._is_on_cuda, in_float32=self._in_float32)

    def reserve(self, draft: StagedDraft) -> None:
        """Have as much memory page-locked as the drafts after `draft` take beside it, before anything is served.

        Torch keeps it for them. CUDA takes half a second to lock 0.85 GB, and launches nothing meanwhile
        (docs/gpu.md#what-it-costs).
        """
        if self._is_on_cuda:
            stores = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for _, tensor in draft.tensors}
            sizes = [store.nbytes() for store in stores.values()]
            # All at once: what is let go in between would be taken again.
            _ = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes for _ in range(KEPT_DRAFTS)]

    def load(self, draft: StagedDraft) -> None:
        """Copy `draft` in place, after the forward in flight and before the next one; does not wait for the device.

        Raises WeightsRefused, or what SGLang raises: then the model may hold a part of it.
        """
        with self._between_forwards():
            # All in one call: some loaders fuse parameters, and do so within a call.
            tensors = [(name, tensor.to(self._device, non_blocking=True)) for name, tensor in draft.tensors]
            is_loaded, why = self._runner.weight_updater.update_weights_from_tensor(tensors, load_format=None)
            self._copy_fused()
        if not is_loaded:
            raise WeightsRefused(f"SGLang refused the weights: {why}")

    def _copy_fused(self) -> None:
        """On a GPU DFLASH makes keys of features by a copy of its weights, which SGLang's own updates leave behind."""
        worker = self._scheduler.draft_worker
        if getattr(worker, "_fused_kv_helper", None) is not None:
            worker._init_fused_kv_helper()  # noqa: SLF001 - no public API

    def try_load(self, draft: StagedDraft) -> str:
        """As `load`; why it failed, or nothing. The fault itself goes: its traceback would hold on to device memory."""
        try:
            self.load(draft)
        except Exception as fault:  # a failed copy must not stop serving
            log.exception("paceline: copying weights into the draft failed")
            return f"{type(fault).__name__}: {fault}"
        return ""

    def probe(self, draft: StagedDraft) -> Probe | None:
        """Sample `draft` and the model after what is enqueued already; does not wait for the device."""
        with self._between_forwards():
            return try_probe(draft.tensors, self._runner.model)

    def _between_forwards(self) -> AbstractContextManager[Any]:
        """The stream that runs the forwards: what is enqueued there comes between two of them."""
        if not self._is_on_cuda:
            return nullcontext()
        stream = self._scheduler.forward_stream if self._scheduler.enable_overlap else self._scheduler.schedule_stream
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context
