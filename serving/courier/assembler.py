"""Joins the forwards of each request into trace windows, and closes those as DraftTrace."""

import logging
from collections.abc import Iterable, Mapping

from ...buffer.errors import TraceInvalid
from ...buffer.stream.trace import DraftTrace
from ..wire.counts import CaptureCounts, DropReason
from ..wire.request_forward import RequestForward, RequestPrefill, RequestVerify
from .trace_window import TraceMaker, TraceWindow, begin_window

log = logging.getLogger(__name__)

#: A trace window that has not grown for this long belongs to a request that was aborted while it waited.
IDLE_CLOSE_S = 300.0
#: Requests remembered as broken, until their last forward, and as idle. This bounds those whose last forward was lost.
MAX_BROKEN = 4096


class WindowAssembler:
    """Forwards in, traces out. One thread only (the courier's).

    A trace window is closed when its request ends, when the version of draft or target changes, when it holds
    `window_tokens` tokens after its context, or when the request is prefilled again after a retraction. The next window
    of the request starts with up to `context_tokens` tokens of context; so does a request whose prompt is longer than
    `window_tokens`. A window without a verify round yet is changed in place: there is nothing to close.
    """

    def __init__(self, make_trace: TraceMaker, counts: CaptureCounts, window_tokens: int, context_tokens: int) -> None:
        self._make_trace = make_trace
        self._counts = counts
        self._window_tokens = window_tokens
        self._context_tokens = context_tokens
        self._open: dict[str, TraceWindow] = {}
        self._broken: dict[str, None] = {}  # dropped requests whose forwards still come; a dict keeps their order
        self._idle: dict[str, None] = {}  # requests whose window was closed since it did not grow

    def __len__(self) -> int:
        return len(self._open)

    def add(self, forward: RequestForward, now: float) -> list[DraftTrace]:
        """Add one forward; return the traces it closed. Broken windows are dropped and counted."""
        if forward.request_id in self._broken:
            if forward.commit.finish:
                del self._broken[forward.request_id]
            return []
        closed: list[DraftTrace] = []
        try:
            self._add(forward, now, closed)
        except TraceInvalid as fault:
            self._invalid(forward.request_id, fault)
            self._drop(forward, DropReason.INVALID)
        return closed

    def lose(self, reasons: Mapping[str, DropReason]) -> None:
        """Drop requests of which a forward is missing, known so far or not, and ignore what still comes of them.

        Call it before the forwards after the missing one are added, and not for a request that ended before that.
        """
        for request_id, reason in reasons.items():
            if request_id in self._broken:
                continue  # counted already
            if self._open.pop(request_id, None) is None:
                self._counts.opened()  # its first forward was lost: captured and dropped at once
            self._counts.drop(reason)
            self._broken[request_id] = None
        self._forget_oldest()

    def forget(self, request_ids: Iterable[str]) -> None:
        """Nothing more comes of these lost requests: their names are free for others."""
        for request_id in request_ids:
            self._broken.pop(request_id, None)

    def ignore(self, request_ids: Iterable[str]) -> None:
        """Take no forward of these requests: they began with another courier, and are counted already."""
        self._broken.update(dict.fromkeys(request_ids))
        self._forget_oldest()

    def close_idle(self, now: float) -> list[DraftTrace]:
        """Close windows that have not grown for IDLE_CLOSE_S seconds."""
        closed: list[DraftTrace] = []
        for window in [w for w in self._open.values() if now - w.touched_at > IDLE_CLOSE_S]:
            self._close(window, "abandoned", now, closed)
            self._idle[window.request_id] = None
        self._forget_oldest()
        return closed

    def close_all(self, now: float) -> list[DraftTrace]:
        """Close every window: the engine is gone, and what was served until then is complete."""
        closed: list[DraftTrace] = []
        for window in list(self._open.values()):
            self._close(window, "abandoned", now, closed)
        return closed

    def drop_all(self, reason: DropReason) -> None:
        """Drop every open window."""
        self.lose(dict.fromkeys(self._open, reason))

    def _forget_oldest(self) -> None:
        for remembered in (self._broken, self._idle):
            while len(remembered) > MAX_BROKEN:
                del remembered[next(iter(remembered))]

    def _add(self, forward: RequestForward, now: float, closed: list[DraftTrace]) -> None:
        match forward:
            case RequestPrefill():
                window: TraceWindow | None = self._prefill(forward, now, closed)
            case RequestVerify():
                window = self._verify(forward, now, closed)
        if window is not None:
            window.touched_at = now
            if forward.commit.finish:
                self._close(window, forward.commit.finish, now, closed)

    def _prefill(self, prefill: RequestPrefill, now: float, closed: list[DraftTrace]) -> TraceWindow:
        window = self._open.get(prefill.request_id)
        if window is not None and window.rounds:
            self._close(window, "", now, closed)  # prefilled again after a retraction
            window = None
        if window is None:
            self._counts.opened(is_label_refused=prefill.facts.is_label_refused)
            self._idle.pop(prefill.request_id, None)
        if window is None or window.end != prefill.start:
            window = self._open[prefill.request_id] = begin_window(prefill, now)
        window.take_versions_of(prefill)
        window.add_features(prefill.features, prefill.feature_dtype, len(window.tokens), len(prefill.ids))
        window.tokens.extend(prefill.ids.tolist())
        window.context_len = len(window.tokens)
        window.tokens.extend(prefill.commit.tokens)
        return window

    def _verify(self, verify: RequestVerify, now: float, closed: list[DraftTrace]) -> TraceWindow | None:
        window = self._open.get(verify.request_id)
        committed = verify.commit.tokens
        if window is None and committed:
            # Its beginning was never seen: of a request that had ended, SGLang commits nothing.
            self._drop(verify, DropReason.GAP if verify.request_id in self._idle else DropReason.FAULT)
        if window is None or (not committed and not verify.commit.finish):
            return None  # dropped just now, or launched before the request's end was known
        if verify.root != window.end - 1 or verify.root_token != window.tokens[-1]:
            self._drop(verify, DropReason.GAP)
            return None
        if not committed:
            return window  # aborted in this round: nothing became visible, so nothing was judged
        window = self._fitting(window, verify, now, closed)
        if verify.is_tree:  # a step inside a prefill drafts nothing
            window.replay_exact &= verify.tree is not None and window.tree in {None, verify.tree}
            window.tree = verify.tree
            window.is_tree = True
        root = len(window.tokens) - 1
        window.add_features(verify.features, verify.feature_dtype, root, min(len(committed), verify.accepted) + 1)
        window.rounds.append((root, verify))
        window.tokens.extend(committed)
        self._counts.rounds += 1
        return window

    def _fitting(self, window: TraceWindow, verify: RequestVerify, now: float, closed: list[DraftTrace]) -> TraceWindow:
        """The window this round belongs to: the open one, or the one that follows it."""
        if not window.rounds:
            if len(window.tokens) > self._window_tokens:
                window = window.tail(self._context_tokens, verify, now)
                self._open[verify.request_id] = window
            window.take_versions_of(verify)
            return window
        if window.has_versions_of(verify) and len(window.tokens) - window.context_len < self._window_tokens:
            return window
        fresh = window.tail(self._context_tokens, verify, now)
        self._close(window, "", now, closed)
        self._open[verify.request_id] = fresh
        self._counts.opened(is_label_refused=fresh.facts.is_label_refused)
        return fresh

    def _drop(self, forward: RequestForward, reason: DropReason) -> None:
        """Drop the request of `forward`; its last forward leaves nothing to remember."""
        self.lose({forward.request_id: reason})
        if forward.commit.finish:
            self.forget([forward.request_id])

    def _close(self, window: TraceWindow, finish: str, now: float, closed: list[DraftTrace]) -> None:
        self._open.pop(window.request_id, None)
        if not window.rounds:
            self._counts.drop(DropReason.NO_ROUNDS)
            return
        try:
            closed.append(self._make_trace(window, finish, now))
        except TraceInvalid as fault:
            self._invalid(window.request_id, fault)
            self._counts.drop(DropReason.INVALID)

    def _invalid(self, request_id: str, fault: TraceInvalid) -> None:
        log.warning("paceline: trace window of %s is invalid: %s", request_id, fault)
