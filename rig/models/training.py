"""Train a small language model on text within a budget of steps and of time, whichever ends first.

Hidden matrices move by Muon (orthogonalised momentum, arXiv:2502.16982 for the step size), embeddings and norms
by AdamW. The learning rate warms up and then falls to zero along the budget, so that a slow machine ends with
a worse but finished model.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...learner.training.device_memory import has_bfloat16
from ...learner.training.muon import Muon
from ..progress import Report

_WARMUP_STEPS = 30
_MEASURED_WINDOWS = 48
_REPORT_EVERY_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """The cost and the sampling of training; part of the cache key of the model."""

    steps: int = 1500
    seconds: float = 150.0
    batch_windows: int = 8
    window_tokens: int = 128
    matrix_learning_rate: float = 3e-3
    learning_rate: float = 1e-2
    seed: int = 0


def train(model: nn.Module, streams: Mapping[str, Tensor], plan: TrainPlan, report: Report) -> int:
    """Train `model` in place; return the steps taken, at least one. Every batch holds all domains.

    `streams` are token ids per domain, int64[N] with N > plan.window_tokens. Runs where the model is, with the
    number of threads and the precision (float32 or bfloat16 autocast) that are fastest there; the weights stay
    float32.
    """
    started_s = time.monotonic()
    threads = torch.get_num_threads()
    batches = _batches(list(streams.values()), plan)
    pace = _fastest_pace(model, next(batches))
    torch.set_num_threads(pace.threads)
    try:
        return _train(model, batches, plan, pace=pace, started_s=started_s, report=report)
    finally:
        torch.set_num_threads(threads)


def _train(
    model: nn.Module, batches: Iterator[Tensor], plan: TrainPlan, *, pace: "_Pace", started_s: float, report: Report
) -> int:
    optimizers = _optimizers(model, plan)
    done = 0.0
    steps = 0
    while done < 1.0 or not steps:
        for optimizer in optimizers:
            _set_rate(optimizer, min(1.0, (steps + 1) / _WARMUP_STEPS) * max(1.0 - done, 0.0))
        loss = _step(model, next(batches), optimizers, low_precision=pace.low_precision)
        steps += 1
        done = max(steps / plan.steps, (time.monotonic() - started_s) / plan.seconds)
        if steps % _REPORT_EVERY_STEPS == 0 or done >= 1.0:
            report(min(done, 1.0), f"loss {loss:.2f}, {steps * plan.batch_windows * plan.window_tokens:,} tokens")
    return steps


@torch.no_grad()
def mean_loss(model: nn.Module, stream: Tensor, window_tokens: int) -> float:
    """Mean cross-entropy per token, in nats, on evenly spaced windows of `stream`, int64[N]."""
    starts = torch.linspace(0, len(stream) - window_tokens, _MEASURED_WINDOWS).long()
    windows_BT = torch.stack([stream[start : start + window_tokens] for start in starts.tolist()]).to(_device(model))
    return float(model(windows_BT, labels=windows_BT, use_cache=False).loss)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _optimizers(model: nn.Module, plan: TrainPlan) -> list[torch.optim.Optimizer]:
    is_matrix = {name: p.dim() == 2 and "embed" not in name and "lm_head" not in name for name, p in _named(model)}
    matrices = [p for name, p in _named(model) if is_matrix[name]]
    others = [p for name, p in _named(model) if not is_matrix[name]]
    muon = Muon(matrices, lr=plan.matrix_learning_rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(others, lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return [muon, adam]


def _named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters())


def _set_rate(optimizer: torch.optim.Optimizer, share: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * share


def _batches(streams: Sequence[Tensor], plan: TrainPlan) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(plan.seed)
    while True:
        rows = []
        for row in range(plan.batch_windows):
            stream = streams[row % len(streams)]
            start = int(torch.randint(len(stream) - plan.window_tokens, (1,), generator=generator))
            rows.append(stream[start : start + plan.window_tokens])
        yield torch.stack(rows)


def _step(
    model: nn.Module, batch_BT: Tensor, optimizers: Sequence[torch.optim.Optimizer], *, low_precision: bool
) -> float:
    loss = _backward(model, batch_BT, low_precision=low_precision)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return loss


def _backward(model: nn.Module, batch_BT: Tensor, *, low_precision: bool) -> float:
    batch_BT = batch_BT.to(_device(model))
    with torch.autocast(batch_BT.device.type, torch.bfloat16, enabled=low_precision):
        loss: Tensor = model(batch_BT, labels=batch_BT, use_cache=False).loss
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


@dataclass(frozen=True, slots=True, order=True)
class _Pace:
    seconds: float  # of one forward and backward pass
    threads: int
    low_precision: bool


def _fastest_pace(model: nn.Module, batch_BT: Tensor) -> _Pace:
    """Only idle cores gain from a second thread, and not every device with bfloat16 gains from it.

    On a processor without its instructions a pass takes twenty times as long: it is not even tried there.
    """
    counts = {1, torch.get_num_threads()}
    precisions = (False, True) if has_bfloat16(_device(model)) else (False,)
    paces = [_measure(model, batch_BT, threads, low) for threads in counts for low in precisions]
    model.zero_grad(set_to_none=True)
    return min(paces)


def _measure(model: nn.Module, batch_BT: Tensor, threads: int, low_precision: bool) -> _Pace:
    torch.set_num_threads(threads)
    _backward(model, batch_BT, low_precision=low_precision)  # the first pass also allocates
    started_s = time.perf_counter()
    _backward(model, batch_BT, low_precision=low_precision)
    return _Pace(time.perf_counter() - started_s, threads, low_precision)
