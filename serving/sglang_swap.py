"""Swaps draft weights inside SGLang's scheduler, between two iterations: no pause, no drain, no cache flush.

A command joins the requests the entry rank has just received; SGLang's own broadcast carries it to every rank in the
same iteration. PREPARE stages the file on each rank in a background thread; COMMIT copies in place, so captured CUDA
graphs stay valid. Verification uses the target alone, so a swap cannot change an output.
"""

import logging
import queue
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..buffer.errors import WeightsRefused
from .staging import WEIGHTS_FILE, DraftLayout, StagedDraft, read_layout, stage

log = logging.getLogger(__name__)

#: The longest the scheduler may take to reach its next iteration; a long prefill is the usual reason.
PICKUP_S = 60.0
#: The longest a file may take to stage.
STAGE_S = 300.0
#: Drafts kept beside the live one, the live one included: what an instant rollback can reach.
KEPT_DRAFTS = 2


@dataclass(frozen=True, slots=True)
class SwapCommand:
    """Travels among the scheduler's ranks with SGLang's own request broadcast."""

    act: str  # "prepare" | "commit"
    number: int
    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class SwapOutcome:
    """What a commit did. `running` requests were in flight and went on."""

    number: int
    commit_ms: float
    stage_ms: float
    running: int
    at: float  # unix seconds


@dataclass(slots=True)
class _Staging:
    done: threading.Event = field(default_factory=threading.Event)
    draft: StagedDraft | None = None
    refusal: str = ""


