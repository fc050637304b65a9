"""Puts the steps of each request together into windows and closes them as DraftTrace."""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..buffer.errors import TraceInvalid
from ..buffer.trace import NO_DRAFT, DraftTrace, FeatureDtype, VerifyRounds
from .counts import CaptureCounts, DropReason
from .steps import NO_FEATURES, PrefillStep, RequestFacts, Step, VerifyStep

log = logging.getLogger(__name__)

#: A window nobody added to for this long belongs to a request that was aborted while it waited.
IDLE_CLOSE_S = 300.0


@dataclass(slots=True)
class Window:
    """An open window: what a DraftTrace will hold, still growing."""

    request_id: str
    facts: RequestFacts
    draft_version: int
    offset: int
    replay_exact: bool
    touched_at: float
    tokens: list[int] = field(default_factory=list)
    context_len: int = 0
    rounds: list[tuple[int, VerifyStep]] = field(default_factory=list)  # (index of the root in tokens, step)
    features: list[npt.NDArray[Any]] = field(default_factory=list)
    feature_dtype: FeatureDtype = FeatureDtype.FLOAT32

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.offset + len(self.tokens)

    def stacked_features(self) -> npt.NDArray[Any]:
        """All feature rows so far, [F, D]."""
        return np.concatenate(self.features) if self.features else NO_FEATURES


class WindowAssembler:
    """Steps in, traces out. One thread only (the courier's).

    A window is closed when its request ends, when the draft version changes, when it has `window_tokens` tokens, or
    when the request is prefilled again after a retraction. The next window of the request starts with up to
    `context_tokens` tokens of context.
    """

    def __init__(
        self,
        make_trace: "TraceMaker",
        counts: CaptureCounts,
        window_tokens: int,
        context_tokens: int,
    ) -> None:
        self._make_trace = make_trace
        self._counts = counts
        self._window_tokens = window_tokens
        self._context_tokens = context_tokens
        self._open: dict[str, Window] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, step: Step, now: float) -> list[DraftTrace]:
        """Add one step; return the traces it closed. Broken windows are dropped and counted."""
        closed: list[DraftTrace] = []
        match step:
            case PrefillStep():
                window: Window | None = self._prefill(step, now, closed)
            case VerifyStep():
                window = self._verify(step, now, closed)
        if window is not None:
            window.touched_at = now
            if step.commit.finish:
                self._close(window, step.commit.finish, now, closed)
        return closed

    def lose(self, request_ids: set[str], reason: DropReason) -> None:
        """Drop the open windows of requests of which a step is missing."""
        for request_id in request_ids:
            if self._open.pop(request_id, None) is not None:
                self._counts.drop(reason)

    def close_idle(self, now: float) -> list[DraftTrace]:
        """Close windows nobody added to for IDLE_CLOSE_S seconds."""
        closed: list[DraftTrace] = []
        for window in [w for w in self._open.values() if now - w.touched_at > IDLE_CLOSE_S]:
            self._close(window, "abandoned", now, closed)
        return closed

    def drop_all(self, reason: DropReason) -> None:
        """Drop every open window."""
        self.lose(set(self._open), reason)

    def _prefill(self, step: PrefillStep, now: float, closed: list[DraftTrace]) -> Window:
        window = self._open.get(step.request_id)
        if window is not None and (window.end != step.start or window.rounds):
            self._close(window, "", now, closed)  # prefilled again after a retraction
            window = None
        if window is None:
            window = self._begin(step, now)
        window.replay_exact &= window.draft_version == step.draft_version
        window.draft_version = step.draft_version
        window.tokens.extend(step.ids.tolist())
        _add_features(window, step.features, step.feature_dtype, len(step.ids))
        window.context_len = len(window.tokens)
        window.tokens.extend(step.commit.tokens)
        return window

    def _begin(self, step: PrefillStep, now: float) -> Window:
        exact = step.start == 0 and step.commit.output_index <= 0
        window = Window(step.request_id, step.facts, step.draft_version, step.start, exact, now)
        self._open[step.request_id] = window
        self._counts.opened()
        return window

    def _verify(self, step: VerifyStep, now: float, closed: list[DraftTrace]) -> Window | None:
        window = self._open.get(step.request_id)
        if window is None or (not step.commit.tokens and not step.commit.finish):
            return None  # a request that was lost before, or an overshoot step behind its end
        if step.root != window.end - 1 or step.root_token != window.tokens[-1]:
            self.lose({step.request_id}, DropReason.GAP)
            return None
        if window.draft_version != step.draft_version or len(window.tokens) >= self._window_tokens:
            window = self._split(window, step.draft_version, now, closed)
        visible = step.commit.tokens
        if not visible:
            return window  # aborted in this step: nothing was seen by anybody, so nothing was judged
        window.rounds.append((len(window.tokens) - 1, step))
        window.tokens.extend(visible)
        _add_features(window, step.features, step.feature_dtype, min(len(visible), step.accepted) + 1)
        self._counts.rounds += 1
        return window

    def _split(self, window: Window, draft_version: int, now: float, closed: list[DraftTrace]) -> Window:
        """Close `window` and go on with its newest tokens as context; the draft states there are not all known."""
        keep = min(self._context_tokens, len(window.tokens))
        cut = len(window.tokens) - keep
        features = window.stacked_features()[cut:]
        tokens = window.tokens[cut:]
        self._close(window, "", now, closed)
        fresh = Window(window.request_id, window.facts, draft_version, window.offset + cut, False, now)
        fresh.tokens, fresh.context_len = tokens, len(tokens)
        fresh.features, fresh.feature_dtype = [features], window.feature_dtype
        self._open[window.request_id] = fresh
        self._counts.opened()
        return fresh

    def _close(self, window: Window, finish: str, now: float, closed: list[DraftTrace]) -> None:
        self._open.pop(window.request_id, None)
        if not window.rounds:
            self._counts.drop(DropReason.NO_ROUNDS)
            return
        try:
            closed.append(self._make_trace(window, finish, now))
        except TraceInvalid as fault:
            log.warning("paceline: window of %s is invalid: %s", window.request_id, fault)
            self._counts.drop(DropReason.INVALID)


