"""The most memory that tensors took at once, by torch's own records."""

import itertools
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Run `work`: the most bytes of `device` that tensors held at once, on top of what they held before."""
    return _cuda_peak(work, device) if device.type == "cuda" else _cpu_peak(work)


def _cuda_peak(work: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - held


def _cpu_peak(work: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    found = profiled.profiler.kineto_results.events()
    events = sorted((event for event in found if event.name() == "[memory]"), key=lambda event: event.start_ns())
    sizes: list[int] = [event.nbytes() for event in events]
    return max(itertools.accumulate(sizes, initial=0))