class SglangSwap:
    """Hook bodies on the scheduler's side and `swap` for the swapper thread. One instance per scheduler process."""

    def __init__(self, draft_version: int) -> None:
        self.draft_version = draft_version  # of the weights that draft right now
        self.fault = "SGLang has not built its request dispatcher yet"
        self._inbox: queue.SimpleQueue[SwapCommand] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[int, SwapOutcome | str]] = queue.SimpleQueue()
        self._stagings: dict[int, _Staging] = {}
        self._kept: dict[int, StagedDraft] = {}
        self._scheduler: Any = None
        self._runner: Any = None
        self._layout: DraftLayout | None = None

    def after_pull(self, received: list[Any] | None, *_: Any, **__: Any) -> None:
        """AFTER SchedulerRequestReceiver._pull_raw_reqs: `received` is None on ranks that do not receive."""
        if received is None or self._inbox.empty():
            return
        while not self._inbox.empty():
            received.append(self._inbox.get_nowait())

    def after_init_dispatcher(self, _result: Any, scheduler: Any, *_: Any, **__: Any) -> None:
        """AFTER Scheduler.init_request_dispatcher: model workers exist here. A fault leaves swapping off."""
        try:
            self._bind(scheduler)
            self.fault = ""
        except Exception as fault:
            self.fault = f"{type(fault).__name__}: {fault}"
            log.exception("paceline: draft swaps are off")

    def swap(self, number: int, file: Path, sha256: str) -> SwapOutcome:
        """Stage `file` and make it the live draft; blocks until done. Call from one thread, not the scheduler's.

        Raises WeightsRefused when a check fails (the server goes on with the weights it has), TimeoutError when the
        scheduler does not come to its next iteration.
        """
        if self.fault:
            raise TimeoutError(f"draft swaps are off: {self.fault}")
        command = SwapCommand("prepare", number, str(file), sha256)
        if number not in self._kept:
            self._prepare(command)
        self._inbox.put(SwapCommand("commit", number, command.file, sha256))
        outcome = self._await(number)
        if isinstance(outcome, str):
            raise WeightsRefused(outcome)
        return outcome

    def _await(self, number: int) -> SwapOutcome | str:
        """The outcome of `number`; a late one of an earlier swap that was given up on is passed over."""
        while True:
            try:
                answered, outcome = self._outcomes.get(timeout=PICKUP_S)
            except queue.Empty:
                raise TimeoutError(
                    f"version {number}: the scheduler reached no iteration within {PICKUP_S} s"
                ) from None
            if answered == number:
                return outcome

    def _prepare(self, command: SwapCommand) -> None:
        staging = self._stagings[command.number] = _Staging()
        self._inbox.put(command)
        if not staging.done.wait(PICKUP_S + STAGE_S):
            raise TimeoutError(f"version {command.number}: the scheduler did not stage the weights")
        if staging.refusal:
            del self._stagings[command.number]
            raise WeightsRefused(staging.refusal)

    def _bind(self, scheduler: Any) -> None:
        from sglang.utils import TypeBasedDispatcher

        self._scheduler = scheduler
        ((_, self._runner),) = scheduler.draft_worker.weight_update_runners()
        folder = Path(scheduler.server_args.speculative_draft_model_path)
        self._layout = read_layout(folder)
        # The weights the server starts with, so that a roll back to them needs no disk.
        device = torch.device(self._runner.device)
        self._kept[self.draft_version] = stage(folder / WEIGHTS_FILE, "", self._layout, device, self._runner.dtype)
        scheduler._request_dispatcher += TypeBasedDispatcher([(SwapCommand, self._handle)])  # noqa: SLF001 - no public door

    def _handle(self, command: SwapCommand) -> None:
        """Scheduler thread, at the top of an iteration; returns None, so nothing goes back to the tokenizer."""
        try:
            if command.act == "prepare":
                staging = self._stagings.setdefault(command.number, _Staging())
                threading.Thread(
                    target=self._stage, args=(command, staging), name="paceline-stage", daemon=True
                ).start()
            else:
                self._outcomes.put((command.number, self._commit(command.number)))
        except Exception as fault:
            log.exception("paceline: swap to version %d failed", command.number)
            self._outcomes.put((command.number, f"{type(fault).__name__}: {fault}"))

    def _stage(self, command: SwapCommand, staging: _Staging) -> None:
        assert self._layout is not None  # noqa: S101 - bound before any command can arrive
        try:
            device = torch.device(self._runner.device)
            staging.draft = stage(Path(command.file), command.sha256, self._layout, device, self._runner.dtype)
        except Exception as fault:  # noqa: BLE001 - a staging thread reports; it never dies silently
            staging.refusal = str(fault) if isinstance(fault, WeightsRefused) else f"{type(fault).__name__}: {fault}"
        finally:
            staging.done.set()

    def _commit(self, number: int) -> SwapOutcome | str:
        began = time.perf_counter()
        draft, refusal = self._staged(number)
        if not self._all_ranks_agree(draft is not None):
            return refusal or "another rank could not stage the weights"
        assert draft is not None  # noqa: S101 - agreed on above
        with self._forward_stream(draft):
            is_loaded, word = self._runner.weight_updater.update_weights_from_tensor(draft.tensors, load_format=None)
        if not is_loaded:
            return f"SGLang refused the weights: {word}"
        self.draft_version = number
        self._keep(number, draft)
        running = len(self._scheduler.running_batch.reqs) if self._scheduler.running_batch else 0
        return SwapOutcome(number, 1e3 * (time.perf_counter() - began), 1e3 * draft.seconds, running, time.time())

    def _staged(self, number: int) -> tuple[StagedDraft | None, str]:
        if number in self._kept:
            return self._kept[number], ""
        staging = self._stagings.pop(number)
        staging.done.wait()  # the entry rank has waited; another rank's staging may still run
        return staging.draft, staging.refusal

    def _all_ranks_agree(self, is_ready: bool) -> bool:
        if self._runner.tp_size == 1:
            return is_ready
        flag = torch.tensor([int(is_ready)])
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MIN, group=self._scheduler.tp_cpu_group)
        return bool(flag.item())

    def _forward_stream(self, draft: StagedDraft) -> AbstractContextManager[Any]:
        """Behind the forward in flight and before the next one, on the stream that runs them."""
        if draft.ready is None:
            return nullcontext()
        stream = self._scheduler.forward_stream if self._scheduler.enable_overlap else self._scheduler.schedule_stream
        stream.wait_event(draft.ready)
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def _keep(self, number: int, draft: StagedDraft) -> None:
        self._kept.pop(number, None)
        self._kept[number] = draft
        while len(self._kept) > KEPT_DRAFTS:
            del self._kept[next(iter(self._kept))]
