"""A GPU's interface for machines without one: it records what paceline asks for, and computes on the CPU.

What CUDA makes of these calls it cannot tell; docs/gpu.md lists what that leaves open.
"""

import threading
import weakref
from contextlib import contextmanager

import torch

#: The device that tensors are on once they were copied to it.
GPU = torch.device("cuda", 3)


class OnGpu(torch.Tensor):
    """A tensor that says it is on the GPU; so does what is computed from it."""

    @property
    def device(self):
        return GPU


class FakeCuda:
    """Takes the place of the CUDA calls that swaps make; `stream` is where the calling thread's work would go."""

    def __init__(self, monkeypatch):
        self.threads = threading.local()  # of each: its device, 0 until it sets one
        self.stream = "default"
        self.to_device = []  # (device, stream, whether the source was pinned, whether it was asked not to block)
        self.to_host = []  # (stream, whether the target is pinned, whether it was asked not to block)
        self.pinned_by = []  # (thread's name, its device) of each allocation of pinned memory
        self.pinned_bytes = []  # of each
        self.events = []  # streams on which an event was recorded
        self.most_on_device = 0  # of `left_on_device`, at any time
        self._uploaded = []  # weak references
        self._pinned = {}  # by address, and kept, so that no other memory gets it
        self._to = torch.Tensor.to
        self._copy = torch.Tensor.copy_
        self._empty = torch.empty
        for name in ("to", "copy_", "is_pinned"):
            method = getattr(self, name)
            monkeypatch.setattr(torch.Tensor, name, lambda *args, _method=method, **kw: _method(*args, **kw))
        monkeypatch.setattr(torch, "empty", self.empty)
        monkeypatch.setattr(torch.cuda, "set_device", self.set_device)
        monkeypatch.setattr(torch.cuda, "stream", self.use_stream)
        monkeypatch.setattr(torch.cuda, "Event", lambda: Event(self))

    def left_on_device(self):
        """How many tensors that were copied to the device are alive."""
        return sum(reference() is not None for reference in self._uploaded)

    def set_device(self, device):
        self.threads.device = device

    @contextmanager
    def use_stream(self, stream):
        before = self.stream
        self.stream = stream
        yield
        self.stream = before

    def empty(self, *args, pin_memory=False, **kwargs):
        made = self._empty(*args, **kwargs)
        if pin_memory:
            self.pinned_bytes.append(made.untyped_storage().nbytes())
            self.pinned_by.append((threading.current_thread().name, getattr(self.threads, "device", 0)))
            self._pinned[made.untyped_storage().data_ptr()] = made
        return made

    def is_pinned(self, tensor):
        return tensor.untyped_storage().data_ptr() in self._pinned

    def to(self, tensor, *args, non_blocking=False, **kwargs):
        device = args[0] if args and isinstance(args[0], torch.device) else None
        if device is None or device.type != "cuda":
            return self._to(tensor, *args, non_blocking=non_blocking, **kwargs)
        self.to_device.append((device, self.stream, self.is_pinned(tensor), non_blocking))
        made = tensor.clone().as_subclass(OnGpu)
        self._uploaded.append(weakref.ref(made))
        self.most_on_device = max(self.most_on_device, self.left_on_device())
        return made

    def copy_(self, target, source, non_blocking=False):
        if isinstance(source, OnGpu) and not isinstance(target, OnGpu):
            self.to_host.append((self.stream, self.is_pinned(target), non_blocking))
            source = source.as_subclass(torch.Tensor)
        return self._copy(target, source, non_blocking)


class Event:
    """torch.cuda.Event, as far as swaps use it."""

    def __init__(self, cuda):
        self._cuda = cuda

    def record(self):
        self._cuda.events.append(self._cuda.stream)

    def synchronize(self):
        """Everything is done at once here."""
