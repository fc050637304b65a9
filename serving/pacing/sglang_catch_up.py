"""While nothing is drafted, the draft does not run; before it drafts again, it reads what it has missed.

At steps 0 SGLang runs the draft over every committed token to keep its cache warm. Here it does not, and the target's
hidden states are kept instead. One pass over all of them follows when steps are chosen again, when the buffer is full,
and, of a request that ends, when its cache goes to the radix tree, where a later request would find the gap.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...buffer.board.member_status import CatchUpSaid
from .. import hook_targets
from .kept_states import KeptStates, Missed
from .sglang_draft_reading import Unread, current_stream, read_missed, running_on, with_rows
from .sglang_why_not import DEFAULT_BYTES, why_not

log = logging.getLogger(__name__)

NOT_RUN = "no forward has run yet"


class SglangCatchUp:
    """Hook bodies, for the scheduler thread. None raises.

    A fault ends it for the life of the process: SGLang warms the draft's cache again from then on, and the requests
    that run have lost their traces, since nothing can say what their draft has read.
    """

    def __init__(self, max_bytes: int | None, discount: Callable[[], None], interrupt: Callable[[], None]) -> None:
        """`max_bytes` of hidden states are kept at most; 0 leaves all to SGLang, and None does where why_not says so.

        `discount` is told of a step that was launched and takes longer for a pass, `interrupt` of a pass between two.
        """
        self._max_bytes = max_bytes
        self._discount = discount
        self._interrupt = interrupt
        self._kept = KeptStates(0)
        self._draft_worker: Any = None
        self._batch: Any = None  # the last one at steps 0
        self._stream: Any = None  # that its forward ran on; None on a CPU
        self._skips: bool | None = None  # what SGLang was told last
        self._reads_ended = True  # whether a request that ends leaves its cache to others
        self._passes: Counter[str] = Counter()  # by why
        self._positions = 0
        self.reason = NOT_RUN  # why the draft runs at steps 0; empty while it does not
        self.on_lost: Callable[[Any], None] = lambda _batch: None  # told of a batch whose requests have gaps for good

    def hooks(self) -> dict[str, tuple[str, Callable[..., Any]]]:
        """What to install; `before_forward` comes beside them."""
        return {
            hook_targets.SKIPPED_DRAFT: ("after", self.after_skipped),
            hook_targets.DRAFT: ("before", self.before_draft),
            hook_targets.WARM_DRAFT: ("before", self.before_warming),
            hook_targets.RELEASE_CACHE: ("before", self.before_release),
        }

    def before_forward(self, worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        """BEFORE EAGLEWorkerV2.forward_batch_generation."""
        try:
            if self.reason is NOT_RUN:
                self._start(worker)
            if self.reason:
                return
            if batch.forward_mode.is_extend():
                for req in batch.reqs:  # a new one, or one that is read anew
                    self._kept.forget(req.rid)
            else:
                left = self._kept.rows_left
                self._skip(left is None or left >= len(batch.reqs))
        except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
            self._end(fault)

    def after_skipped(self, _result: Any, _worker: Any, batch: Any, output: Any, *_: Any, **__: Any) -> None:
        """AFTER EAGLEWorkerV2._stub_skipped_draft_extend(batch, output): a step without drafts was verified."""
        if self.reason or not batch.reqs:
            return
        try:
            self._batch = batch
            self._stream = current_stream(batch.device)
            rids = [req.rid for req in batch.reqs]
            hidden = output.logits_output.hidden_states
            has_new = any(self._kept.missed(rid) is None for rid in rids)
            starts = _lengths(batch) if has_new else [0] * len(rids)
            self._kept.keep(rids, starts, hidden, output.next_token_ids)
        except Exception as fault:  # noqa: BLE001 - as above
            self._end(fault)

    def before_draft(self, draft_worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        """BEFORE EagleDraftWorker.draft(batch): the steps of `batch` are above 0."""
        if self.reason or not len(self._kept):
            return
        try:
            if runs := self._missed(batch):
                read = self._read(draft_worker, batch, runs, "drafting")
                batch.spec_info = with_rows(batch.spec_info, list(runs), read)
        except Exception as fault:  # noqa: BLE001 - as above
            self._end(fault)

    def before_warming(self, draft_worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        """BEFORE EagleDraftWorker._draft_extend_for_decode(batch, ...); at steps 0 the buffer is full."""
        if self.reason or not len(self._kept):
            return
        try:
            if runs := self._missed(batch):
                self._read(draft_worker, batch, runs, "full")
        except Exception as fault:  # noqa: BLE001 - as above
            self._end(fault)

    def before_release(self, req: Any, _tree: Any, *given: Any, **named: Any) -> None:
        """BEFORE release_kv_cache(req, tree_cache, is_insert=True), which later releases call `checkpoint`."""
        if self.reason or self._kept.missed(req.rid) is None:
            return
        try:
            is_kept = named.get("checkpoint", named.get("is_insert", given[0] if given else True))
            if is_kept and self._reads_ended and not req.skip_radix_cache_insert:
                self._read_ended(req)
            self._kept.forget(req.rid)
        except Exception as fault:  # noqa: BLE001 - as above
            self._end(fault)

    def refuse(self, reason: str) -> None:
        """Leave all to SGLang, with a warning where anything else was asked for."""
        self.reason = reason
        if self._max_bytes:
            log.warning("paceline: the draft also runs while nothing is drafted: %s", reason)

    def said(self) -> CatchUpSaid:
        """For the replica's heartbeat; any thread may ask."""
        return CatchUpSaid(reason=self.reason, passes=dict(self._passes), positions=self._positions)

    def _start(self, worker: Any) -> None:
        if reason := why_not(worker, self._max_bytes):
            self.refuse(reason)
            return
        self._draft_worker = worker.draft_worker
        self._kept = KeptStates(DEFAULT_BYTES if self._max_bytes is None else self._max_bytes)
        self._reads_ended = self._reads_ended_here()
        self.reason = ""

    @staticmethod
    def _reads_ended_here() -> bool:
        from sglang.srt.runtime_context import get_memory

        return not get_memory().disable_radix_cache

    def _missed(self, batch: Any) -> dict[int, Missed]:
        """By row of `batch`."""
        runs = {row: self._kept.missed(req.rid) for row, req in enumerate(batch.reqs)}
        return {row: missed for row, missed in runs.items() if missed is not None}

    def _read(self, draft_worker: Any, batch: Any, runs: Mapping[int, Missed], why: str) -> Any:
        """Let the draft read what requests of `batch` have missed; others miss nothing, since all that run are in it.

        Raises ValueError when what was kept does not end where the request does.
        """
        reqs = batch.reqs
        unread = [Unread(reqs[row], reqs[row].kv.req_pool_idx, missed) for row, missed in runs.items()]
        ends = _lengths(batch)
        for row, one in zip(runs, unread, strict=True):
            if one.missed.end != ends[row]:
                raise ValueError(f"kept states of {one.req.rid}: got up to {one.missed.end}, expected {ends[row]}")
        read = read_missed(draft_worker, batch, unread, self._kept)
        self._count(unread, why)
        self._kept.clear()
        self._discount()
        return read

    def _read_ended(self, req: Any) -> None:
        missed = self._kept.missed(req.rid)
        if missed is None:
            return
        del missed.rows[max(req.kv.kv_committed_len - missed.start, 0) :]  # a step launched before its end was known
        if missed.rows:
            unread = [Unread(req, req.kv.req_pool_idx, missed)]
            with running_on(self._stream):
                read_missed(self._draft_worker, self._batch, unread, self._kept)
            self._count(unread, "ended")
            self._interrupt()

    def _count(self, unread: Sequence[Unread], why: str) -> None:
        self._passes[why] += 1
        self._positions += sum(len(one.missed.rows) for one in unread)

    def _skip(self, skips: bool) -> None:
        if skips is not self._skips:
            from sglang.srt.environ import envs

            envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.set(skips)
            self._skips = skips

    def _end(self, fault: Exception) -> None:
        self.reason = f"{type(fault).__name__}: {fault}"
        log.error("paceline: the draft's cache is SGLang's to keep warm from now on", exc_info=fault)
        self._kept = KeptStates(0)
        try:
            self._skip(False)
            if self._batch is not None:
                self.on_lost(self._batch)
        except Exception:  # the hook that met the first fault must not raise because of a second one
            log.exception("paceline: fault while catching up ended")


def _lengths(batch: Any) -> list[int]:
    """Committed tokens of each request; waits for the device where its kernels need no lengths on the host."""
    lengths: list[int] = (batch.seq_lens if batch.seq_lens_cpu is None else batch.seq_lens_cpu).tolist()
    return lengths
