"""The draft model inside SGLang: on which device it runs, whether it takes weights at this moment, and the copy itself.

Weights come from host memory. The device holds them twice during a copy alone, while SGLang's own loader cuts out this
rank's share.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ...buffer.errors import WeightsRefused
from .staging import StagedDraft
from .swap_effect import Probe, try_probe


class LiveDraft:
    """One rank's draft model; for the scheduler thread, but for what says otherwise."""

    def __init__(self, scheduler: Any, runner: Any) -> None:
        """`runner` is SGLang's ModelRunner of the draft."""
        self._scheduler, self._runner = scheduler, runner
        self.dtype: torch.dtype = runner.dtype
        # SGLang's device has no index, and without one a thread that it did not start would mean GPU 0.
        device = torch.device(runner.device)
        self._device = torch.device("cuda", runner.gpu_id) if device.type == "cuda" else device

    @property
    def is_on_cuda(self) -> bool:
        """Whether weights are to wait in pinned host memory, so that copying them does not block. Any thread."""
        return self._device.type == "cuda"

    def use_device(self) -> None:
        """Make the draft's device that of the calling thread, which began on GPU 0. Any thread."""
        if self.is_on_cuda:
            torch.cuda.set_device(self._device)

    def load(self, draft: StagedDraft) -> None:
        """Copy `draft` in place, after the forward in flight and before the next one; does not wait for the device.

        Raises WeightsRefused, or what SGLang raises: then the model may hold a part of it.
        """
        with self._between_forwards():
            # All in one call: some loaders fuse parameters, and do so within a call.
            tensors = [(name, tensor.to(self._device, non_blocking=True)) for name, tensor in draft.tensors]
            is_loaded, why = self._runner.weight_updater.update_weights_from_tensor(tensors, load_format=None)
        if not is_loaded:
            raise WeightsRefused(f"SGLang refused the weights: {why}")

    def probe(self, draft: StagedDraft) -> Probe | None:
        """Sample `draft` and the model after what is enqueued already; does not wait for the device."""
        with self._between_forwards():
            return try_probe(draft.tensors, self._runner.model)

    def _between_forwards(self) -> AbstractContextManager[Any]:
        """The stream that runs the forwards: what is enqueued there comes between two of them."""
        if not self.is_on_cuda:
            return nullcontext()
        stream = self._scheduler.forward_stream if self._scheduler.enable_overlap else self._scheduler.schedule_stream
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context
