"""Whether a swap changed what drafts: samples of the model's own parameters, taken after every commit.

After a copy that reports success and copies nothing, traces would carry the wrong version number. New weights differ
from those before nearly everywhere, so some values of every parameter suffice.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

log = logging.getLogger(__name__)

#: Values looked at of every parameter.
SAMPLED_VALUES = 256
#: Share of the sampled values that must differ between two files before the model is expected to differ.
MIN_CHANGED = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """Samples on their way to the host; `ready` is a CUDA event, None on a CPU."""

    file: torch.Tensor  # of the tensors that were staged
    model: torch.Tensor  # of the model's parameters, after the copy
    ready: Any

    def wait(self) -> None:
        """Block until the samples are there."""
        if self.ready is not None:
            self.ready.synchronize()


def try_probe(staged: Iterable[tuple[str, torch.Tensor]], model: torch.nn.Module) -> Probe | None:
    """As `take_probe`; None, and a line in the log, when it fails: then the swap is done and its effect unknown."""
    try:
        return take_probe(staged, model)
    except Exception:  # on one rank alone, an exception here would leave it with another version
        log.exception("paceline: the effect of a swap is not known")
        return None


def take_probe(staged: Iterable[tuple[str, torch.Tensor]], model: torch.nn.Module) -> Probe:
    """Sample `staged`, in host memory, and `model`, on the current stream; does not wait for a device.

    `model` must hold at least one parameter.
    """
    file = _sample(tensor for _, tensor in staged)
    held = _sample(parameter.detach() for parameter in model.parameters())
    if held.device.type != "cuda":
        return Probe(file, held, None)
    # A copy to pageable memory would wait for the forward in flight, whatever `non_blocking` says.
    on_host = torch.empty(held.shape, dtype=held.dtype, pin_memory=True).copy_(held, non_blocking=True)
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()
    return Probe(file, on_host, ready)


class SwapEffect:
    """Digests of the weights that were to draft, and of those that do; for one thread at a time."""

    def __init__(self) -> None:
        #: Of the file swapped in last, empty before any; and of the file whose weights the model holds, as far as its
        #: parameters show. One value, so that a reader never sees half of a swap; any thread may read it.
        self.digests = "", ""
        self._last: Probe | None = None

    def settle(self, sha256: str, probe: Probe | None) -> None:
        """Record a commit of the file with this digest; without a probe it is taken to have worked.

        Blocks until the device is done with it.
        """
        if probe is not None:
            probe.wait()
        _, loaded = self.digests
        if probe is None or self._last is None or not _is_without_effect(self._last, probe):
            loaded = sha256
            self._last = probe
        self.digests = sha256, loaded


def _is_without_effect(before: Probe, after: Probe) -> bool:
    is_other_file = float((before.file != after.file).float().mean()) >= MIN_CHANGED
    return is_other_file and torch.equal(before.model, after.model)


def _sample(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    # A copy: the parameters change in place with the next swap.
    return torch.cat([_spread(tensor.reshape(-1)) for tensor in tensors])


def _spread(values: torch.Tensor) -> torch.Tensor:
    return values[:: max(len(values) // SAMPLED_VALUES, 1)][:SAMPLED_VALUES].float()