TraceMaker = Callable[[Window, str, float], DraftTrace]


def trace_maker(replica: str, target: str, target_version: str) -> TraceMaker:
    """Return the function that turns a closed window into a trace of this replica."""

    def make(window: Window, finish: str, now: float) -> DraftTrace:
        features = window.stacked_features()
        return DraftTrace(
            trace_id=uuid.uuid4().hex,
            request_id=window.request_id,
            replica=replica,
            tenant=window.facts.tenant,
            target=target,
            target_version=target_version,
            draft_version=window.draft_version,
            verdict_rule=window.facts.verdict_rule,
            sampling=window.facts.sampling,
            born_at=now,
            offset=window.offset,
            tokens=np.asarray(window.tokens, np.int32),
            context_len=window.context_len,
            rounds=_rounds(window.rounds),
            features=features,
            feature_dtype=window.feature_dtype,
            replay_exact=window.replay_exact and len(features) > 0,
            finish=finish,
        )

    return make


def _rounds(rounds: list[tuple[int, VerifyStep]]) -> VerifyRounds:
    steps = [step for _, step in rounds]
    width = max(len(step.drafted) for step in steps)
    top_k = steps[0].teacher_ids.shape[1]
    drafted = np.full((len(steps), width), NO_DRAFT, np.int32)
    teacher_ids = np.zeros((len(steps), width + 1, top_k), np.int32)
    teacher_logprobs = np.full((len(steps), width + 1, top_k), -np.inf, np.float16)
    for row, step in enumerate(steps):
        n = len(step.drafted)
        drafted[row, :n] = step.drafted
        teacher_ids[row, : n + 1] = step.teacher_ids
        teacher_logprobs[row, : n + 1] = step.teacher_logprobs
    starts = np.asarray([start for start, _ in rounds], np.int32)
    accepted = np.asarray([step.accepted for step in steps], np.int32)
    return VerifyRounds(starts, drafted, accepted, teacher_ids, teacher_logprobs)


def _add_features(window: Window, rows: npt.NDArray[Any], dtype: FeatureDtype, count: int) -> None:
    if len(rows):
        window.features.append(rows[:count])
        window.feature_dtype = dtype
