"""Puts the steps of each request together into windows and closes them as DraftTrace."""

import logging
from collections.abc import Iterable

from ...buffer.errors import TraceInvalid
from ...buffer.trace import DraftTrace
from ..wire.counts import CaptureCounts, DropReason
from ..wire.request_forward import RequestForward, RequestPrefill, RequestVerify
from .trace_window import TraceMaker, Window

log = logging.getLogger(__name__)

#: A window nobody added to for this long belongs to a request that was aborted while it waited.
IDLE_CLOSE_S = 300.0
#: Requests remembered as broken. Their last step forgets them; this bounds those whose last step was lost as well.
MAX_BROKEN = 4096


class WindowAssembler:
    """Steps in, traces out. One thread only (the courier's).

    A window is closed when its request ends, when the draft version changes, when it holds `window_tokens` tokens
    behind its context, or when the request is prefilled again after a retraction. The next window of the request
    starts with up to `context_tokens` tokens of context; so does a request whose prompt is longer than
    `window_tokens`. A window without a round yet is changed in place: there is nothing to close.
    """

    def __init__(self, make_trace: TraceMaker, counts: CaptureCounts, window_tokens: int, context_tokens: int) -> None:
        self._make_trace = make_trace
        self._counts = counts
        self._window_tokens = window_tokens
        self._context_tokens = context_tokens
        self._open: dict[str, Window] = {}
        self._broken: dict[str, None] = {}  # dropped requests whose steps still come; a dict keeps their order

    def __len__(self) -> int:
        return len(self._open)

    def add(self, step: RequestForward, now: float) -> list[DraftTrace]:
        """Add one step; return the traces it closed. Broken windows are dropped and counted."""
        if step.request_id in self._broken:
            if step.commit.finish:
                del self._broken[step.request_id]
            return []
        closed: list[DraftTrace] = []
        try:
            self._take(step, now, closed)
        except TraceInvalid as fault:
            self._invalid(step.request_id, fault)
            self._break(step, DropReason.INVALID)
        return closed

    def lose(self, request_ids: set[str], reason: DropReason) -> None:
        """Drop requests of which a step is missing, known so far or not, and ignore what still comes of them."""
        for request_id in request_ids - self._broken.keys():
            if self._open.pop(request_id, None) is None:
                self._counts.opened()  # its very first step was lost: captured and dropped at once
            self._counts.drop(reason)
            self._broken[request_id] = None
        self._forget_oldest()

    def ignore(self, request_ids: Iterable[str]) -> None:
        """Take no step of these requests: their beginning is not here, and somebody else has counted them."""
        self._broken.update(dict.fromkeys(request_ids))
        self._forget_oldest()

    def close_idle(self, now: float) -> list[DraftTrace]:
        """Close windows nobody added to for IDLE_CLOSE_S seconds."""
        closed: list[DraftTrace] = []
        for window in [w for w in self._open.values() if now - w.touched_at > IDLE_CLOSE_S]:
            self._close(window, "abandoned", now, closed)
        return closed

    def close_all(self, now: float) -> list[DraftTrace]:
        """Close every window: the engine is gone, and what was served until then is whole."""
        closed: list[DraftTrace] = []
        for window in list(self._open.values()):
            self._close(window, "abandoned", now, closed)
        return closed

    def drop_all(self, reason: DropReason) -> None:
        """Drop every open window."""
        self.lose(set(self._open), reason)

    def _forget_oldest(self) -> None:
        while len(self._broken) > MAX_BROKEN:
            del self._broken[next(iter(self._broken))]

    def _take(self, step: RequestForward, now: float, closed: list[DraftTrace]) -> None:
        match step:
            case RequestPrefill():
                window: Window | None = self._prefill(step, now, closed)
            case RequestVerify():
                window = self._verify(step, now, closed)
        if window is not None:
            window.touched_at = now
            if step.commit.finish:
                self._close(window, step.commit.finish, now, closed)

    def _prefill(self, step: RequestPrefill, now: float, closed: list[DraftTrace]) -> Window:
        window = self._open.get(step.request_id)
        if window is not None and window.rounds:
            self._close(window, "", now, closed)  # prefilled again after a retraction
            window = None
        if window is None:
            self._counts.opened()
        if window is None or window.end != step.start:
            exact = step.start == 0 and step.commit.output_index <= 0
            window = Window(step.request_id, step.facts, step.draft_version, step.start, exact, now)
            self._open[step.request_id] = window
        window.replay_exact &= window.draft_version == step.draft_version
        window.draft_version = step.draft_version
        window.add_features(step.features, step.feature_dtype, len(window.tokens), len(step.ids))
        window.tokens.extend(step.ids.tolist())
        window.context_len = len(window.tokens)
        window.tokens.extend(step.commit.tokens)
        return window

    def _verify(self, step: RequestVerify, now: float, closed: list[DraftTrace]) -> Window | None:
        window = self._open.get(step.request_id)
        if window is None or (not step.commit.tokens and not step.commit.finish):
            return None  # an overshoot step behind the end of its request
        if step.root != window.end - 1 or step.root_token != window.tokens[-1]:
            self._break(step, DropReason.GAP)
            return None
        if not step.commit.tokens:
            return window  # aborted in this step: nothing was seen by anybody, so nothing was judged
        window = self._fitting(window, step, now, closed)
        root = len(window.tokens) - 1
        window.add_features(step.features, step.feature_dtype, root, min(len(step.commit.tokens), step.accepted) + 1)
        window.rounds.append((root, step))
        window.tokens.extend(step.commit.tokens)
        self._counts.rounds += 1
        return window

    def _fitting(self, window: Window, step: RequestVerify, now: float, closed: list[DraftTrace]) -> Window:
        """The window this round belongs to: the open one, or the one that starts behind it."""
        is_swapped = window.draft_version != step.draft_version
        if not window.rounds:
            if len(window.tokens) > self._window_tokens:
                window = window.tail(self._context_tokens, step.draft_version, now)
                self._open[step.request_id] = window
            window.replay_exact &= not is_swapped
            window.draft_version = step.draft_version
            return window
        if not is_swapped and len(window.tokens) - window.context_len < self._window_tokens:
            return window
        fresh = window.tail(self._context_tokens, step.draft_version, now)
        self._close(window, "", now, closed)
        self._open[step.request_id] = fresh
        self._counts.opened()
        return fresh

    def _break(self, step: RequestForward, reason: DropReason) -> None:
        """Drop the request of `step`; its last step leaves nothing behind."""
        self.lose({step.request_id}, reason)
        if step.commit.finish:
            self._broken.pop(step.request_id, None)

    def _close(self, window: Window, finish: str, now: float, closed: list[DraftTrace]) -> None:
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
        log.warning("paceline: window of %s is invalid: %s", request_id, fault)
