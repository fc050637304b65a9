"""Processor time that the hooks take of the scheduler's thread, on the path of a machine without a GPU."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import torch

from ...serving.breaker import Breaker
from ...serving.capture.courier_sender import CourierSender
from ...serving.capture.outbox import MAX_FORWARDS, Outbox
from ...serving.courier.receiver import CourierReceiver
from .forwards import Shape, batch_of, capture_of, hooks_of

DEVICE = "cpu"
#: More than is ever on the line here.
LINE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class HookTimes:
    """Microseconds of the thread's processor time per forward."""

    hook: float  # median
    consume: float  # mean, the hand-over to the courier of every sixteenth included


def hook_times(shape: Shape, forwards: int) -> HookTimes:
    """Run the hooks of `forwards` forwards, as the scheduler's thread does; the real courier line takes them."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{Path(folder) / 'line'}"
        sender = CourierSender(endpoint, LINE_BYTES)
        receiver = CourierReceiver(endpoint, lambda _: None)
        try:
            return _timed(shape, forwards, sender, receiver)
        finally:
            sender.close()
            receiver.close()


def _timed(shape: Shape, forwards: int, sender: CourierSender, receiver: CourierReceiver) -> HookTimes:
    outbox = Outbox(sender, Breaker(), lambda: False)
    capture = capture_of(shape, outbox)
    batch = batch_of(shape, DEVICE)
    commits = [SimpleNamespace(output_index=0, token_ids=[7]) for _ in batch.reqs]
    hook_ns: list[int] = []
    consume_ns = 0
    for number in range(forwards):
        hooks = hooks_of(capture, shape, batch, DEVICE)
        began_ns = time.thread_time_ns()
        attached = hooks()
        hook_ns.append(time.thread_time_ns() - began_ns)
        on_host = attached.copy_to_host(torch.clone)
        began_ns = time.thread_time_ns()
        on_host.consume(batch, commits)
        consume_ns += time.thread_time_ns() - began_ns
        if number % MAX_FORWARDS == 0:
            receiver.take(0.0)
    return HookTimes(median(hook_ns) / 1e3, consume_ns / forwards / 1e3)
