"""Swaps draft weights inside SGLang's scheduler, between two iterations: no pause, no drain, no cache flush.

A command joins the requests the entry rank has just received; SGLang's own broadcast carries it to every rank in the
same iteration. PREPARE stages the file in each rank's host memory, in a background thread; COMMIT copies in place, so
captured CUDA graphs stay valid; ABANDON forgets what was staged. The scheduler never waits for staging: until that is
done, a commit is answered "not yet". Ranks vote before the copy, so that all copy or none does, and after it, so that
all undo a copy that failed on one. Verification uses the target alone, so a swap cannot change an output.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...buffer.board.counters import MODEL_FREE
from ...buffer.board.member_status import SwapSaid
from ...buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from ...buffer.drafts.single_file import draft_folder
from ...buffer.errors import WeightsRefused
from .. import sglang_ranks
from .commands import Act, Readiness, SwapCommand
from .fetched_weights import FetchedWeights
from .sglang_draft import SglangDraft
from .staging import DraftLayout, KeptDrafts, StagedDraft, Staging, read_layout
from .swap_channel import Answer, SwapChannel
from .swap_effect import SwapEffect

log = logging.getLogger(__name__)

COPY_FAILED_ELSEWHERE = "another rank could not copy the weights; see its log"


class RankSwap:
    """One rank's share of swaps: hook bodies, votes and copies. Every rank has one, and its scheduler's thread owns it.

    That thread alone writes, except that a staging thread fills in the `Staging` it was given, and that `effect` goes
    to the SwapClient's thread once `fault` is empty. Any thread may read `draft_version`, `fault` and `waits_for`, and
    call `keeps` and `running`. Everything else that crosses goes through `channel`.
    """

    def __init__(
        self,
        draft_version: int,
        cache_dir: Path,
        draft_changed: Callable[[float], object] = lambda _took_s: None,
        fetched: FetchedWeights | None = None,
    ) -> None:
        """`draft_changed` is called in the scheduler thread after every commit, with its seconds; it must not raise.

        `cache_dir` gets the draft that the server was started with, if that is not one safetensors file. `fetched`
        finds the files of versions; None: they are all on this host.
        """
        self.draft_version = draft_version  # of the weights that draft right now
        self._cache_dir = cache_dir
        self._draft_changed = draft_changed
        self._fetched = fetched or FetchedWeights(cache_dir, 0)
        self.fault = "SGLang has not built its request dispatcher yet"
        self.waits_for = ""  # why the commit asked for last is not done yet; empty while none waits, and unknown
        self.effect = SwapEffect()  # settled once here, for the first draft, and then by the SwapClient
        self.channel = SwapChannel()  # to the entry rank's SwapClient
        self._kept = KeptDrafts()
        self._scheduler: Any = None
        self._ranks = 1  # tensor-parallel ranks
        self._live: SglangDraft | None = None
        self._layout: DraftLayout | None = None

    def refuse(self, reason: str) -> None:
        """There is no draft here to swap: for the time before SGLang builds its dispatcher."""
        self.draft_version = MODEL_FREE
        self.fault = reason

    def running(self) -> list[Any]:
        """SGLang's running requests; any thread may ask. Empty before there is a scheduler, and on a fault."""
        try:
            return list(self._scheduler.running_batch.reqs)
        except (AttributeError, TypeError):  # a commit asks as well, after its copy: too late to fail
            return []

    def keeps(self, number: int, sha256: str) -> bool:
        """Return whether this version needs no staging; any thread."""
        return self._kept.find(number, sha256) is not None

    def after_pull(self, received: list[Any] | None, *_: Any, **__: Any) -> None:
        """AFTER SchedulerRequestReceiver._pull_raw_reqs: `received` is None on ranks that do not receive."""
        try:
            while received is not None and (command := self.channel.take()) is not None:
                received.append(command)
        except Exception:  # an exception leaving a hook would kill SGLang's scheduler; the swap times out
            log.exception("paceline: a swap command is lost")

    def after_init_dispatcher(self, _result: Any, scheduler: Any, *_: Any, **__: Any) -> None:
        """AFTER Scheduler.init_request_dispatcher: model workers exist here. A fault on any rank leaves swapping off.

        Blocks until every rank has called it. The handler is registered first: a rank that cannot bind must still
        answer commands that another rank sends, since SGLang's dispatcher raises on a command without a handler.
        """
        try:
            self._register(scheduler)
            if self.draft_version == MODEL_FREE:
                return
            self._bind(scheduler)
            fault = ""
        except Exception as own:  # an exception leaving a hook would kill SGLang's scheduler
            fault = f"{type(own).__name__}: {own}"
            log.exception("paceline: draft swaps are off")
        self.fault = self._settled(fault)

    def _settled(self, fault: str) -> str:
        """Why no rank swaps: this rank's `fault`, or that of another. Every rank calls this, whatever its own."""
        settled = self._fault_of_any(fault, "another rank cannot swap; see its log")
        if settled != fault:
            log.error("paceline: draft swaps are off: %s", settled)
        return settled

    def _fault_of_any(self, own: str, elsewhere: str) -> str:
        return own if self._ranks == 1 else sglang_ranks.fault_of_any(own, elsewhere)

    def _register(self, scheduler: Any) -> None:
        from sglang.utils import TypeBasedDispatcher

        self._scheduler = scheduler
        self._ranks = sglang_ranks.count()
        scheduler._request_dispatcher += TypeBasedDispatcher([(SwapCommand, self._handle)])  # noqa: SLF001 - no public API

    def _bind(self, scheduler: Any) -> None:
        ((_, runner),) = scheduler.draft_worker.weight_update_runners()
        self._live = SglangDraft(scheduler, runner)
        self._live.check_unquantised()
        # As the runner has loaded it: SGLang may have filled in or rewritten what the command line says.
        started_with = runner.model_config
        downloads = scheduler.server_args.download_dir
        folder = draft_folder(started_with.model_path, self._cache_dir, started_with.revision, downloads)
        shares_head = getattr(runner.model, "load_lm_head_from_target", False)
        self._layout = read_layout(folder, shares_head=shares_head)
        # The weights the server starts with, so that a rollback to them needs no disk.
        first = self._live.stage(folder / WEIGHTS_FILE, "", self._layout)
        self._live.reserve(first)
        first = replace(first, sha256=sha256_of(folder / WEIGHTS_FILE))
        self._kept.keep(self.draft_version, first)
        self.effect.settle(first.sha256, self._live.probe(first))

    def _handle(self, command: SwapCommand) -> None:
        """Scheduler thread, at the top of an iteration; returns None, so nothing goes back to the tokenizer."""
        try:
            self._act_on(command)
        except Exception as fault:  # an exception leaving a handler would kill SGLang's scheduler
            log.exception("paceline: %s of version %d failed", command.act, command.number)
            why = f"{type(fault).__name__}: {fault}"
            self.channel.stagings.setdefault(command.attempt, Staging()).refuse(fault)
            self.channel.stagings[command.attempt].done.set()
            self.channel.answers.put(Answer(attempt=command.attempt, readiness=Readiness.REFUSED, why=why))

    def _act_on(self, command: SwapCommand) -> None:
        match command.act:
            case Act.PREPARE:
                staging = self.channel.stagings.setdefault(command.attempt, Staging())
                threading.Thread(
                    target=self._stage, args=(command, staging), name="paceline-stage", daemon=True
                ).start()
            case Act.COMMIT:
                self.channel.answers.put(self._commit(command))
            case Act.ABANDON:
                self.channel.stagings.pop(command.attempt, None)
                self.waits_for = ""

    def _stage(self, command: SwapCommand, staging: Staging) -> None:
        try:
            staging.draft = self._staged_from(command.file, command.sha256)
        except Exception as fault:  # noqa: BLE001 - a staging thread reports its fault
            staging.refuse(fault)
            log.warning("paceline: version %d not staged: %s", command.number, staging.refusal)
        finally:
            staging.done.set()

    def _staged_from(self, place: str, sha256: str) -> StagedDraft:
        if self._live is None or self._layout is None:
            raise WeightsRefused(f"this rank cannot swap: {self.fault}")
        file = self._fetched.file(place, sha256, self._kept.digests)
        return self._live.stage(file, sha256, self._layout)

    def _commit(self, command: SwapCommand) -> Answer:
        began = time.perf_counter()
        draft, own, why = self._vote(command)
        readiness = self._least_ready(own)
        self.waits_for = why if readiness is Readiness.NOT_YET else ""
        if readiness is not Readiness.READY:
            return Answer(attempt=command.attempt, readiness=readiness, why=why)
        assert draft is not None and self._live is not None  # noqa: S101, PT018 - ready means bound and staged
        self.channel.stagings.pop(command.attempt, None)
        fault = self._fault_of_any(self._live.try_load(draft), COPY_FAILED_ELSEWHERE)
        if fault:
            log.error("paceline: swap to version %d failed: %s", command.number, fault)
            self.put_back()
            return Answer(attempt=command.attempt, readiness=Readiness.REFUSED, why=fault)
        self.draft_version = command.number
        self._kept.keep(command.number, draft)
        commit_s = time.perf_counter() - began
        self._draft_changed(commit_s)
        outcome = SwapSaid(
            number=command.number,
            commit_ms=1e3 * commit_s,
            stage_ms=1e3 * draft.seconds,
            running=len(self.running()),
            at=time.time(),
        )
        return Answer(
            attempt=command.attempt,
            readiness=readiness,
            outcome=outcome,
            sha256=command.sha256,
            probe=self._live.probe(draft),
        )

    def _vote(self, command: SwapCommand) -> tuple[StagedDraft | None, Readiness, str]:
        """As `_staged`, and never raises: the other ranks wait for this one's vote."""
        try:
            return self._staged(command)
        except Exception as fault:  # without this rank's vote the others would wait for ever
            log.exception("paceline: swap to version %d failed", command.number)
            return None, Readiness.REFUSED, f"{type(fault).__name__}: {fault}"

    def _staged(self, command: SwapCommand) -> tuple[StagedDraft | None, Readiness, str]:
        if self.fault or self._live is None:  # of a draft that the entry rank keeps, the commit is all that comes
            return None, Readiness.REFUSED, f"this rank cannot swap: {self.fault}"
        if waits_for := self._live.why_not_now():
            return None, Readiness.NOT_YET, waits_for
        if (kept := self._kept.find(command.number, command.sha256)) is not None:
            return kept, Readiness.READY, ""
        staging = self.channel.stagings.get(command.attempt)
        if staging is None or not staging.done.is_set():
            return None, Readiness.NOT_YET, ""
        if staging.draft is None:
            return None, Readiness.REFUSED, staging.refusal
        return staging.draft, Readiness.READY, ""

    def _least_ready(self, own: Readiness) -> Readiness:
        """Every rank calls this for every commit, whatever its own state: a collective waits for all of them."""
        return own if self._ranks == 1 else Readiness(sglang_ranks.least(int(own)))

    def put_back(self) -> None:
        """Copy the live draft in again, in the scheduler thread: a copy that failed half-way leaves a mixture."""
        if self._live is not None and self._live.try_load(self._kept[self.draft_version]):
            # Verification uses the target alone: serving continues.
            log.error("paceline: the weights of version %d could not be put back", self.draft_version)
